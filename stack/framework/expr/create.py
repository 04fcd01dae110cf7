"""Tensors made of nothing but numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework import within
from stack.framework.errors import TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr.public import operator


def arange(start: float, end: float, step: float, dtype: DType) -> Node:
    """start, start + step, ... below end (above it for a negative step)."""
    whole = [x for x in (start, end, step) if isinstance(x, int)]
    if len(whole) == 3 and step:
        n = max(0, -((whole[0] - whole[1]) // whole[2]))
    elif step == 0 or not math.isfinite((end - start) / (step or 1)):
        raise TensorError(f"arange({start}, {end}, {step}) does not end")
    else:
        n = max(0, math.ceil((end - start) / step))
    places = g.arange(n, dtype)
    if not dtype.is_float:
        start, step = int(start), int(step)
    scaled = places if step == 1 else e.mul(places, step)
    return scaled if start == 0 else e.add(scaled, start)


def linspace(start: float, end: float, steps: int, dtype: DType) -> Node:
    """`steps` evenly spaced numbers from start to end, both included; integers without what is
    behind the point."""
    if not dtype.is_float:
        return g.cast(linspace(int(start), int(end), steps, DType.F64), dtype)
    if steps < 2:
        return g.full((steps,), start, dtype)
    places, by = g.arange(steps, dtype), (end - start) / (steps - 1)
    up = e.add(e.mul(places, by), start)
    down = e.sub(end, e.mul(e.sub(float(steps - 1), places), by))
    return e.where(e.lt(places, steps // 2), up, down)


def eye(n: int, m: int, dtype: DType) -> Node:
    """1 on the diagonal of n rows and m columns, 0 elsewhere."""
    rows = g.reshape(g.arange(n), (n, 1))
    return g.cast(e.eq(rows, g.arange(m)), dtype)


def one_hot(index: Node, num_classes: int) -> Node:
    """int64: 1 at the position that each entry names along a new last axis, 0 elsewhere."""
    if not index.dtype.is_int:
        raise TensorError("one_hot takes an integer tensor; convert it with .long()")
    within.check(index, num_classes)
    places = g.reshape(index, (*index.shape, 1))
    return g.cast(e.eq(places, g.arange(num_classes, DType.I64)), DType.I64)


def _publish_new(name: str, value: float, doc: str) -> None:
    def new(x: Node, size: Sequence[int], *, dtype: DType | None = None) -> Node:
        return g.full(tuple(size), value, dtype or x.dtype)

    new.__doc__ = f"A tensor of this shape, of x's element type and device, {doc}."
    operator(name, function=False, sizes=True, aten=name)(new)


_publish_new("new_zeros", 0, "of zeros")
_publish_new("new_ones", 1, "of ones")
_publish_new("new_empty", 0, "whose elements are to be written; they are 0")


@operator(function=False, aten="new_full")
def new_full(
    x: Node, size: Sequence[int], fill_value: float, *, dtype: DType | None = None
) -> Node:
    """A tensor of this shape, of x's element type and device, of one number."""
    return g.full(tuple(size), fill_value, dtype or x.dtype)
