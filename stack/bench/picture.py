"""Rooflines and timelines as pictures. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hal.core.values import Span
from stack.bench.explain import KernelTime
from stack.bench.operators import OperatorTime, is_emulated
from stack.bench.roof import Roof

_LEAST = 2**-6
"""Of the intensities in the picture: what computes nothing stands at its edge."""

_NAMED = 12
"""Of the kernels under a roofline, so many are named."""


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


def draw_explained(
    title: str, roof: Roof, rows: Sequence[KernelTime], spans: Sequence[Span], out: Path
) -> None:
    """Write an SVG: kernels under the roofline, as large as their share of the time, and below it
    when each of `spans` ran on which lane. Kernels have the same colour in both."""
    figure = Figure(figsize=(11, 9), layout="constrained")
    above, below = figure.subplots(2, height_ratios=(2, 1))
    colors = {r.name: f"C{i % 10}" for i, r in reversed([*enumerate(rows)])}
    done = [r for r in rows if r.flops and r.nbytes]
    total = sum(r.seconds for r in rows)
    most = max([2.0**10, *(2 * r.flops / r.nbytes for r in done if r.flops)])
    _roofs(above, roof, most)
    for number, r in enumerate(done):
        assert r.flops is not None, "only what computes stands under the roof"
        label = f"{r.name}: {r.seconds / total:.0%}" if number < _NAMED else None
        place, size = (r.flops / r.nbytes, r.flops / r.seconds), 4 + 40 * (r.seconds / total) ** 0.5
        above.plot(*place, "o", color=colors[r.name], ms=size, alpha=0.7, label=label)
    above.set(xscale="log", yscale="log", xlim=(_LEAST, most), title=title)
    above.set(xlabel="operations per byte of its arguments", ylabel="operations/s")
    above.grid(which="both", alpha=0.2)
    above.legend(loc="lower right", fontsize=7, markerscale=0.4)
    begin_ns = min((s.start_ns for s in spans), default=0)
    for span in spans:
        bar = ((span.start_ns - begin_ns) / 1e6, (span.end_ns - span.start_ns) / 1e6)
        color = colors.get(span.name, "black")
        below.broken_barh([bar], (span.lane - 0.4, 0.8), color=color, edgecolor="white", lw=0.2)
    below.set(title="the submission of the most commands", xlabel="ms", ylabel="lane")
    below.set_yticks(sorted({span.lane for span in spans}))
    figure.savefig(out, format="svg")


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
