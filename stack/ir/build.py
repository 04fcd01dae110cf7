"""One constructor for each graph operation; it checks operands by `stack.ir.types`.

Constructors raise GraphError. Operands of an elementwise operation have one shape and element type:
expand and cast are explicit. Axes may be negative and count from the end. A movement, cast or
reduction that changes nothing gives its operand itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hal.core.dtypes import DType
from hal.tile.node import Node, Type, node
from stack.ir.error import GraphError
from stack.ir.numeric import canonical
from stack.ir.types import infer

Number = float | int | bool


def make(op: str, srcs: Sequence[Node], asked: Type | None = None, **attrs: Any) -> Node:
    """Any operation by name, type-checked; `asked` as in `infer`."""
    operands = tuple(srcs)
    return node(op, infer(op, [s.type for s in operands], attrs, asked), operands, **attrs)


def axis_of(axis: int, rank: int) -> int:
    """A non-negative axis. Raises GraphError when there is no such axis."""
    if not -rank <= axis < rank:
        raise GraphError(f"axis {axis} is not one of {rank} axes")
    return axis % rank


def axes_of(axes: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Sorted, non-negative, different axes; None means all of them."""
    if axes is None:
        return tuple(range(rank))
    each = (axes,) if isinstance(axes, int) else axes
    return tuple(sorted({axis_of(a, rank) for a in each}))


# leaves


def input(slot: int, type: Type) -> Node:
    """The argument number `slot` of the graph."""
    return make("input", (), type, slot=slot)


def const(value: Number, dtype: DType) -> Node:
    """A scalar, rounded to the element type."""
    return make("const", (), Type((), dtype), value=canonical(value, dtype))


def arange(n: int, dtype: DType = DType.I64) -> Node:
    """0, 1, ..., n-1 converted to the element type."""
    return make("arange", (), Type((n,), dtype))


def full(shape: Sequence[int], value: Number, dtype: DType) -> Node:
    """A constant repeated to a shape."""
    return broadcast(const(value, dtype), shape)


def full_like(x: Node, value: Number) -> Node:
    """A constant of x's shape and element type."""
    return full(x.shape, value, x.dtype)


# elementwise


def unary(op: str, x: Node) -> Node:
    """An elementwise operation of one operand, by name."""
    return make(op, (x,))


def binary(op: str, a: Node, b: Node) -> Node:
    """An elementwise operation of two operands, by name; comparisons give bool."""
    return make(op, (a, b))


def neg(x: Node) -> Node:
    return unary("neg", x)


def abs(x: Node) -> Node:
    return unary("abs", x)


def exp(x: Node) -> Node:
    return unary("exp", x)


def log(x: Node) -> Node:
    return unary("log", x)


def sin(x: Node) -> Node:
    return unary("sin", x)


def cos(x: Node) -> Node:
    return unary("cos", x)


def tanh(x: Node) -> Node:
    return unary("tanh", x)


def erf(x: Node) -> Node:
    return unary("erf", x)


def sqrt(x: Node) -> Node:
    return unary("sqrt", x)


def rsqrt(x: Node) -> Node:
    return unary("rsqrt", x)


def recip(x: Node) -> Node:
    return unary("recip", x)


def floor(x: Node) -> Node:
    return unary("floor", x)


def ceil(x: Node) -> Node:
    return unary("ceil", x)


def round(x: Node) -> Node:
    return unary("round", x)


def not_(x: Node) -> Node:
    return unary("not", x)


def add(a: Node, b: Node) -> Node:
    return binary("add", a, b)


def sub(a: Node, b: Node) -> Node:
    return binary("sub", a, b)


def mul(a: Node, b: Node) -> Node:
    return binary("mul", a, b)


def div(a: Node, b: Node) -> Node:
    return binary("div", a, b)


def floordiv(a: Node, b: Node) -> Node:
    return binary("floordiv", a, b)


def mod(a: Node, b: Node) -> Node:
    return binary("mod", a, b)


def pow(a: Node, b: Node) -> Node:
    return binary("pow", a, b)


def minimum(a: Node, b: Node) -> Node:
    return binary("min", a, b)


def maximum(a: Node, b: Node) -> Node:
    return binary("max", a, b)


def and_(a: Node, b: Node) -> Node:
    return binary("and", a, b)


def or_(a: Node, b: Node) -> Node:
    return binary("or", a, b)


def xor(a: Node, b: Node) -> Node:
    return binary("xor", a, b)


def shl(a: Node, b: Node) -> Node:
    return binary("shl", a, b)


def shr(a: Node, b: Node) -> Node:
    return binary("shr", a, b)


def eq(a: Node, b: Node) -> Node:
    return binary("eq", a, b)


def ne(a: Node, b: Node) -> Node:
    return binary("ne", a, b)


def lt(a: Node, b: Node) -> Node:
    return binary("lt", a, b)


def le(a: Node, b: Node) -> Node:
    return binary("le", a, b)


def where(condition: Node, a: Node, b: Node) -> Node:
    """a where the condition holds, else b."""
    return make("where", (condition, a, b))


def cast(x: Node, dtype: DType) -> Node:
    """x converted to another element type."""
    return x if x.dtype is dtype else make("cast", (x,), x.type.with_dtype(dtype))


def bitcast(x: Node, dtype: DType) -> Node:
    """x's bits read as another element type of the same width."""
    return x if x.dtype is dtype else make("bitcast", (x,), x.type.with_dtype(dtype))


def philox(counter: Node, key: Node) -> Node:
    """u32 random words of u64 operands: word (counter & 3) of Philox4x32-10 block (counter >>
    2)."""
    return make("philox", (counter, key))


# movement


def reshape(x: Node, shape: Sequence[int]) -> Node:
    """x's elements in row-major order under another shape of the same size."""
    wanted = tuple(shape)
    return x if wanted == x.shape else make("reshape", (x,), x.type.with_shape(wanted))


def permute(x: Node, perm: Sequence[int]) -> Node:
    """Axis i of the result is axis perm[i] of x."""
    order = tuple(axis_of(p, len(x.shape)) for p in perm)
    return x if order == tuple(range(len(x.shape))) else make("permute", (x,), perm=order)


def transpose(x: Node, a: int = -2, b: int = -1) -> Node:
    """x with two axes exchanged."""
    order = list(range(len(x.shape)))
    i, j = axis_of(a, len(order)), axis_of(b, len(order))
    order[i], order[j] = j, i
    return permute(x, order)


def expand(x: Node, shape: Sequence[int]) -> Node:
    """x with axes of size 1 repeated; the shape has x's rank."""
    wanted = tuple(shape)
    return x if wanted == x.shape else make("expand", (x,), x.type.with_shape(wanted))


def broadcast(x: Node, shape: Sequence[int]) -> Node:
    """x repeated to a shape by numpy's rules: a reshape that adds leading axes, then an expand."""
    lead = len(shape) - len(x.shape)
    if lead < 0:
        raise GraphError(f"broadcast: {x.type} has more axes than {tuple(shape)}")
    return expand(reshape(x, (1,) * lead + x.shape), shape)


def slice(
    x: Node, start: Sequence[int], stop: Sequence[int], step: Sequence[int] | None = None
) -> Node:
    """x[start:stop:step] on every axis; 0 <= start <= stop <= size, step > 0 (1 without one)."""
    by = (1,) * len(x.shape) if step is None else tuple(step)
    lo, hi = tuple(start), tuple(stop)
    if lo == (0,) * len(x.shape) and hi == x.shape and by == (1,) * len(x.shape):
        return x
    return make("slice", (x,), start=lo, stop=hi, step=by)


def slice_axis(x: Node, axis: int, start: int, stop: int, step: int = 1) -> Node:
    """A slice of one axis."""
    a, ones = axis_of(axis, len(x.shape)), (1,) * len(x.shape)
    lo = tuple(start if i == a else 0 for i in range(len(ones)))
    hi = tuple(stop if i == a else n for i, n in enumerate(x.shape))
    return slice(x, lo, hi, (*ones[:a], step, *ones[a + 1 :]))


def flip(x: Node, axes: int | Sequence[int]) -> Node:
    """x with these axes reversed."""
    each = axes_of(axes, len(x.shape))
    return make("flip", (x,), axes=each) if each else x


def pad(x: Node, lo: Sequence[int], hi: Sequence[int], value: Number = 0) -> Node:
    """x surrounded by `value`: lo[i] elements before and hi[i] after on axis i."""
    if not any((*lo, *hi)) and len(lo) == len(hi) == len(x.shape):
        return x
    return make("pad", (x,), lo=tuple(lo), hi=tuple(hi), value=canonical(value, x.dtype))


def dilate(x: Node, axis: int, step: int) -> Node:
    """x with step - 1 zeros between neighbours along the axis."""
    a = axis_of(axis, len(x.shape))
    if step == 1 or x.shape[a] == 1:
        return x
    before, size, after = x.shape[:a], x.shape[a], x.shape[a + 1 :]
    apart = reshape(x, (*before, size, 1, *after))
    zeros = tuple(step - 1 if i == a + 1 else 0 for i in range(len(apart.shape)))
    joined = reshape(pad(apart, (0,) * len(zeros), zeros), (*before, size * step, *after))
    return slice_axis(joined, a, 0, (size - 1) * step + 1)


def window(x: Node, axis: int, size: int, stride: int = 1, dilation: int = 1) -> Node:
    """The windows of an axis: in its place the number of a window, then `size` elements of it, each
    `dilation` after the one before; a window begins `stride` after the one before."""
    a = axis_of(axis, len(x.shape))
    return make("window", (x,), axis=a, size=size, stride=stride, dilation=dilation)


def overlap_add(x: Node, axis: int, length: int, stride: int = 1, dilation: int = 1) -> Node:
    """The adjoint of `window`: the windows that two neighbouring axes hold, the second one their
    elements, added up where they came from in an axis of `length`."""
    a = axis_of(axis, len(x.shape) - 1)
    return make("overlap_add", (x,), axis=a, length=length, stride=stride, dilation=dilation)


def concat(parts: Sequence[Node], axis: int) -> Node:
    """The parts one after the other along an axis."""
    if len(parts) == 1:
        return parts[0]
    return make("concat", parts, axis=axis_of(axis, len(parts[0].shape)) if parts else axis)


def contiguous(x: Node) -> Node:
    """x, as a buffer of its own."""
    return make("contiguous", (x,))


# reductions, products, indexing


def reduce(kind: str, x: Node, axes: int | Sequence[int] | None = None) -> Node:
    """x combined over axes (all without any) by sum, prod, min or max; they stay as size 1."""
    each = axes_of(axes, len(x.shape))
    return make("reduce", (x,), kind=kind, axes=each) if each else x


def argmax(x: Node, axis: int) -> Node:
    """The i64 position of the first greatest element or NaN; the axis stays as size 1."""
    return make("argmax", (x,), axis=axis_of(axis, len(x.shape)))


def argmin(x: Node, axis: int) -> Node:
    """The i64 position of the first least element or NaN; the axis stays as size 1."""
    return make("argmin", (x,), axis=axis_of(axis, len(x.shape)))


def scan(kind: str, x: Node, axis: int) -> Node:
    """Inclusive prefix sum, prod, min or max along an axis."""
    return make("scan", (x,), kind=kind, axis=axis_of(axis, len(x.shape)))


def matmul(a: Node, b: Node, dtype: DType | None = None) -> Node:
    """a[*B,M,K] @ b[*B,K,N]; f16 and bf16 accumulate in f32 and may give f32 with `dtype`."""
    return make("matmul", (a, b), None if dtype is None else Type((), dtype))


def gather(x: Node, index: Node, axis: int) -> Node:
    """x's slices at `index` (i32 or i64) along an axis; out of range, negative included, gives 0.

    The shape is x.shape[:axis] + index.shape + x.shape[axis+1:].
    """
    return make("gather", (x, index), axis=axis_of(axis, len(x.shape)))


def scatter_add(base: Node, index: Node, updates: Node, axis: int) -> Node:
    """base with updates, of the shape that gather gives, added at `index`; others are ignored."""
    return make("scatter_add", (base, index, updates), axis=axis_of(axis, len(base.shape)))


# between ranks


def all_reduce(kind: str, x: Node, group: str, name: str = "") -> Node:
    """x combined element by element with those of the group's other ranks, by sum, prod, min, max
    or avg. All ranks of the group compute it, in the same order among all such nodes; `name` is
    what all of them call it, and ranks that combine values of two names are told so."""
    return make("all_reduce", (x,), kind=kind, group=group, name=name)
