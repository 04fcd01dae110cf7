"""The roofline as a picture. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stack.bench.operators import OperatorTime, is_emulated
from stack.bench.roof import Roof

_LEAST = 2**-6
"""Of the intensities in the picture: what computes nothing stands at its edge."""


def draw(title: str, roof: Roof, results: Sequence[OperatorTime], out: Path) -> None:
    """Write a PNG: operations/s over operations per byte, both logarithmic, a roof for each element
    type whose rate is known and a point for each operator that does any operation."""
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    axes: Axes = figure.subplots()
    done = [r for r in results if r.time is not None and r.case.flops]
    most = max([2.0**10, *(2 * r.case.intensity for r in done)])
    _roofs(axes, roof, most)
    for number, result in enumerate(done):
        case, time = result.case, result.time
        assert time is not None, "only what was measured is drawn"
        marker, color = "osD^vP"[number // 10 % 6], f"C{number % 10}"
        place = case.intensity, case.flops / time.seconds
        axes.plot(*place, marker, color=color, ms=7, label=f"{case.name} {case.size}")
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(_LEAST, most),
        title=title,
        xlabel="operations per byte that must be moved",
        ylabel=f"operations/s ({'emulated time' if is_emulated(done) else 'measured'})",
    )
    axes.grid(which="both", alpha=0.2)
    axes.legend(loc="lower right", fontsize=8, ncols=2)
    figure.savefig(out, format="png", dpi=120)


def _roofs(axes: Axes, roof: Roof, most: float) -> None:
    """The slope of the memory up to each peak."""
    grid = np.geomspace(_LEAST, most, 256)
    if not roof.peaks:
        axes.plot(grid, grid * roof.bandwidth, color="black", label="memory")
    by_rate: dict[float, list[str]] = {}
    for dtype, rate in roof.peaks.items():
        by_rate.setdefault(rate, []).append(dtype.short)
    for number, (rate, names) in enumerate(sorted(by_rate.items())):
        label = f"{', '.join(names)}: {rate / 1e9:.4g} Gop/s, {roof.bandwidth / 1e9:.4g} GB/s"
        line = ("-", "--", ":", "-.")[number % 4]
        axes.plot(grid, np.minimum(rate, grid * roof.bandwidth), f"k{line}", lw=1.4, label=label)
