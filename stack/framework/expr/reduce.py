"""Reductions, softmax and cumulative sums."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import RangeError, TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr.operand import Dims, Number, as_float, axes, axis, once
from stack.framework.expr.public import operator
from stack.framework.modes import autocast_dtype
from stack.framework.store import barrier


def _fold(kind: str, x: Node, dim: Dims, keepdim: bool) -> Node:
    return _dropped(g.reduce(kind, x, axes(dim, len(x.shape))), dim, keepdim)


def _dropped(x: Node, dim: Dims, keepdim: bool) -> Node:
    """x without the axes of size 1 that a reduction left."""
    gone = axes(dim, len(x.shape))
    kept = [n for i, n in enumerate(x.shape) if i not in gone]
    return x if keepdim else g.reshape(x, kept)


def _count(x: Node, dim: Dims) -> int:
    return math.prod(x.shape[a] for a in axes(dim, len(x.shape)))


@operator(aten="sum", onnx="ReduceSum")
def sum(x: Node, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Node:
    """The sum over axes (all without any); bool and integers are added as int64."""
    return _fold("sum", g.cast(x, dtype or _summed(x)), dim, keepdim)


@operator(aten="prod", onnx="ReduceProd")
def prod(x: Node, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Node:
    """The product over axes (all without any); bool and integers are multiplied as int64."""
    return _fold("prod", g.cast(x, dtype or _summed(x)), dim, keepdim)


def _summed(x: Node) -> DType:
    """The element type in which elements are added up."""
    return x.dtype if x.dtype.is_float else DType.I64


@operator(aten="mean", onnx="ReduceMean")
def mean(x: Node, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Node:
    """The mean over axes (all without any). Raises TensorError for integers."""
    x = x if dtype is None else g.cast(x, dtype)
    if not x.dtype.is_float:
        raise TensorError("mean needs a float tensor; convert it with .float()")
    total, n = sum(g.cast(x, x.dtype.computed_in), dim, keepdim), _count(x, dim)
    return g.cast(e.mul(total, 1 / n if n else math.nan), x.dtype)


@operator(aten="amax", onnx="ReduceMax")
def amax(x: Node, dim: Dims = None, keepdim: bool = False) -> Node:
    """The greatest element over axes (all without any); NaN where there is one."""
    return _fold_some("max", x, dim, keepdim)


@operator(aten="amin", onnx="ReduceMin")
def amin(x: Node, dim: Dims = None, keepdim: bool = False) -> Node:
    """The least element over axes (all without any); NaN where there is one."""
    return _fold_some("min", x, dim, keepdim)


def _fold_some(kind: str, x: Node, dim: Dims, keepdim: bool) -> Node:
    if _count(x, dim) == 0:
        error = TensorError if dim is None else RangeError
        raise error(f"no element to choose from in {list(x.shape)} over dim {dim}")
    return _fold(kind, x, dim, keepdim)


class Extreme(NamedTuple):
    """What max and min along an axis give."""

    values: Any
    """The greatest or least elements."""
    indices: Any
    """int64: their positions along the axis."""


@operator(aten="max", onnx="ReduceMax")
def max(x: Node, dim: Any = None, keepdim: bool = False) -> Any:
    """The greatest element; with an axis (values, indices) along it; with a tensor `maximum`."""
    if isinstance(dim, Node):
        return e.maximum(x, dim)
    return amax(x) if dim is None else _extreme("max", x, dim, keepdim, argmax)


@operator(aten="min", onnx="ReduceMin")
def min(x: Node, dim: Any = None, keepdim: bool = False) -> Any:
    """The least element; with an axis (values, indices) along it; with a tensor `minimum`."""
    if isinstance(dim, Node):
        return e.minimum(x, dim)
    return amin(x) if dim is None else _extreme("min", x, dim, keepdim, argmin)


def _extreme(kind: str, x: Node, dim: int, keepdim: bool, place: Callable[..., Node]) -> Extreme:
    """Along one axis; the derivative flows to the element whose place is given."""
    if _count(x, dim) == 0:
        raise RangeError(f"no element to choose from in {list(x.shape)} over dim {dim}")
    best = g.extreme(kind, x, axes(dim, len(x.shape)))
    ordered = g.cast(x, DType.U8) if x.dtype is DType.BOOL else x
    return Extreme(_dropped(best, dim, keepdim), place(ordered, dim, keepdim))


@operator(aten="argmax", onnx="ArgMax")
def argmax(x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
    """The int64 position of the first greatest element along an axis (of the flattened tensor
    without one)."""
    return _arg(g.argmax, x, dim, keepdim)


@operator(aten="argmin", onnx="ArgMin")
def argmin(x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
    """The int64 position of the first least element along an axis (of the flattened tensor without
    one)."""
    return _arg(g.argmin, x, dim, keepdim)


def _arg(op: object, x: Node, dim: int | None, keepdim: bool) -> Node:
    assert callable(op)
    if dim is None or not x.shape:
        if not x.type.size:
            raise RangeError(f"no element to choose from in {list(x.shape)}")
        found = op(g.reshape(x, (x.type.size,)), 0)
        return g.reshape(found, (1,) * len(x.shape) if keepdim else ())
    a = axis(dim, len(x.shape))
    if not x.shape[a]:
        raise RangeError(f"no element to choose from in {list(x.shape)} over dim {dim}")
    found = op(x, a)
    return _dropped(found, a, keepdim)


@operator(aten="any")
def any_(x: Node, dim: Dims = None, keepdim: bool = False) -> Node:
    """Whether some element is not 0, as bool; of uint8 as 0 or 1."""
    return _flag(x, _fold("max", g.cast(x, DType.BOOL), dim, keepdim))


@operator(aten="all")
def all_(x: Node, dim: Dims = None, keepdim: bool = False) -> Node:
    """Whether no element is 0, as bool; of uint8 as 0 or 1."""
    return _flag(x, _fold("min", g.cast(x, DType.BOOL), dim, keepdim))


def _flag(x: Node, found: Node) -> Node:
    return g.cast(found, x.dtype) if x.dtype is DType.U8 else found


@operator(aten="var")
def var(
    x: Node,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: Number | None = 1,
) -> Node:
    """The variance over axes: squares of deviations from the mean, divided by n - correction (NaN
    at 0); the correction of `unbiased` is 1, of its opposite 0."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    taken = 1 if correction is None else correction
    free = _count(x, dim) - (taken if unbiased is None else int(unbiased))
    wide = g.cast(x, x.dtype.computed_in) if x.dtype.is_float else x
    deviation = e.sub(wide, mean(wide, dim, keepdim=True))
    total = sum(e.square(deviation), dim, keepdim)
    return g.cast(e.mul(total, 1 / free if free > 0 else math.nan), x.dtype)


@operator(aten="std")
def std(
    x: Node,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: Number | None = 1,
) -> Node:
    """The square root of var, whose gradient is 0 where it is 0."""
    wide = g.cast(x, x.dtype.computed_in) if x.dtype.is_float else x
    spread = var(wide, dim, unbiased, keepdim, correction=correction)
    return g.cast(_root(spread, g.sqrt), x.dtype)


class Spread(NamedTuple):
    """What var_mean and std_mean give."""

    spread: Any
    """The variance or deviation."""
    mean: Any


@operator(aten="var_mean")
def var_mean(
    x: Node,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: Number | None = 1,
) -> Any:
    """var, and mean."""
    every = None if isinstance(dim, bool) else dim
    spread = var(x, dim, unbiased, keepdim, correction=correction)
    return Spread(spread, mean(x, every, keepdim))


@operator(aten="std_mean")
def std_mean(
    x: Node,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: Number | None = 1,
) -> Any:
    """std, and mean."""
    every = None if isinstance(dim, bool) else dim
    spread = std(x, dim, unbiased, keepdim, correction=correction)
    return Spread(spread, mean(x, every, keepdim))


@operator(aten="aminmax")
def aminmax(x: Node, *, dim: int | None = None, keepdim: bool = False) -> Any:
    """The least and the greatest element, along an axis if one is given."""
    return Bounds(amin(x, dim, keepdim), amax(x, dim, keepdim))


class Bounds(NamedTuple):
    """What aminmax gives."""

    min: Any
    max: Any


@operator(aten="count_nonzero")
def count_nonzero(x: Node, dim: Dims = None) -> Node:
    """How many elements are not 0 over axes, int64."""
    return sum(g.cast(x, DType.BOOL), dim)


@operator(aten="nansum")
def nansum(x: Node, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None) -> Node:
    """sum, in which NaN counts as 0."""
    return sum(e.where(e.isnan(x), 0, x), dim, keepdim, dtype)


@operator(aten="nanmean")
@once
def nanmean(
    x: Node, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Node:
    """mean over what is no NaN."""
    number = sum(g.cast(g.not_(e.isnan(x)), x.dtype), dim, keepdim)
    return e.div(nansum(x, dim, keepdim, dtype=dtype), number)


@operator(aten="diff")
def diff(
    x: Node, n: int = 1, dim: int = -1, prepend: Node | None = None, append: Node | None = None
) -> Node:
    """The differences of neighbours along an axis, n times."""
    a = axis(dim, len(x.shape))
    if n == 0:
        return x
    parts = [p for p in (prepend, x, append) if p is not None]
    x = g.concat([g.cast(p, x.dtype) for p in parts], a)
    for _ in range(builtins.min(n, x.shape[a])):
        left, right = (g.slice_axis(x, a, i, x.shape[a] - 1 + i) for i in (0, 1))
        x = e.ne(left, right) if x.dtype is DType.BOOL else e.sub(right, left)
    return x


def _steps(x: Node | None, y: Node, dx: float | None, a: int) -> Node | float:
    """The distances of neighbours along an axis."""
    if x is None:
        return 1.0 if dx is None else dx
    apart = diff(x, dim=a if len(x.shape) > 1 else -1)
    line = (apart.type.size, *[1] * (len(y.shape) - 1 - a))
    return apart if len(x.shape) > 1 else g.reshape(apart, line)


@operator(aliases=("trapz",), aten="trapezoid")
@once
def trapezoid(y: Node, x: Node | None = None, *, dx: float | None = None, dim: int = -1) -> Node:
    """The integral of y along an axis by trapezoids, over places x or steps dx."""
    return sum(_trapezoids(y, x, dx, dim), dim)


@operator(aten="cumulative_trapezoid")
@once
def cumulative_trapezoid(
    y: Node, x: Node | None = None, *, dx: float | None = None, dim: int = -1
) -> Node:
    """The integrals of y up to each place of an axis, but the first."""
    return cumsum(_trapezoids(y, x, dx, dim), dim)


def _trapezoids(y: Node, x: Node | None, dx: float | None, dim: int) -> Node:
    a = axis(dim, len(y.shape))
    left, right = (g.slice_axis(y, a, i, y.shape[a] - 1 + i) for i in (0, 1))
    return e.mul(e.mul(e.add(left, right), _steps(x, y, dx, a)), 0.5)


@operator(aten="sum_to_size", function=False, sizes=True)
def sum_to_size(x: Node, size: Sequence[int]) -> Node:
    """x summed over the axes along which `size` broadcasts to its shape."""
    lead = len(x.shape) - len(size)
    gone = [i for i, n in enumerate(x.shape) if i < lead or (size[i - lead] == 1 and n != 1)]
    return g.reshape(g.reduce("sum", x, gone), tuple(size)) if gone else x


@operator(in_place=True, aten="renorm")
def renorm(x: Node, p: float, dim: int, maxnorm: float) -> Node:
    """x with each slice of an axis scaled to a p-norm of at most maxnorm."""
    if maxnorm < 0:
        raise TensorError(f"maxnorm is at least 0, got {maxnorm}")
    a = axis(dim, len(x.shape))
    size = norm(x, p, [i for i in range(len(x.shape)) if i != a], keepdim=True)
    return e.mul(x, e.where(e.gt(size, maxnorm), e.div(maxnorm, e.add(size, 1e-7)), 1.0))


@operator(aten="histc")
def histc(x: Node, bins: int = 100, min: float = 0, max: float = 0) -> Node:
    """How many elements lie in each of equal parts of [min, max], or of their own range if both are
    equal."""
    if bins < 1 or min > max:
        raise TensorError(f"{bins} parts of {min} to {max}: takes one or more, of a rising range")
    flat = g.reshape(x, (x.type.size,))
    if min == max and flat.shape[0]:
        low, high = (g.reduce(k, flat, 0) for k in ("min", "max"))
        same = e.eq(low, high)
        low, high = e.where(same, e.sub(low, 1), low), e.where(same, e.add(high, 1), high)
    else:
        low, high = (g.full((1,), v, x.dtype) for v in (min, max))
    place = g.floor(e.div(e.mul(e.sub(flat, low), bins), e.sub(high, low)))
    place = e.where(e.eq(flat, high), bins - 1, place)
    place = e.where(g.and_(*(e.le(low, flat), e.le(flat, high))), place, -1)
    ones = g.full(flat.shape, 1, x.dtype)
    zeros = g.full((bins,), 0, x.dtype)
    return g.scatter("sum", zeros, g.cast(place, DType.I64), ones, 0)


@operator(aten="cov")
@once
def cov(
    x: Node, *, correction: int = 1, fweights: Node | None = None, aweights: Node | None = None
) -> Node:
    """The covariances of the rows, whose columns are observations, which count fweights times and
    weigh aweights."""
    v = x if len(x.shape) == 2 else g.reshape(x, (1, x.type.size))
    every = [g.cast(w, v.dtype) for w in (fweights, aweights) if w is not None]
    weight = g.full((v.shape[1],), 1, v.dtype)
    for w in every:
        weight = g.mul(weight, w)
    total = sum(weight)
    centred = e.sub(v, e.div(sum(e.mul(v, weight), 1, keepdim=True), total))
    lost: Node | float = correction
    if aweights is not None:
        lost = e.mul(e.div(sum(e.mul(weight, aweights)), total), correction)
    free = e.clamp(e.sub(total, lost), min=0.0)
    found = e.div(g.matmul(e.mul(centred, weight), g.transpose(centred)), free)
    return found if found.type.size != 1 else g.reshape(found, ())


@operator(aten="corrcoef")
@once
def corrcoef(x: Node) -> Node:
    """The correlations of the rows."""
    c = cov(x)
    if not c.shape:
        return e.div(c, c)
    n = c.shape[0]
    on = g.slice_axis(g.reshape(c, (n * n,)), 0, 0, n * n, n + 1)
    d = g.sqrt(on)
    return e.clamp(e.div(e.div(c, g.reshape(d, (n, 1))), d), -1.0, 1.0)


def norm(x: Node, p: float | str | None = 2, dim: Dims = None, keepdim: bool = False) -> Node:
    """The p-norm over axes: (sum |x|**p) ** (1/p); inf and -inf give extremes, 0 counts what is not
    0, "fro" is 2. The derivative at 0 is 0."""
    v = as_float(x)
    wide = g.cast(v, v.dtype.computed_in)
    return g.cast(_norm(wide, 2.0 if p in (None, "fro") else float(p or 0), dim, keepdim), v.dtype)


def _norm(x: Node, p: float, dim: Dims, keepdim: bool) -> Node:
    if math.isinf(p):
        return _fold("max" if p > 0 else "min", g.abs(x), dim, keepdim)
    if p == 0:
        return sum(g.cast(e.ne(x, 0), x.dtype), dim, keepdim)
    if p == 1:
        return sum(g.abs(x), dim, keepdim)
    if p == 2:
        return _root(sum(e.square(x), dim, keepdim), g.sqrt)
    return _root(sum(e.pow(g.abs(x), p), dim, keepdim), lambda v: e.pow(v, 1 / p))


def _root(x: Node, root: Callable[[Node], Node]) -> Node:
    """A root whose derivative at 0 is 0."""
    zero = g.eq(x, g.full_like(x, 0))
    return g.where(zero, g.full_like(x, 0), root(g.where(zero, g.full_like(x, 1), x)))


def _once(function: Callable[[Node], Node], x: Node) -> Node:
    """function(x) in at least float32, rounded once to x's float type; not under autocast."""
    v = as_float(x)
    found = function(g.cast(v, v.dtype.computed_in))
    return found if autocast_dtype() else g.cast(found, v.dtype)


def _shifted(x: Node, dim: Dims) -> tuple[Node, Node]:
    """x less its greatest element, and that element, as a constant for gradients; 0 where it is
    infinite."""
    top = barrier(g.reduce("max", x, axes(dim, len(x.shape))))
    return e.sub(x, top), top


@operator(layer=True, aten="softmax", onnx="Softmax")
def softmax(x: Node, dim: int, _stacklevel: int = 3, dtype: DType | None = None) -> Node:
    """exp(x) / sum(exp(x)) along an axis, without overflow."""

    def function(v: Node) -> Node:
        axis(dim, len(v.shape))
        if not v.type.size or not v.shape:
            return g.exp(e.sub(v, v))
        power = g.exp(_shifted(v, dim)[0])
        return e.mul(power, g.recip(sum(power, dim, keepdim=True)))

    return _once(function, x if dtype is None else g.cast(x, dtype))


@operator(layer=True, aten="log_softmax", onnx="LogSoftmax")
def log_softmax(x: Node, dim: int, _stacklevel: int = 3, dtype: DType | None = None) -> Node:
    """The logarithm of softmax, exact where softmax underflows."""

    def function(v: Node) -> Node:
        axis(dim, len(v.shape))
        if not v.type.size or not v.shape:
            return e.sub(v, v)
        shifted, _ = _shifted(v, dim)
        return e.sub(shifted, g.log(sum(g.exp(shifted), dim, keepdim=True)))

    return _once(function, x if dtype is None else g.cast(x, dtype))


@operator(method=False, function=False, layer=True, aten="softmax")
@once
def softmin(input: Node, dim: int, _stacklevel: int = 3, dtype: DType | None = None) -> Node:
    """softmax of -x."""
    return softmax(g.neg(as_float(input)), dim, dtype=dtype)


@operator(layer=True, aten="logsumexp", onnx="ReduceLogSumExp")
@once
def logsumexp(x: Node, dim: Dims = None, keepdim: bool = False) -> Node:
    """log(sum(exp(x))) over axes, without overflow; -inf where all are -inf."""
    v = as_float(x)
    top = barrier(g.reduce("max", v, axes(dim, len(v.shape))))
    base = e.where(e.isfinite(top), top, 0.0)
    total = sum(g.exp(e.sub(v, base)), dim, keepdim=True)
    return _dropped(e.add(g.log(total), base), dim, keepdim)


# prefixes


def _prefix(kind: str, x: Node, dim: int, dtype: DType | None) -> Node:
    v = g.cast(x, dtype or _summed(x))
    return g.scan(kind, v, axis(dim, len(v.shape))) if v.shape else v


@operator(in_place=True, aten="cumsum", onnx="CumSum")
def cumsum(x: Node, dim: int, dtype: DType | None = None) -> Node:
    """The sums of all elements up to each one along an axis; bool and integers as int64."""
    return _prefix("sum", x, dim, dtype)


@operator(in_place=True, aten="cumprod")
def cumprod(x: Node, dim: int, dtype: DType | None = None) -> Node:
    """The products of all elements up to each one along an axis; bool and integers as int64."""
    return _prefix("prod", x, dim, dtype)


@operator(aten="cummax")
def cummax(x: Node, dim: int) -> Any:
    """The greatest elements up to each one along an axis, and the last places where they are."""
    return _running("max", x, dim)


@operator(aten="cummin")
def cummin(x: Node, dim: int) -> Any:
    """The least elements up to each one along an axis, and the last places where they are."""
    return _running("min", x, dim)


def _running(kind: str, x: Node, dim: int) -> Extreme:
    a = axis(dim, len(x.shape))
    if not x.shape or not x.type.size:
        return Extreme(x, g.full(x.shape, 0, DType.I64))
    v = g.cast(x, DType.U8) if x.dtype is DType.BOOL else x
    best = g.scan(kind, v, a)
    hit = g.eq(v, best)
    if v.dtype.is_float:
        hit = g.or_(hit, e.isnan(v))
    line = tuple(n if i == a else 1 for i, n in enumerate(x.shape))
    here = g.expand(g.reshape(g.arange(x.shape[a]), line), x.shape)
    places = g.scan("max", e.where(hit, here, 0), a)
    return Extreme(g.cast(best, x.dtype), places)


@operator(aten="logcumsumexp")
@once
def logcumsumexp(x: Node, dim: int) -> Node:
    """The logarithms of the sums of exponentials up to each element along an axis: pairs, then
    fours, and so on."""
    if not x.shape or not x.type.size:
        return x
    a, step = axis(dim, len(x.shape)), 1
    while step < x.shape[a]:
        lo = [step if i == a else 0 for i in range(len(x.shape))]
        kept = g.slice_axis(x, a, 0, x.shape[a] - step)
        x = e.logaddexp(x, g.pad(kept, lo, [0] * len(lo), -math.inf))
        step *= 2
    return x
