"""Declared performance: what the device declares is what it does."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import hal
from hal.core.description import PERFORMANCE
from hal.core.dtypes import DType
from hal_conformance import busy, expect
from hal_conformance.alone import alone
from hal_conformance.band import band, better
from hal_conformance.case import Cases, Level
from hal_conformance.measure import Bench, figure, rate
from hal_conformance.rig import Rig

declared_figures = Cases("K", Level.DECLARED)

FLOATS = (DType.F64, DType.F32, DType.F16, DType.BF16)
PAUSE_S = 0.2
"""How long a further round waits, for what else the machine does to pass."""

AGAIN_S = 8.0
"""After so many seconds of rounds that do not agree, a fresh process says what it declares: a
plugin that measures may have met a busy machine, or one that was less busy than now."""

ROUNDS_S = 20.0
"""No further round begins after so many seconds."""

_crowds: dict[frozenset[tuple[str, float]], float] = {}
"""How many times slower than alone a thread got on when figures were first seen: a plugin may have
measured them then."""


@declared_figures.case("known-figures", "declared.performance", level=Level.CORE)
def _(rig: Rig) -> None:
    _crowd_when_made(rig)
    for key, value in rig.info.declared.items():
        expect.that(key in PERFORMANCE, f"{key!r} is no key of PERFORMANCE")
        expect.that(math.isfinite(value) and value > 0, f"{key} is declared as {value!r}")


@declared_figures.case(
    "figure", "declared.performance", timed=True, timeout_s=60, key=tuple(PERFORMANCE)
)
def _(rig: Rig, key: str) -> None:
    made = _crowd_when_made(rig)
    if key not in rig.info.declared:
        raise expect.Unfit(f"the device does not declare {key}")
    device = rig.open(wrappers=(), cache_dir="")
    bench = Bench(rig, device, device.create_timeline(False), device.info.declared[key])
    wrong = _measured(bench, key, made)
    expect.that(not wrong, wrong)


def _crowd_when_made(rig: Rig) -> float:
    """Open the device; gives how crowded the machine was when its figures were first seen."""
    before = busy.factor_now()
    figures = frozenset(rig.info.declared.items())
    if figures not in _crowds:
        _crowds[figures] = max(before, busy.factor_now())
    return _crowds[figures]


def _measured(bench: Bench, key: str, made: float) -> str:
    """Measure until a round agrees; gives what is wrong with the last figure, "" for nothing."""
    begin = time.monotonic()
    while True:
        before = busy.factor_now()
        value = figure(bench, key)
        crowd = max(before, busy.factor_now())
        wrong = _wrong(bench, key, value, crowd, made)
        took_s = time.monotonic() - begin
        if not wrong or took_s > ROUNDS_S:
            return wrong
        time.sleep(PAUSE_S)
        if took_s > AGAIN_S and bench.rig.setting.registry is hal.registry:
            bench = replace(bench, declared=_declared_anew(bench.rig, key))


def _declared_anew(rig: Rig, key: str) -> float:
    """What the device declares in a fresh process."""
    declared: float | None = alone(
        """
        import hal
        from hal.core.values import OpenOptions
        with hal.open(name, options=OpenOptions(settings=settings)) as device:
            result = device.info.declared.get(key)
        """,
        name=rig.name,
        settings=dict(rig.setting.settings),
        key=key,
    )
    if declared is None:
        raise expect.Wrong(f"the device declares {key}, and in a fresh process it does not")
    return declared


def _wrong(bench: Bench, key: str, value: float, crowd: float, made: float) -> str:
    """Why a figure is not what was declared or what the ratchet keeps, "" if it is. Where a thread
    gets on `crowd` times slower than alone, a figure may be as many times worse; where it did so
    `made` times when the figures were made, as many times better."""
    bench.rig.figures |= {key: value, f"declared {key}": bench.declared}
    low, high = band(key)
    low, high = low / crowd, high * made
    ratio = better(key, value, bench.declared)
    if not low <= ratio <= high:
        return (
            f"{key} measured {value:.4g}, declared {bench.declared:.4g}: {ratio:.2f} times as "
            f"good, allowed are {low:.2f} to {high:.3g}"
        )
    floor = bench.rig.setting.floors.get(key)
    if floor is not None and better(key, value, floor) * crowd < 1:
        return f"{key} measured {value:.4g}, the plugin's ratchet keeps it at {floor:.4g}"
    return ""


LEAST_RATE, MOST_RATE = 0.02, 1.5
"""What a plain loop of multiplications and additions reaches of a declared peak rate, at least, and
what nothing reaches."""


@declared_figures.case("rate", "describe.true", timed=True, timeout_s=60, dtype=FLOATS)
def _(rig: Rig, dtype: DType) -> None:
    """A declared peak rate is one that programs come near, and that none exceeds."""
    peak = rig.info.dtypes.get(dtype, 0.0)
    if not peak:
        raise expect.Unfit(f"the device declares no rate of {dtype.short}")
    most, end = 0.0, time.monotonic() + ROUNDS_S / 2
    while time.monotonic() < end:
        crowd = busy.factor_now()
        most = max(most, rate(rig, dtype) * crowd)
        if most > LEAST_RATE * peak:
            break
    share = most / peak
    text = (
        f"{dtype.short}: {most:.3g} operations/s measured, {peak:.3g} declared, {share:.3f} of it"
    )
    expect.that(share >= LEAST_RATE, f"{text}; a plain loop must reach {LEAST_RATE} of a peak rate")
    expect.that(share <= MOST_RATE * crowd, f"{text}; a peak rate is not exceeded")
