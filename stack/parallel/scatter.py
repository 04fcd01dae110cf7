"""Values of the host cut into those of the ranks, and put together again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.tile.node import Type
from stack.parallel.placement import Packed, Partial, Placement, Row, Sharded

Array = NDArray[Any]

_BY = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def placed_value(x: Array, placement: Placement, ranks: int, rank: int) -> Array:
    """What rank `rank` has of a value; gaps hold 0. A value that is Partial is on rank 0. Of a flat
    array in which ranks own parts, `placement` is the one that this rank has for it."""
    match placement:
        case Sharded(axis, major):
            count = placement.pieces(ranks)
            split = x.reshape(_split(x.shape, axis, major, count))
            chosen = np.take(split, [rank, count - 1 - rank][: count // ranks], axis + 1)
            shape = (*x.shape[:axis], x.shape[axis] // ranks, *x.shape[axis + 1 :])
            return np.ascontiguousarray(chosen.reshape(shape))
        case Row(size):
            flat = np.zeros(size, x.dtype)
            flat[: x.size] = x.reshape(-1)
            return np.ascontiguousarray(flat.reshape(ranks, -1)[rank])
        case Packed(parts):
            pieces, begin = [], 0
            for part in parts:
                own = np.zeros(part.local, x.dtype)
                if part.local:
                    given = placed_value(x[begin : begin + part.count], part.placement, ranks, rank)
                    own[: given.size] = given
                pieces.append(own)
                begin += part.size
            return np.concatenate(pieces) if pieces else x
        case Partial():
            return x if rank == 0 else np.zeros_like(x)
        case _:
            return x


def whole_value(values: Sequence[Array], placement: Placement, type: Type) -> Array:
    """The value of which these are the ranks' parts. Gaps hold 0."""
    ranks = len(values)
    match placement:
        case Sharded(axis, major):
            each = placement.pieces(ranks) // ranks
            part = values[0].shape[axis] // major // each
            shape = (*values[0].shape[:axis], major, each, part, *values[0].shape[axis + 1 :])
            split = [v.reshape(shape) for v in values]
            chunks = [np.take(v, 0, axis + 1) for v in split]
            if placement.zigzag:
                chunks += [np.take(v, 1, axis + 1) for v in reversed(split)]
            return np.stack(chunks, axis + 1).reshape(type.shape)
        case Row():
            return np.concatenate(values)[: type.size].reshape(type.shape)
        case Packed(parts):
            whole, begin, local = np.zeros(type.shape, values[0].dtype), 0, 0
            for part in parts:
                own = [v[local : local + part.local] for v in values]
                if isinstance(part.placement, Sharded):
                    own = [v[: part.count // ranks] for v in own]
                count = Type((part.count,), type.dtype)
                if isinstance(part.placement, Sharded | Row):
                    found = whole_value(own, part.placement, count)
                else:
                    found = own[0][: part.count]
                whole[begin : begin + part.count] = found
                begin += part.size
                local += part.local
            return whole
        case Partial(by):
            return np.asarray(reduce(_BY[by], values))
        case _:
            return values[0]


def in_place(value: Array, placement: Packed) -> Array:
    """A flat value of which a rank owns parts, with 0 where it has none."""
    whole = np.zeros(sum(part.size for part in placement.parts), value.dtype)
    begin = local = 0
    for part in placement.parts:
        own = min(part.local, part.count)
        whole[begin : begin + own] = value[local : local + own]
        begin, local = begin + part.size, local + part.local
    return whole


def _split(shape: Sequence[int], axis: int, major: int, pieces: int) -> tuple[int, ...]:
    part = shape[axis] // major // pieces
    return (*shape[:axis], major, pieces, part, *shape[axis + 1 :])
