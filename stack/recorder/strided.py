"""Which window on a row of elements has given strides: how memory is described elsewhere."""

from __future__ import annotations

from math import gcd, prod

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from stack import ops as g
from stack.recorder.window import Shape, Window, steps_between


def strided(size: int, shape: Shape, strides: Shape, offset: int) -> Window | None:
    """The window on `size` elements in a row that shows, at each index of `shape`, the element
    offset + sum(index * stride). None where axes overlap, where a stride is negative, or where no
    chain of movements leads there; `places` always does. Not for shapes without elements."""
    whole = g.input(0, Type((size,), DType.F32))
    if strides == (1,) and not offset and shape == (size,):
        return Window.whole(shape)
    runs: list[tuple[int, int]] = []  # elements, and between two of them; the outer ones first
    axes = sorted((-s, a) for a, (n, s) in enumerate(zip(shape, strides, strict=True)) if n > 1)
    moving = [a for s, a in axes if s]
    for a in moving:
        n, s = shape[a], strides[a]
        if runs and runs[-1][1] == n * s:
            runs[-1] = (runs[-1][0] * n, s)
        else:
            runs.append((n, s))
    reach = [sum((n - 1) * s for n, s in runs[i:]) for i in range(len(runs) + 1)]
    if offset < 0 or offset + reach[0] >= size or any(s < 0 for s in strides):
        return None
    part: Node = whole
    done: Shape = ()
    for (n, s), rest in zip(runs, reach[1:], strict=True):
        if rest >= s:
            return None
        block = part.shape[-1]
        inner = gcd(s, block)
        if offset % inner + rest >= inner:  # the block is no whole number of what the stride spans
            before = max(0, offset + n * s - block)
            if offset < before or before + rest >= s:
                return None
            part = g.slice_axis(part, -1, offset - before, offset - before + n * s)
            offset, block, inner = before, n * s, s
        part = g.reshape(part, (*done, block // inner, inner))
        first, by = offset // inner, s // inner
        part = g.slice_axis(part, -2, first, first + (n - 1) * by + 1, by)
        done, offset = (*done, n), offset % inner
    part = g.slice_axis(part, -1, offset, offset + 1)
    part = g.reshape(part, tuple(shape[a] for a in moving))
    part = g.permute(part, sorted(range(len(moving)), key=moving.__getitem__))
    ones = tuple(n if a in moving else 1 for a, n in enumerate(shape))
    part = g.expand(g.reshape(part, ones), shape)
    steps = steps_between(whole, part)
    return None if steps is None else Window(shape, strides, offset, steps)


def places(shape: Shape, strides: Shape, offset: int) -> Node:
    """i64[elements]: where in the row each element of the window lies."""
    at = g.full(shape, offset, DType.I64)
    for a, (n, s) in enumerate(zip(shape, strides, strict=True)):
        line = g.mul(g.arange(n, DType.I64), g.full((n,), s, DType.I64))
        ones = tuple(n if i == a else 1 for i in range(len(shape)))
        at = g.add(at, g.expand(g.reshape(line, ones), shape))
    return g.reshape(at, (prod(shape),))
