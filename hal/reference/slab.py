"""Slabs: what nobody wrote, and what was given back, is spoiled, so that its use shows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hal.core.values import AllocOptions
from hal.hosted.slab import Slab, Slabs
from hal.reference.describe import GRANULARITY, PLUGIN

SLABS = Slabs(PLUGIN, GRANULARITY)

_POISON = 0xA5
_POISONED_NBYTES = 1 << 20


def allocated(nbytes: int, options: AllocOptions) -> Slab:
    """New memory, spoiled unless it is to be zero."""
    slab = SLABS.allocated(nbytes, options)
    if not options.zero:
        _spoil(slab.array)
    return slab


def released(slab: Slab) -> None:
    """Spoil what was the device's alone, and give it back."""
    if slab.own:
        _spoil(slab.array)
    slab.release()


def _spoil(array: NDArray[np.uint8]) -> None:
    array[:_POISONED_NBYTES] = _POISON
