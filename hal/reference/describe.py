"""What a device says about itself."""

from __future__ import annotations

from hal.core.description import (
    FUNCTIONS,
    DeviceInfo,
    Feature,
    Limits,
    Link,
    MemorySpace,
    NumericProfile,
    SpaceKind,
)
from hal.core.dtypes import DType
from hal.core.values import HAL_TILE
from hal.hosted.describe import ACCUMULATE

PLUGIN = "reference"
DESCRIPTION = "interpreter of hal-tile/1"
GRANULARITY = 64
SCRATCHPAD_NBYTES = 1 << 20
GRID = (4096, 64, 64)
FEATURES = frozenset(Feature) - {Feature.OPERATORS, Feature.GROUP_IPC}

_ROUNDED = ("add", "mul", "div", "sqrt", "fma")
"""Functions that are rounded once; the others are float64 results rounded to float32."""


def describe(index: int, count: int, nbytes: int, progress_s: float) -> DeviceInfo:
    """The description of one of `count` devices with `nbytes` of memory, on which an instance may
    take `progress_s` seconds."""
    return DeviceInfo(
        name=f"{PLUGIN}:{index}",
        plugin=PLUGIN,
        description=DESCRIPTION,
        fingerprint=HAL_TILE,
        contract=1,
        limits=Limits(
            GRID, 128, nbytes, queues=256, instances=1, progress_s=progress_s, vector_nbytes=256
        ),
        spaces=(
            MemorySpace("memory", SpaceKind.GLOBAL, nbytes, GRANULARITY, host_visible=True),
            MemorySpace("scratchpad", SpaceKind.SCRATCHPAD, SCRATCHPAD_NBYTES, GRANULARITY),
        ),
        dtypes=dict.fromkeys(DType, 0.0),
        numeric=NumericProfile(
            ulp={name: 0.5 if name in _ROUNDED else 0.51 for name in FUNCTIONS},
            denormals=True,
            fma=False,
            accumulate=ACCUMULATE,
        ),
        formats=(HAL_TILE,),
        features=FEATURES,
        links=tuple(Link(f"{PLUGIN}:{i}", "memory", 0, 0) for i in range(count) if i != index),
    )
