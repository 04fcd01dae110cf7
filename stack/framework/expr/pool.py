"""Pooling: windows of one to three axes reduced to one value each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr.operand import text
from stack.framework.expr.public import layer
from stack.framework.expr.windows import Sizes, each, windowed
from stack.ops.numeric import lowest


class _PoolWindows(NamedTuple):
    """Where the windows of d axes lie."""

    taps: list[int]
    steps: list[int]
    edges: list[int]
    apart: list[int]
    counts: list[int]
    behind: list[int]
    """Elements that windows need after an axis."""

    def of(self, x: Node, value: float) -> Node:
        """x [N, sizes] with its axes in windows and `value` around it: [N, counts, taps]."""
        d = len(self.taps)
        x = g.pad(x, (0, *self.edges), (0, *(max(0, b) for b in self.behind)), value)
        x = windowed(x, 1, self.taps, self.steps, self.apart)
        x = g.permute(x, (0, *range(1, 1 + 2 * d, 2), *range(2, 2 + 2 * d, 2)))
        return g.slice(x, (0,) * len(x.shape), (x.shape[0], *self.counts, *self.taps))

    def places(self, i: int) -> Node:
        """i64[counts[i], taps[i]]: the places on axis i, of which those around it are outside."""
        first = e.sub(e.mul(g.arange(self.counts[i]), self.steps[i]), self.edges[i])
        then = e.mul(g.arange(self.taps[i]), self.apart[i])
        return e.add(g.reshape(first, (self.counts[i], 1)), then)


def _windows(
    sizes: Sequence[int],
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
) -> _PoolWindows:
    d = len(sizes)
    taps, edges = each(kernel_size, d, "kernel_size"), each(padding, d, "padding")
    steps = taps if stride is None or stride == () else each(stride, d, "stride")
    apart, counts, behind = each(dilation, d, "dilation"), [], []
    for size, k, p, s, a in zip(sizes, taps, edges, steps, apart, strict=True):
        span = (k - 1) * a + 1
        if not 0 <= 2 * p <= span:
            raise TensorError(f"padding {p} is at most half of a window of {span}")
        free = size + 2 * p - span
        if free < 0 or s < 1:
            raise TensorError(f"a window of {span}, stride {s}, does not fit into {size} + 2 * {p}")
        count = (free + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode and (count - 1) * s >= size + p:  # it would begin behind the axis
            count -= 1
        counts.append(count)
        behind.append((count - 1) * s + span - size - p)
    return _PoolWindows(taps, steps, edges, apart, counts, behind)


def _planes(d: int, x: Node) -> tuple[Node, tuple[int, ...]]:
    """x as [N, sizes], and its leading axes."""
    if len(x.shape) not in (d + 1, d + 2):
        raise TensorError(f"input has {d + 1} or {d + 2} axes, got {text(x)}")
    lead = x.shape[:-d]
    return g.reshape(x, (math.prod(lead), *x.shape[-d:])), lead


def _max_pool(
    d: int,
    input: Node,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
    return_indices: bool,
) -> Any:
    x, lead = _planes(d, input)
    w = _windows(x.shape[1:], kernel_size, stride, padding, dilation, ceil_mode)
    v = w.of(x, lowest(x.dtype))
    taps = range(1 + d, 1 + 2 * d)
    best = g.reshape(g.extreme("max", v, taps), (*lead, *w.counts))
    if not return_indices:
        return best
    flat = g.reshape(v, (*v.shape[: 1 + d], math.prod(w.taps)))
    inside, places = _inside(w, x.shape[1:], d)
    hit = g.argmax(e.where(inside, flat, lowest(x.dtype)), -1)
    number = g.arange(math.prod(w.taps))
    chosen = e.where(e.eq(hit, number), g.expand(places, flat.shape), 0)
    index = g.reduce("sum", chosen, len(flat.shape) - 1)
    return [best, g.reshape(index, (*lead, *w.counts))]


def _inside(w: _PoolWindows, sizes: Sequence[int], d: int) -> tuple[Node, Node]:
    """[1, counts, all taps]: whether an element of a window is not padding, and its place in the
    plane."""
    shape = (*w.counts, *w.taps)
    inside, place = g.full(shape, True, DType.BOOL), g.full(shape, 0, DType.I64)
    for i, size in enumerate(sizes):
        line = [1] * (2 * d)
        line[i], line[d + i] = w.counts[i], w.taps[i]
        at = g.broadcast(g.reshape(w.places(i), line), shape)
        inside = g.and_(inside, g.and_(e.le(0, at), e.lt(at, size)))
        place = e.add(e.mul(place, size), at)
    flat = (1, *w.counts, math.prod(w.taps))
    return g.reshape(inside, flat), g.reshape(place, flat)


def _avg_pool(
    d: int,
    input: Node,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Node:
    x, lead = _planes(d, input)
    w = _windows(x.shape[1:], kernel_size, stride, padding, 1, ceil_mode)
    wide = g.cast(x, x.dtype.computed_in)
    total = g.reduce("sum", w.of(wide, 0), range(1 + d, 1 + 2 * d))
    total = g.reshape(total, (x.shape[0], *w.counts))
    if divisor_override == 0:
        raise TensorError("divisor_override is not 0")
    if divisor_override is not None:
        total = e.div(total, divisor_override)
    else:
        for i, size in enumerate(x.shape[1:]):
            number = _numbers(w, i, size, count_include_pad)
            line = [w.counts[i] if a == i else 1 for a in range(d)]
            total = e.div(total, number if isinstance(number, int) else g.reshape(number, line))
    return g.reshape(g.cast(total, x.dtype), (*lead, *w.counts))


def _numbers(w: _PoolWindows, i: int, size: int, padded: bool) -> Node | int:
    """How many elements of each window on axis i count: one number where it is the same for all."""
    p, k, s = w.edges[i], w.taps[i], w.steps[i]
    low, high = (-p, size + p) if padded else (0, size)
    spans = [(n * s - p, n * s - p + k) for n in (0, w.counts[i] - 1)]
    if all(low <= a and b <= high for a, b in spans):
        return k
    first = w.places(i)
    first = g.reshape(g.slice_axis(first, 1, 0, 1), (w.counts[i],))
    counted = e.sub(e.clamp(e.add(first, k), max=high), e.clamp(first, min=low))
    return g.cast(counted, DType.F32)


def _wanted(x: Node, output_size: Any) -> list[int]:
    """Into how many pieces each axis of x [N, sizes] is cut."""
    d = len(x.shape) - 1
    asked = [output_size] * d if isinstance(output_size, int) else list(output_size)
    return [n if o is None else o for o, n in zip(asked, x.shape[1:], strict=True)]


def _pieces(x: Node, axis: int, out: int) -> tuple[Node, Node | None]:
    """x with an axis as [out, places], and whether a place counts, bool[out, places], where not all
    do."""
    size = x.shape[axis]
    if out and size % out == 0:
        return g.reshape(x, (*x.shape[:axis], out, size // out, *x.shape[axis + 1 :])), None
    starts = e.floor_divide(e.mul(g.arange(out), size), out)
    ends = e.floor_divide(e.sub(e.mul(e.add(g.arange(out), 1), size), 1), out)
    most = max((-(-(o + 1) * size // out) - o * size // out for o in range(out)), default=1)
    places = e.add(g.reshape(starts, (out, 1)), g.arange(most))
    counts = e.le(places, g.reshape(ends, (out, 1)))
    return g.gather(x, e.clamp(places, max=size - 1), axis), counts


def adaptive_avg(d: int, input: Node, output_size: Any) -> Node:
    """The means of the pieces into which d axes are cut: sums along one axis after the other."""
    x, lead = _planes(d, input)
    wanted = _wanted(x, output_size)
    total = g.cast(x, x.dtype.computed_in)
    number = g.full((1,) * d, 1, total.dtype)
    for i, out in enumerate(wanted):
        total, counts = _pieces(total, 1 + i, out)
        places = g.full((out, total.shape[2 + i]), 1, total.dtype)
        if counts is not None:
            shape = (*[1] * (1 + i), *counts.shape, *[1] * (d - 1 - i))
            total = e.where(g.reshape(counts, shape), total, 0)
            places = g.cast(counts, total.dtype)
        total = g.reduce("sum", total, 2 + i)
        total = g.reshape(total, (*total.shape[: 2 + i], *total.shape[3 + i :]))
        line = tuple(out if a == i else 1 for a in range(d))
        number = e.mul(number, g.reshape(g.reduce("sum", places, 1), line))
    return g.reshape(g.cast(e.div(total, number), x.dtype), (*lead, *wanted))


def _counting(masks: Sequence[Node | None], shape: tuple[int, ...]) -> Node | None:
    """bool[1, outputs, places]: whether a place counts on every axis, where not all do."""
    d = len(masks)
    found = None
    for i, mask in enumerate(masks):
        if mask is not None:
            line = [1] * (1 + 2 * d)
            line[1 + i], line[1 + d + i] = mask.shape
            each = g.broadcast(g.reshape(mask, line), (1, *shape[1:]))
            found = each if found is None else g.and_(found, each)
    return found


def _adaptive_max(d: int, input: Node, output_size: Any, return_indices: bool) -> Any:
    x, lead = _planes(d, input)
    wanted = _wanted(x, output_size)
    masks = []
    for i, out in enumerate(wanted):
        x, mask = _pieces(x, 1 + 2 * i, out)
        masks.append(mask)
    x = g.permute(x, (0, *range(1, 1 + 2 * d, 2), *range(2, 2 + 2 * d, 2)))
    counts = _counting(masks, x.shape)
    v = x if counts is None else e.where(counts, x, lowest(x.dtype))
    best = g.reshape(g.extreme("max", v, range(1 + d, 1 + 2 * d)), (*lead, *wanted))
    if not return_indices:
        return best
    flat = g.reshape(v, (*v.shape[: 1 + d], math.prod(v.shape[1 + d :])))
    tap = g.reshape(g.argmax(flat, -1), (v.shape[0], *wanted))
    index = g.full_like(tap, 0)
    for i in range(d):
        size, most = input.shape[-d + i], v.shape[1 + d + i]
        later = math.prod(v.shape[2 + d + i :])
        line = [1] * (1 + d)
        line[1 + i] = wanted[i]
        start = e.floor_divide(e.mul(g.arange(wanted[i]), size), max(1, wanted[i]))
        at = e.add(e.remainder(e.floor_divide(tap, later), most), g.reshape(start, line))
        index = e.add(e.mul(index, size), at)
    return [best, g.reshape(index, (*lead, *wanted))]


def _publish(d: int) -> None:
    def max_pool(
        input: Node,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        return _max_pool(
            d, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices
        )

    def avg_pool(
        input: Node,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Node:
        return _avg_pool(
            d, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
        )

    def adaptive_avg_pool(input: Node, output_size: Any) -> Node:
        return adaptive_avg(d, input, output_size)

    def adaptive_max_pool(input: Node, output_size: Any, return_indices: bool = False) -> Any:
        return _adaptive_max(d, input, output_size, return_indices)

    def lp_pool(
        input: Node,
        norm_type: float,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        ceil_mode: bool = False,
    ) -> Node:
        mean = _avg_pool(d, e.pow(input, norm_type), kernel_size, stride, 0, ceil_mode, True, None)
        return e.pow(e.mul(mean, math.prod(each(kernel_size, d, "kernel_size"))), 1 / norm_type)

    documented: dict[Callable[..., Any], str] = {
        max_pool: "The greatest element of each window, around which -inf is thought; with "
        "return_indices also its place in the plane. The gradient goes to the first such element.",
        avg_pool: "The mean of each window. Zeros around the axes count unless "
        "count_include_pad is False; divisor_override is divided by instead.",
        lp_pool: "The norm_type-th root of the sum of such powers of each window.",
        adaptive_avg_pool: "The means of the pieces into which axes are cut, as many as "
        "output_size says; None keeps an axis.",
        adaptive_max_pool: "The greatest elements of the pieces into which axes are cut, as many "
        "as output_size says; with return_indices also their places in the plane.",
    }
    onnx = {max_pool: "MaxPool", avg_pool: "AveragePool", lp_pool: "LpPool"}
    for function, doc in documented.items():
        function.__name__, function.__doc__ = f"{function.__name__}{d}d", doc
        layer(aten=function.__name__, onnx=onnx.get(function, ""))(function)


for _d in (1, 2, 3):
    _publish(_d)
