"""Declared performance: what the device declares is what it does."""

from __future__ import annotations

import math
import time

from hal.conformance import expect
from hal.conformance.band import band, better
from hal.conformance.case import Cases, Level
from hal.conformance.measure import Bench, figure
from hal.conformance.rig import Rig
from hal.core.description import PERFORMANCE

declared_figures = Cases("K", Level.DECLARED)

PAUSE_S = 0.2
"""How long a further round waits, for what else the machine does to pass."""

ROUNDS_S = 20.0
"""No further round begins after so many seconds."""


@declared_figures.case("known-figures", "declared.performance", level=Level.CORE)
def _(rig: Rig) -> None:
    for key, value in rig.info.declared.items():
        expect.that(key in PERFORMANCE, f"{key!r} is no key of PERFORMANCE")
        expect.that(math.isfinite(value) and value > 0, f"{key} is declared as {value!r}")


@declared_figures.case(
    "figure", "declared.performance", timed=True, timeout_s=60, key=tuple(PERFORMANCE)
)
def _(rig: Rig, key: str) -> None:
    if key not in rig.info.declared:
        raise expect.Unfit(f"the device does not declare {key}")
    device = rig.open(wrappers=(), cache_dir="")
    bench = Bench(rig, device, device.create_timeline(False), device.info.declared[key])
    rig.figures[f"declared {key}"] = bench.declared
    wrong = _measured(bench, key)
    expect.that(not wrong, wrong)


def _measured(bench: Bench, key: str) -> str:
    """Measure until a round agrees; gives what is wrong with the last figure, "" for nothing."""
    end = time.monotonic() + ROUNDS_S
    while wrong := _wrong(bench, key, figure(bench, key)):
        if time.monotonic() > end:
            break
        time.sleep(PAUSE_S)
    return wrong


def _wrong(bench: Bench, key: str, value: float) -> str:
    """Why a figure is not what was declared or what the ratchet keeps, "" if it is."""
    bench.rig.figures[key] = value
    low, high = band(key)
    ratio = better(key, value, bench.declared)
    if not low <= ratio <= high:
        return (
            f"{key} measured {value:.4g}, declared {bench.declared:.4g}: {ratio:.2f} times as "
            f"good, allowed are {low:.2f} to {high:g}"
        )
    floor = bench.rig.setting.floors.get(key)
    if floor is not None and better(key, value, floor) < 1:
        return f"{key} measured {value:.4g}, the plugin's ratchet keeps it at {floor:.4g}"
    return ""
