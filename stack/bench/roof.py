"""The roofline of a device: what no operator can exceed, by the operations that it does for each
byte (Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hal.core.description import SpaceKind
from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Type
from stack import ops as build
from stack.bench.clock import time_of
from stack.compiler.program import GraphRequest
from stack.runtime import Engine

MOVED_NBYTES = 256 << 20
"""What is read to measure a memory whose rate is not known: more than caches hold."""


@dataclass(frozen=True, slots=True)
class Roof:
    """`peaks` in operations/s by element type, without those that are not known; `bandwidth` of the
    memory in bytes/s, and where that figure comes from."""

    peaks: Mapping[DType, float]
    bandwidth: float
    source: str

    def seconds(self, dtype: DType, flops: int, nbytes: int) -> float:
        """The least time in which so much can be done: the longer of computing and moving."""
        moving, peak = nbytes / self.bandwidth, self.peaks.get(dtype)
        return max(moving, flops / peak) if peak else moving


def roof_of(engine: Engine) -> Roof:
    """By the device's description; a bandwidth that it does not know is measured now, as the better
    of reading alone (a sum) and of a copy."""
    info = engine.device.info
    peaks = {dtype: rate for dtype, rate in info.dtypes.items() if rate}
    space = info.space(SpaceKind.GLOBAL)
    if declared := space.bandwidth if space else 0.0:
        return Roof(peaks, declared, "as declared")
    # Bytes/s read by a sum of float32.
    x = build.input(0, Type((MOVED_NBYTES // 4,), DType.F32))
    plan = engine.plan(GraphRequest((build.reduce("sum", x),), (x,)))
    array = engine.put(np.ones(x.shape, np.float32), DType.F32)
    # Bytes/s read and written by a copy within the device's memory
    nbytes = MOVED_NBYTES // 2
    dst, src = (engine.put(np.ones(nbytes, np.uint8), DType.U8) for _ in range(2))
    rate = max(
        MOVED_NBYTES / time_of(engine, lambda: plan.run([array])).seconds,
        2 * nbytes / time_of(engine, lambda: engine.stream.copy(dst.region, src.region)).seconds,
    )
    return Roof(peaks, rate, f"measured with {MOVED_NBYTES >> 20} MiB")
