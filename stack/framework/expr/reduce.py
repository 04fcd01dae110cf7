"""Reductions, softmax and cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr.operand import Dims, Number, as_float, axes, axis
from stack.framework.expr.public import operator
from stack.framework.mode import autocast_dtype
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
    wide = DType.I64 if not x.dtype.is_float else x.dtype
    return _fold("sum", g.cast(x, dtype or wide), dim, keepdim)


@operator(aten="prod", onnx="ReduceProd")
def prod(x: Node, dim: Dims = None, keepdim: bool = False) -> Node:
    """The product over axes (all without any); bool and integers are multiplied as int64."""
    return _fold("prod", g.cast(x, x.dtype if x.dtype.is_float else DType.I64), dim, keepdim)


@operator(aten="mean", onnx="ReduceMean")
def mean(x: Node, dim: Dims = None, keepdim: bool = False) -> Node:
    """The mean over axes (all without any). Raises TensorError for integers."""
    if not x.dtype.is_float:
        raise TensorError("mean needs a float tensor; convert it with .float()")
    total, n = sum(x, dim, keepdim), _count(x, dim)
    return e.mul(total, 1 / n if n else math.nan)


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
        raise TensorError(f"no element to choose from in {list(x.shape)} over dim {dim}")
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
        raise TensorError(f"no element to choose from in {list(x.shape)} over dim {dim}")
    best = g.extreme(kind, x, axes(dim, len(x.shape)))
    return Extreme(_dropped(best, dim, keepdim), place(x, dim, keepdim))


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
        found = op(g.reshape(x, (x.type.size,)), 0)
        return g.reshape(found, (1,) * len(x.shape) if keepdim else ())
    a = axis(dim, len(x.shape))
    found = op(x, a)
    return _dropped(found, a, keepdim)


@operator(aten="any")
def any_(x: Node, dim: Dims = None, keepdim: bool = False) -> Node:
    """Whether some element is not 0."""
    return _fold("max", g.cast(x, DType.BOOL), dim, keepdim)


@operator(aten="all")
def all_(x: Node, dim: Dims = None, keepdim: bool = False) -> Node:
    """Whether no element is 0."""
    return _fold("min", g.cast(x, DType.BOOL), dim, keepdim)


@operator(aten="var")
def var(x: Node, dim: Dims = None, keepdim: bool = False, correction: Number = 1) -> Node:
    """The variance over axes: squares of deviations from the mean, divided by n - correction (NaN
    at 0)."""
    deviation = e.sub(x, mean(x, dim, keepdim=True))
    free = _count(x, dim) - correction
    return e.mul(sum(e.square(deviation), dim, keepdim), 1 / free if free > 0 else math.nan)


@operator(aten="std")
def std(x: Node, dim: Dims = None, keepdim: bool = False, correction: Number = 1) -> Node:
    """The square root of var."""
    return g.sqrt(var(x, dim, keepdim, correction))


@operator(aten="norm", onnx="ReduceL2")
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


def _wide(x: Node) -> Node:
    """Under autocast, halves as float32."""
    v = as_float(x)
    return g.cast(v, v.dtype.computed_in) if autocast_dtype() else v


def _shifted(x: Node, dim: Dims) -> tuple[Node, Node]:
    """x less its greatest element, and that element, as a constant for gradients; 0 where it is
    infinite."""
    top = barrier(g.reduce("max", x, axes(dim, len(x.shape))))
    return e.sub(x, top), top


@operator(layer=True, aten="softmax", onnx="Softmax")
def softmax(x: Node, dim: int) -> Node:
    """exp(x) / sum(exp(x)) along an axis, without overflow."""
    v = _wide(x)
    if not v.type.size or not v.shape:
        return g.full_like(v, 1)
    power = g.exp(_shifted(v, dim)[0])
    return e.mul(power, g.recip(sum(power, dim, keepdim=True)))


@operator(layer=True, aten="log_softmax", onnx="LogSoftmax")
def log_softmax(x: Node, dim: int) -> Node:
    """The logarithm of softmax, exact where softmax underflows."""
    v = _wide(x)
    if not v.type.size or not v.shape:
        return g.full_like(v, 0)
    shifted, _ = _shifted(v, dim)
    return e.sub(shifted, g.log(sum(g.exp(shifted), dim, keepdim=True)))


@operator(layer=True, aten="logsumexp", onnx="ReduceLogSumExp")
def logsumexp(x: Node, dim: Dims = None, keepdim: bool = False) -> Node:
    """log(sum(exp(x))) over axes, without overflow; -inf where all are -inf."""
    v = as_float(x)
    top = barrier(g.reduce("max", v, axes(dim, len(v.shape))))
    base = e.where(e.isfinite(top), top, 0.0)
    total = sum(g.exp(e.sub(v, base)), dim, keepdim=True)
    return _dropped(e.add(g.log(total), base), dim, keepdim)


@operator(aten="cumsum", onnx="CumSum")
def cumsum(x: Node, dim: int) -> Node:
    """The sums of all elements up to each one along an axis; bool and integers as int64."""
    v = x if x.dtype.is_float else g.cast(x, DType.I64)
    return g.scan("sum", v, axis(dim, len(v.shape))) if v.shape else v


@operator(aten="cumprod")
def cumprod(x: Node, dim: int) -> Node:
    """The products of all elements up to each one along an axis; bool and integers as int64."""
    v = x if x.dtype.is_float else g.cast(x, DType.I64)
    return g.scan("prod", v, axis(dim, len(v.shape))) if v.shape else v
