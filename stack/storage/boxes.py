"""Which part of a whole tensor a rank has, and the runs of bytes that this is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.facts import dataclass
from stack.storage.errors import StorageError

Array = NDArray[Any]
ReadPieces = Callable[[Sequence[tuple[int, NDArray[np.uint8]]]], None]
"""Fills each memory with the bytes of a part from that byte on, as they lie in a C-contiguous
array."""
Rows = list[tuple[int, int, int, int, int]]
"""One row per comb of runs: start, run, count, stride, local. A comb is `count` runs of `run` bytes
whose starts are `stride` bytes apart, from byte `start` of the whole on; in the part they lie one
after the other from byte `local` on."""


@dataclass(frozen=True, slots=True)
class Box:
    """Elements from `offsets` on, `lengths` of them along each dimension."""

    offsets: tuple[int, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FlatRange:
    """Elements `start` to `stop` of the flattened tensor, as ZeRO cuts it."""

    start: int
    stop: int


def lengths_of(part: Box | FlatRange) -> tuple[int, ...]:
    """The shape of an array that has the elements of a part."""
    return part.lengths if isinstance(part, Box) else (part.stop - part.start,)


@dataclass(frozen=True, slots=True)
class TensorShard:
    """A rank's part of a tensor of shape `shape`: `array` has the elements of `part`, in their
    order; it is C-contiguous for loading into. Where elements come from a device, `array` is a
    function that reads them, called at most once while a save is staged."""

    array: Array | ReadPieces
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    part: Box | FlatRange

    @classmethod
    def whole(cls, array: Array) -> TensorShard:
        """All of a tensor."""
        return cls(array, array.shape, array.dtype, Box((0,) * array.ndim, array.shape))

    @classmethod
    def box(cls, array: Array, shape: tuple[int, ...], offsets: tuple[int, ...]) -> TensorShard:
        """The box of a tensor that begins at `offsets` and is as large as the array."""
        return cls(array, shape, array.dtype, Box(offsets, array.shape))

    @classmethod
    def flat(cls, array: Array, shape: tuple[int, ...], start: int) -> TensorShard:
        """The elements of the flattened tensor from `start` on, in an array of one dimension."""
        return cls(array, shape, array.dtype, FlatRange(start, start + array.size))


def rows_of(shape: tuple[int, ...], itemsize: int, part: Box | FlatRange, name: str = "") -> Rows:
    """The runs of a part of a tensor; none for an empty part. Raises StorageError for a part that
    does not lie in the tensor."""
    if isinstance(part, FlatRange):
        if not 0 <= part.start <= part.stop <= prod(shape):
            raise StorageError(f"{name}: {part} is no range of a tensor of shape {shape}")
        n = (part.stop - part.start) * itemsize
        return [(part.start * itemsize, n, 1, n, 0)] if n else []
    offsets, lengths = part.offsets, part.lengths
    if shape and lengths[1:] == shape[1:] and not any(offsets[1:]):  # rows, by far the most
        first, n = offsets[0], lengths[0]
        run = prod(lengths) * itemsize
        if 0 <= first <= first + n <= shape[0] and len(offsets) == len(shape):
            return [(first * (run // n), run, 1, run, 0)] if run else []
    inside = len(offsets) == len(lengths) == len(shape) and all(
        o >= 0 and n >= 0 and o + n <= s for o, n, s in zip(offsets, lengths, shape, strict=True)
    )
    if not inside:
        raise StorageError(f"{name}: {part} is no box of a tensor of shape {shape}")
    if 0 in lengths:
        return []
    strides, at = [0] * len(shape), itemsize
    for d in reversed(range(len(shape))):
        strides[d], at = at, at * shape[d]
    start = sum(o * s for o, s in zip(offsets, strides, strict=True))
    d, run = len(shape) - 1, itemsize
    while d >= 0 and lengths[d] == shape[d]:  # whole dimensions inside are one run
        run, d = run * shape[d], d - 1
    if d >= 0:
        run, d = run * lengths[d], d - 1
    count, stride = 1, run
    if d >= 0:
        count, stride = lengths[d], strides[d]
        while d > 0 and lengths[d] == shape[d]:
            d -= 1
            count *= lengths[d]
        d -= 1
    if d < 0:
        return [(start, run, count, stride, 0)]
    outer = np.indices(lengths[: d + 1]).reshape(d + 1, -1)  # the dimensions around a comb
    starts = start + np.asarray(strides[: d + 1]) @ outer
    return [(at, run, count, stride, i * run * count) for i, at in enumerate(starts.tolist())]
