"""The table of operators: what each of torch's computes, as nodes of the graph IR.

Most rows are the expressions of `stack.framework.expr`, which name torch's operator themselves. The
others are here: operators that only torch's own formulas call, gradients above all, and those whose
arguments differ. A row takes the arguments of the operator's schema, nodes in the place of tensors,
DTypes in the place of element types.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence, Set
from itertools import count
from typing import Any

import torch

from hal.core.dtypes import DType
from hal.tile.node import Node, substitute
from stack import ops as g
from stack.bridge.torch.tape import Row
from stack.framework import store
from stack.framework.errors import TensorError
from stack.framework.expr import activation as act
from stack.framework.expr import compact, contract, create, index, loss, movement, norm
from stack.framework.expr import convolution as conv
from stack.framework.expr import elementwise as e
from stack.framework.expr import reduce as r
from stack.framework.expr.operand import as_float, text
from stack.framework.expr.public import FUNCTIONS, LAYERS, LINALG, METHODS, SPECIAL
from stack.framework.random import taken, words_from
from stack.framework.reverse import gradients

ROWS: dict[str, Row] = {}
"""By the operator's name, "add.Tensor"."""

_slots = count(1 << 40)  # apart from those of requests and of the framework's leaves

F = Callable[..., Any]


def row(*names: str, pointwise: bool = False) -> Callable[[F], F]:
    """The function is the row of these operators."""

    def decorate(function: F) -> F:
        for name in names:
            ROWS[name] = Row(name, inlined(function), pointwise)
        return function

    return decorate


def inlined(function: F) -> F:
    """The function with the nodes behind what it only keeps gradients from."""

    def lower(*args: Any, **kwargs: Any) -> Any:
        given: set[Node] = set()
        _gather((*args, *kwargs.values()), given)
        return without_barriers(function(*args, **kwargs), given)

    return lower


def _gather(args: Iterable[Any], found: set[Node]) -> None:
    for a in args:
        if isinstance(a, Node):
            found.add(a)
        elif isinstance(a, list | tuple):
            _gather(a, found)


def without_barriers(made: Any, given: Set[Node] = frozenset()) -> Any:
    """Nodes whose leaves of the framework are replaced by what defines them. What is `given` has
    none: nothing is looked at behind it, for that may be all that was recorded."""
    if isinstance(made, Node):
        while True:
            found = {n: store.origins[n] for n in _before(made, given) if n in store.origins}
            if not found:
                return made
            (made,) = substitute((made,), {x: x for x in given} | found)
    return [without_barriers(m, given) if m is not None else None for m in made]


def _before(made: Node, given: Set[Node]) -> set[Node]:
    """What a node is made of, up to what is given."""
    found, rest = {made}, [made]
    while rest:
        n = rest.pop()
        if n not in given:
            rest += [s for s in n.srcs if s not in found]
            found.update(n.srcs)
    return found


def pulled(forward: F, inputs: Sequence[Node | None], grad: Node) -> list[Node | None]:
    """The derivatives by `inputs` of what `forward` gives for them, if that by its value is
    `grad`: 0 by what it does not depend on."""
    leaves = [None if x is None else g.input(next(_slots), x.type) for x in inputs]
    slope = g.input(next(_slots), grad.type)
    out = forward(*leaves)
    wanted = {x for x in leaves if x is not None}
    found = gradients([(out, g.cast(slope, out.dtype))], wanted.__contains__)
    values = {a: b for a, b in zip(leaves, inputs, strict=True) if a is not None and b is not None}
    values[slope] = grad
    result: list[Node | None] = []
    for leaf in leaves:
        if leaf is None:
            result.append(None)
            continue
        made = without_barriers(found[leaf]) if leaf in found else g.full_like(leaf, 0)
        result.append(substitute((made,), values)[0])
    return result


def _some(parts: Sequence[Node | None], mask: Sequence[bool]) -> list[Node | None]:
    return [p if wanted else None for p, wanted in zip(parts, mask, strict=True)]


# What torch's constructors write


@row("fill.Scalar", "fill.Tensor")
def _fill(x: Node, value: Any) -> Node:
    if isinstance(value, Node):
        return g.broadcast(g.cast(value, x.dtype), x.shape)
    if x.dtype.is_int and not isinstance(value, int) and math.isfinite(value):
        value = int(value)  # as PyTorch does, towards 0; of this number alone where it is data
    return g.full_like(x, value)


@row("zero")
def _zero(x: Node) -> Node:
    return g.full_like(x, 0)


@row("arange.start_out")
def _arange(start: Any, end: Any, step: Any = 1, *, out: Node) -> Node:
    return create.arange(start, end, step, out.dtype)


@row("clone", pointwise=True)
def _clone(x: Node) -> Node:
    return x


# Elementwise


@row("div.Tensor_mode", "div.Scalar_mode", pointwise=True)
def _div_mode(x: Node, y: Any, *, rounding_mode: str | None = None) -> Node:
    return e.div(x, y, rounding_mode)


@row("rsub.Scalar", "rsub.Tensor", pointwise=True)
def _rsub(x: Node, y: Any, alpha: Any = 1) -> Node:
    return e.sub(y, x, alpha)


@row("pow.Scalar", pointwise=True)
def _scalar_pow(x: Any, y: Node) -> Node:
    return e.pow(x, y)


@row("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar", pointwise=True)
def _where(condition: Node, x: Any, y: Any) -> Node:
    return e.where(condition, x, y)


@row("lerp.Scalar", "lerp.Tensor", pointwise=True)
def _lerp(x: Node, end: Node, weight: Any) -> Node:
    return e.add(x, e.mul(e.sub(end, x), weight))


@row("addcmul", pointwise=True)
def _addcmul(x: Node, a: Node, b: Node, *, value: Any = 1) -> Node:
    return e.add(x, e.mul(e.mul(a, b), value))


@row("addcdiv", pointwise=True)
def _addcdiv(x: Node, a: Node, b: Node, *, value: Any = 1) -> Node:
    return e.add(x, e.mul(e.div(a, b), value))


for _kind in ("eq", "ne", "lt", "le", "gt", "ge"):
    row(f"{_kind}.Scalar", f"{_kind}.Tensor", pointwise=True)(getattr(e, _kind))


@row("bitwise_not", pointwise=True)
def _bitwise_not(x: Node) -> Node:
    return e.logical_not(x) if x.dtype is DType.BOOL else g.xor(x, g.full_like(x, -1))


@row("gelu", pointwise=True)
def _gelu(x: Node, *, approximate: str = "none") -> Node:
    return act.gelu(x, approximate)


@row("gelu_backward", pointwise=True)
def _gelu_backward(d: Node, x: Node, *, approximate: str = "none") -> Node | None:
    return pulled(lambda v: act.gelu(v, approximate), [x], d)[0]


@row("silu_backward", pointwise=True)
def _silu_backward(d: Node, x: Node) -> Node | None:
    return pulled(act.silu, [x], d)[0]


@row("sigmoid_backward", pointwise=True)
def _sigmoid_backward(d: Node, y: Node) -> Node:
    return e.mul(d, e.mul(y, e.sub(1.0, y)))


@row("tanh_backward", pointwise=True)
def _tanh_backward(d: Node, y: Node) -> Node:
    return e.mul(d, e.sub(1.0, e.mul(y, y)))


@row("threshold_backward", pointwise=True)
def _threshold_backward(d: Node, x: Node, threshold: Any) -> Node:
    return e.where(e.le(x, threshold), g.full_like(d, 0), d)


@row("leaky_relu_backward", pointwise=True)
def _leaky_relu_backward(d: Node, x: Node, slope: Any, result: bool) -> Node:
    return e.where(e.gt(x, 0), d, e.mul(d, slope))


@row("elu", pointwise=True)
def _elu(x: Node, alpha: Any = 1, scale: Any = 1, by: Any = 1) -> Node:
    below = e.mul(METHODS["expm1"].expression(e.mul(x, by)), alpha)
    return e.mul(e.where(e.le(x, 0), below, x), scale)


@row("sgn", pointwise=True)
def _sgn(x: Node) -> Node:
    return e.sign(x)


@row("hardshrink_backward", "softshrink_backward", pointwise=True)
def _shrink_backward(d: Node, x: Node, by: Any) -> Node:
    return e.where(g.and_(e.le(x, by), e.ge(x, -by)), 0.0, d)


@row("elu_backward", pointwise=True)
def _elu_backward(d: Node, alpha: Any, scale: Any, by: Any, result: bool, x: Node) -> Node:
    if result:
        below = e.mul(d, e.mul(e.add(x, e.mul(alpha, scale)), by))
    else:
        below = e.mul(d, e.mul(g.exp(e.mul(x, by)), alpha * scale * by))
    return e.where(e.le(x, 0), below, e.mul(d, scale))


@row("hardtanh_backward", pointwise=True)
def _hardtanh_backward(d: Node, x: Node, low: Any, high: Any) -> Node:
    return e.where(g.and_(e.gt(x, low), e.lt(x, high)), d, 0.0)


@row("softplus_backward", pointwise=True)
def _softplus_backward(d: Node, x: Node, beta: Any, threshold: Any) -> Node | None:
    return pulled(lambda v: act.softplus(v, beta, threshold), [x], d)[0]


def _of_one(forward: F) -> F:
    return lambda d, x: pulled(forward, [x], d)[0]


for _one in (act.mish, act.hardswish, act.hardsigmoid):
    row(f"{_one.__name__}_backward", pointwise=True)(_of_one(_one))


_FIELDS = {DType.F32: (DType.I32, 23, 8), DType.F64: (DType.I64, 52, 11)}
"""The integer of a float's width, the bits of its mantissa and of its exponent."""


@row("frexp.Tensor", pointwise=True)
def _frexp(x: Node) -> list[Node]:
    """The mantissa, from 1/2 up to 1, and the exponent."""
    wide = g.cast(x, x.dtype.computed_in)
    kind, low, width = _FIELDS[wide.dtype]
    most = (1 << width) - 1
    bias = most // 2 - 1
    is_small = e.lt(g.abs(wide), 2.0 ** (1 - most // 2))  # its exponent is not in its bits
    code = g.bitcast(e.where(is_small, e.mul(wide, 2.0 ** (low + 1)), wide), kind)
    exponent = e.sub(e.bitwise_and(e.shift_right(code, low), most), bias)
    exponent = e.where(is_small, e.sub(exponent, low + 1), exponent)
    mantissa = e.bitwise_or(e.bitwise_and(code, ~(most << low)), bias << low)
    is_whole = g.and_(e.ne(wide, 0.0), e.isfinite(wide))
    fraction = e.where(is_whole, g.bitcast(mantissa, wide.dtype), wide)
    return [g.cast(fraction, x.dtype), g.cast(e.where(is_whole, exponent, 0), DType.I32)]


# Reductions


@row("sum.dim_IntList", "sum")
def _sum(x: Node, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None) -> Node:
    return r.sum(x, dim, keepdim, dtype)


@row("mean.dim", "mean")
def _mean(x: Node, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None) -> Node:
    return r.mean(x, dim, keepdim, dtype)


@row("prod.dim_int", "prod")
def _prod(x: Node, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None) -> Node:
    return r.prod(x, dim, keepdim, dtype)


@row("any", "any.dim", "any.dims")
def _any(x: Node, dim: Any = None, keepdim: bool = False) -> Node:
    return r.any_(x, dim, keepdim)


@row("all", "all.dim", "all.dims")
def _all(x: Node, dim: Any = None, keepdim: bool = False) -> Node:
    return r.all_(x, dim, keepdim)


@row("linalg_vector_norm")
def _vector_norm(
    x: Node, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Node:
    if not x.dtype.is_float:
        raise TensorError(f"expected a tensor of floats, got {text(x)}")
    return r.norm(x if dtype is None else g.cast(x, dtype), ord, dim, keepdim)


@row("var.correction")
def _var(x: Node, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Node:
    return r.var(x, dim, correction=1 if correction is None else correction, keepdim=keepdim)


@row("std.correction")
def _std(x: Node, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Node:
    return r.std(x, dim, correction=1 if correction is None else correction, keepdim=keepdim)


@row("var_mean.correction")
def _var_mean(x: Node, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    given = 1 if correction is None else correction
    return r.var_mean(x, dim, correction=given, keepdim=keepdim)


def _only_float(what: str, x: Node, half_to_float: bool) -> Node:
    if not x.dtype.is_float:
        raise NotImplementedError(f"{what} of {text(x)}: takes floats; give dtype=torch.float32")
    return g.cast(x, DType.F32) if half_to_float else x


@row("_softmax")
def _softmax(x: Node, dim: int, half_to_float: bool) -> Node:
    return r.softmax(_only_float("softmax", x, half_to_float), dim)


@row("_log_softmax")
def _log_softmax(x: Node, dim: int, half_to_float: bool) -> Node:
    return r.log_softmax(_only_float("log_softmax", x, half_to_float), dim)


@row("_softmax_backward_data")
def _softmax_backward(d: Node, y: Node, dim: int, dtype: DType) -> Node:
    wide = e.mul(d, y)
    return g.cast(e.sub(wide, e.mul(y, r.sum(wide, dim, keepdim=True))), dtype)


@row("_log_softmax_backward_data")
def _log_softmax_backward(d: Node, y: Node, dim: int, dtype: DType) -> Node:
    return g.cast(e.sub(d, e.mul(g.exp(y), r.sum(d, dim, keepdim=True))), dtype)


# Losses


def _weights(
    x: Node, target: Node, weight: Node | None, ignored: int, classes: int
) -> tuple[Node, Node]:
    """Of each row its class, in range, and its weight."""
    if target.dtype not in (DType.I64, DType.U8):
        raise TensorError(f"expected classes of int64 or uint8, got {text(target)}")
    if weight is not None and weight.shape != (classes,):
        raise TensorError(f"expected a weight for each of {classes} classes, got {text(weight)}")
    counts = e.ne(target, ignored)
    at = e.where(counts, target, 0)
    if weight is None:
        return at, g.cast(counts, x.dtype)
    return at, e.where(counts, g.gather(weight, at, 0), 0.0)


@row("nll_loss_forward", "nll_loss2d_forward")
def _nll_loss(
    x: Node, target: Node, weight: Node | None, reduction: int, ignored: int
) -> list[Node]:
    a = 1 if len(x.shape) > 1 else 0
    at, factor = _weights(x, target, weight, ignored, x.shape[a])
    line = g.reshape(at, (*at.shape[:a], 1, *at.shape[a:]))
    chosen = g.reshape(index.gather(x, a, line), at.shape)
    each = g.neg(e.mul(chosen, factor))
    total = r.sum(factor)
    if reduction == 0:
        return [each, g.full((), 0, x.dtype)]
    whole = r.sum(each)
    return [whole if reduction == 2 else e.div(whole, total), total]


@row("nll_loss_backward", "nll_loss2d_backward")
def _nll_loss_backward(
    d: Node, x: Node, target: Node, weight: Node | None, reduction: int, ignored: int, total: Node
) -> Node:
    a = 1 if len(x.shape) > 1 else 0
    at, factor = _weights(x, target, weight, ignored, x.shape[a])
    scale = e.div(d, total) if reduction == 1 else d
    each = g.neg(g.broadcast(e.mul(factor, scale), at.shape))
    ones = tuple(n if i == a else 1 for i, n in enumerate(x.shape))
    line = (*at.shape[:a], 1, *at.shape[a:])
    hit = e.eq(g.reshape(at, line), g.reshape(g.arange(x.shape[a], at.dtype), ones))
    return e.where(hit, g.reshape(each, line), 0.0)


_REDUCED = ("none", "mean", "sum")


def _loss(name: str, function: F, *arguments: str) -> None:
    """The rows of a loss and of its gradient, whose schema has after input and target these
    arguments, of which the reduction is a number."""

    def of(x: Node, target: Node, given: Sequence[Any]) -> Any:
        named = dict(zip(arguments, given, strict=False))
        named["reduction"] = _REDUCED[named.get("reduction", 1)]
        return function(x, target, **named)

    row(name)(lambda x, target, *rest: of(x, target, rest))
    row(f"{name}_backward")(
        lambda d, x, target, *rest: pulled(lambda v: of(v, target, rest), [x], d)[0]
    )


_loss("mse_loss", loss.mse_loss, "reduction")
_loss("smooth_l1_loss", loss.smooth_l1_loss, "reduction", "beta")
_loss("huber_loss", loss.huber_loss, "reduction", "delta")
_loss("binary_cross_entropy", loss.binary_cross_entropy, "weight", "reduction")
_loss("soft_margin_loss", loss.soft_margin_loss, "reduction")
_loss("multi_margin_loss", loss.multi_margin_loss, "p", "margin", "weight", "reduction")


@row("binary_cross_entropy_with_logits")
def _bce_with_logits(
    x: Node, target: Node, weight: Node | None = None, pos_weight: Node | None = None,
    reduction: int = 1,
) -> Node:  # fmt: skip
    return loss.binary_cross_entropy_with_logits(
        x, target, weight, reduction=_REDUCED[reduction], pos_weight=pos_weight
    )


@row("multilabel_margin_loss_forward")
def _multilabel_margin(x: Node, target: Node, reduction: int) -> list[Node]:
    made = loss.multilabel_margin_loss(x, target, reduction=_REDUCED[reduction])
    return [made, g.full_like(x, 0)]  # what only the gradient of torch's own reads


@row("multilabel_margin_loss_backward")
def _multilabel_margin_backward(
    d: Node, x: Node, target: Node, reduction: int, is_target: Node
) -> Node | None:
    def forward(v: Node) -> Node:
        made: Node = loss.multilabel_margin_loss(v, target, reduction=_REDUCED[reduction])
        return made

    return pulled(forward, [x], d)[0]


# Norms


@row("native_layer_norm_backward")
def _layer_norm_backward(
    d: Node, x: Node, shape: Any, mean: Node, rstd: Node,
    weight: Node | None, bias: Node | None, mask: Sequence[bool],
) -> list[Node | None]:  # fmt: skip
    lead = tuple(range(len(x.shape) - len(shape)))
    back = tuple(range(len(lead), len(x.shape)))
    wide = e.mul(e.sub(as_float(x), mean), rstd)
    scaled = d if weight is None else e.mul(d, weight)
    own = e.sub(scaled, r.mean(scaled, back, keepdim=True))
    own = e.sub(own, e.mul(wide, r.mean(e.mul(scaled, wide), back, keepdim=True)))
    dx = g.cast(e.mul(own, rstd), x.dtype)
    dw = _summed(e.mul(d, wide), lead, shape, x.dtype)
    return _some([dx, dw, _summed(d, lead, shape, x.dtype)], mask)


def _summed(x: Node, over: tuple[int, ...], shape: Any, dtype: DType) -> Node:
    return g.cast(g.reshape(r.sum(x, over) if over else x, tuple(shape)), dtype)


@row("native_batch_norm_backward")
def _batch_norm_backward(
    d: Node, x: Node, weight: Node | None, mean_so_far: Node | None, variance_so_far: Node | None,
    mean: Node | None, rstd: Node | None, train: bool, eps: float, mask: Sequence[bool],
) -> list[Node | None]:  # fmt: skip
    over = tuple(i for i in range(len(x.shape)) if i != 1)
    line = (1, x.shape[1], *[1] * (len(x.shape) - 2))
    if not train:
        assert mean_so_far is not None
        assert variance_so_far is not None
        mean, rstd = mean_so_far, g.rsqrt(e.add(variance_so_far, eps))
    assert mean is not None
    assert rstd is not None
    by = g.reshape(rstd, line)
    wide = e.mul(e.sub(x, g.reshape(mean, line)), by)
    scaled = d if weight is None else e.mul(d, g.reshape(weight, line))
    own = scaled
    if train:
        own = e.sub(own, r.mean(scaled, over, keepdim=True))
        own = e.sub(own, e.mul(wide, r.mean(e.mul(scaled, wide), over, keepdim=True)))
    dx = g.cast(e.mul(own, by), x.dtype)
    return _some([dx, r.sum(e.mul(d, wide), over), r.sum(d, over)], mask)


def batch_norm(
    x: Node, weight: Node | None, bias: Node | None, mean: Node | None, variance: Node | None,
    training: bool, momentum: float, eps: float,
) -> list[Node]:  # fmt: skip
    """The normalised x, what backward needs, and the new running statistics, if there are any."""
    if not training:
        assert mean is not None
        assert variance is not None
        y = norm.batch_norm_given(x, mean, variance, weight, bias, eps)
        return [y, g.full((0,), 0, DType.F32), g.full((0,), 0, DType.F32)]
    y, own, free = norm.batch_norm_own(x, weight, bias, eps)
    n = x.type.size // max(1, x.shape[1])
    biased = e.mul(free, (n - 1) / n) if n > 1 else g.full_like(free, 0)
    out = [y, own, g.rsqrt(e.add(biased, eps))]
    if mean is not None and variance is not None:
        out += [e.add(e.mul(mean, 1 - momentum), e.mul(own, momentum)),
                e.add(e.mul(variance, 1 - momentum), e.mul(free, momentum))]  # fmt: skip
    return out


@row("native_group_norm")
def _group_norm(
    x: Node, weight: Node | None, bias: Node | None, n: int, c: int, hw: int, groups: int,
    eps: float,
) -> list[Node]:  # fmt: skip
    v = g.reshape(as_float(x), (n, groups, c // groups * hw))
    mean = r.mean(v, 2, keepdim=True)
    rstd = g.rsqrt(e.add(r.mean(e.square(e.sub(v, mean)), 2, keepdim=True), eps))
    y = norm.group_norm(x, groups, weight, bias, eps)
    return [y, g.reshape(mean, (n, groups)), g.reshape(rstd, (n, groups))]


@row("_weight_norm_interface_backward")
def _weight_norm_backward(d: Node, v: Node, size: Node, norms: Node, dim: int) -> list[Node]:
    others = tuple(a for a in range(len(v.shape)) if a != dim % len(v.shape))
    along = e.div(r.sum(e.mul(as_float(d), v), others, keepdim=True), norms)
    own = e.mul(e.div(size, norms), e.sub(d, e.mul(v, e.div(along, norms))))
    return [g.cast(own, v.dtype), g.cast(along, size.dtype)]


@row("native_group_norm_backward")
def _group_norm_backward(
    d: Node, x: Node, mean: Node, rstd: Node, weight: Node | None, n: int, c: int, hw: int,
    groups: int, mask: Sequence[bool],
) -> list[Node | None]:  # fmt: skip
    shape = (n, groups, c // groups, hw)
    at = (n, groups, 1, 1)
    wide = e.mul(e.sub(g.reshape(x, shape), g.reshape(mean, at)), g.reshape(rstd, at))
    grad = g.reshape(d, shape)
    line = (1, groups, c // groups, 1)
    scaled = grad if weight is None else e.mul(grad, g.reshape(weight, line))
    own = e.sub(scaled, r.mean(scaled, (2, 3), keepdim=True))
    own = e.sub(own, e.mul(wide, r.mean(e.mul(scaled, wide), (2, 3), keepdim=True)))
    dx = g.reshape(e.mul(own, g.reshape(rstd, at)), x.shape)
    dw = g.reshape(r.sum(e.mul(grad, wide), (0, 3)), (c,))
    return _some([dx, dw, g.reshape(r.sum(grad, (0, 3)), (c,))], mask)


# Products, convolutions


@row("bmm")
def _bmm(x: Node, y: Node) -> Node:
    if len(x.shape) != 3 or len(y.shape) != 3:
        raise TensorError(f"expected two tensors of 3 axes, got {text(x)} and {text(y)}")
    return contract.matmul(x, y)


@row("_int_mm")
def _int_mm(x: Node, y: Node) -> Node:
    for one, may in ((x, (DType.I8, DType.U8)), (y, (DType.I8,))):
        if len(one.shape) != 2 or one.dtype not in may:
            raise TensorError(f"expected int8 matrices, the left one also uint8, got {text(one)}")
    return contract.matmul(g.cast(x, DType.I32), g.cast(y, DType.I32))


@row("addmm")
def _addmm(x: Node, a: Node, b: Node, *, beta: Any = 1, alpha: Any = 1) -> Node:
    return contract.addmm(x, a, b, beta=beta, alpha=alpha)


@row("linear")
def _linear(x: Node, weight: Node, bias: Node | None = None) -> Node:
    if len(weight.shape) == 2:
        return contract.linear(x, weight, bias)
    made = contract.matmul(x, weight)
    return made if bias is None else e.add(made, bias)


@row("linear_backward")
def _linear_backward(x: Node, grad: Node, weight: Node, mask: Sequence[bool]) -> list[Node | None]:
    bias = g.full(weight.shape[:-1], 0, weight.dtype)  # its value counts for nothing
    return _some(pulled(_linear, [x, weight, bias], grad), mask)


@row("convolution", "convolution_overrideable")
def _convolution(
    x: Node, weight: Node, bias: Node | None, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> Node:  # fmt: skip
    d = len(weight.shape) - 2
    if transposed:
        return conv._transposed(
            d, x, weight, bias, stride, padding, output_padding, groups, dilation
        )
    return conv._convolution(d, x, weight, bias, stride, padding, dilation, groups)


@row("convolution_backward", "convolution_backward_overrideable")
def _convolution_backward(
    d: Node, x: Node, weight: Node, sizes: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, mask: Sequence[bool],
) -> list[Node | None]:  # fmt: skip
    def forward(v: Node, w: Node) -> Node:
        made: Node = _convolution(
            v, w, None, stride, padding, dilation, transposed, output_padding, groups
        )
        return made

    dx, dw = pulled(forward, [x, weight], d)
    over = tuple(i for i in range(len(d.shape)) if i != len(d.shape) - len(weight.shape) + 1)
    return _some([dx, dw, r.sum(d, over)], mask)


# Recurrent cells


@row("_thnn_fused_lstm_cell")
def _lstm_cell(
    a: Node, b: Node, cell: Node, bias_a: Node | None = None, bias_b: Node | None = None
) -> list[Node]:
    """The output, the cell, and the gates for backward."""
    gates = e.add(a, b)
    for bias in (bias_a, bias_b):
        gates = gates if bias is None else e.add(gates, bias)
    i, f, c, o = movement.chunk(gates, 4, 1)
    sigmoid = METHODS["sigmoid"].expression
    i, f, c, o = sigmoid(i), sigmoid(f), g.tanh(c), sigmoid(o)
    new = e.add(e.mul(f, cell), e.mul(i, c))
    return [e.mul(o, g.tanh(new)), new, g.concat([i, f, c, o], 1)]


@row("_thnn_fused_lstm_cell_backward_impl")
def _lstm_cell_backward(
    dy: Node | None, dc: Node | None, before: Node, cell: Node, gates: Node, biased: bool
) -> list[Node | None]:
    i, f, c, o = movement.chunk(gates, 4, 1)
    t = g.tanh(cell)
    dy = g.full_like(cell, 0) if dy is None else dy
    total = e.mul(e.mul(dy, o), e.sub(1.0, e.mul(t, t)))
    total = total if dc is None else e.add(total, dc)

    def through(d: Node, y: Node) -> Node:
        return e.mul(d, e.mul(y, e.sub(1.0, y)))

    parts = [through(e.mul(total, c), i), through(e.mul(total, before), f),
             e.mul(e.mul(total, i), e.sub(1.0, e.mul(c, c))), through(e.mul(dy, t), o)]  # fmt: skip
    d = g.concat(parts, 1)
    return [d, e.mul(total, f), r.sum(d, 0) if biased else g.full((0,), 0, d.dtype)]


@row("_thnn_fused_gru_cell")
def _gru_cell(
    a: Node, b: Node, hidden: Node, bias_a: Node | None = None, bias_b: Node | None = None
) -> list[Node]:
    """The output, and what backward needs: the gates, the state, and its part of the new one."""
    a = a if bias_a is None else e.add(a, bias_a)
    b = b if bias_b is None else e.add(b, bias_b)
    (ar, az, an), (br, bz, bn) = movement.chunk(a, 3, 1), movement.chunk(b, 3, 1)
    sigmoid = METHODS["sigmoid"].expression
    r_, z = sigmoid(e.add(ar, br)), sigmoid(e.add(az, bz))
    n = g.tanh(e.add(an, e.mul(r_, bn)))
    return [e.add(n, e.mul(z, e.sub(hidden, n))), g.concat([r_, z, n, hidden, bn], 1)]


@row("_thnn_fused_gru_cell_backward")
def _gru_cell_backward(d: Node, kept: Node, biased: bool) -> list[Node]:
    r_, z, n, hidden, bn = movement.chunk(kept, 5, 1)

    def through(d: Node, y: Node) -> Node:
        return e.mul(d, e.mul(y, e.sub(1.0, y)))

    dz = through(e.mul(d, e.sub(hidden, n)), z)
    dn = e.mul(e.mul(d, e.sub(1.0, z)), e.sub(1.0, e.mul(n, n)))
    dr = through(e.mul(dn, bn), r_)
    own, other = g.concat([dr, dz, dn], 1), g.concat([dr, dz, e.mul(dn, r_)], 1)
    none = g.full((0,), 0, d.dtype)
    sums = [r.sum(own, 0), r.sum(other, 0)] if biased else [none, none]
    return [own, other, e.mul(d, z), *sums]


# Movement and indices


@row("embedding")
def _embedding(
    weight: Node, places: Node, padding_idx: int = -1, scale: bool = False, sparse: bool = False
) -> Node:
    if len(weight.shape) != 2:
        raise TensorError(f"expected a weight of 2 axes, got {text(weight)}")
    return g.gather(weight, places, 0)


@row("embedding_dense_backward")
def _embedding_backward(d: Node, places: Node, rows: int, padding: int, by_count: bool) -> Node:
    n = places.type.size
    at = g.reshape(g.cast(places, DType.I64), (n,))
    wide = g.reshape(d, (n, d.shape[-1]))
    if padding >= 0:
        wide = e.where(g.reshape(e.ne(at, padding), (n, 1)), wide, 0.0)
    return g.scatter("sum", g.full((rows, d.shape[-1]), 0, d.dtype), at, wide, 0)


@row("constant_pad_nd")
def _constant_pad(x: Node, pad: Sequence[int], value: Any = 0) -> Node:
    return movement.pad(x, list(pad), "constant", value)


@row("index.Tensor")
def _index(x: Node, places: Sequence[Node | None]) -> Node:
    return index.getitem(x, tuple(slice(None) if i is None else i for i in places))


@row("index_put", "_index_put_impl")
def _index_put(
    x: Node, places: Sequence[Node | None], values: Node, add: bool = False, unsafe: bool = False
) -> Node:
    return index.index_put(x, places, values, add)


@row("cat")
def _cat(parts: Sequence[Node], dim: int = 0) -> Node:
    kept = [p for p in parts if p.shape != (0,)] or list(parts[:1])
    return movement.cat(kept, dim)


@row("tril")
def _tril(x: Node, diagonal: int = 0) -> Node:
    return g.cast(movement.tril(x, diagonal), x.dtype)


@row("triu")
def _triu(x: Node, diagonal: int = 0) -> Node:
    return g.cast(movement.triu(x, diagonal), x.dtype)


@row("sort", "sort.stable")
def _sort(x: Node, dim: int = -1, descending: bool = False, stable: Any = False) -> Any:
    return METHODS["sort"].expression(x, dim, descending)


@row("sort.stable")
def _stable_sort(x: Node, *, stable: Any, dim: int = -1, descending: bool = False) -> Any:
    return METHODS["sort"].expression(x, dim, descending, True)


@row("index_select")
def _index_select(x: Node, dim: int, places: Node) -> Node:
    return index.index_select(x, dim, places)


@row("slice_backward")
def _slice_backward(
    d: Node, sizes: Sequence[int], dim: int, start: int, end: int | None = None, step: int = 1
) -> Node:
    """Zeros around d, which add up to a concatenation where the slices lie side by side."""
    if not d.type.size:
        return g.full(tuple(sizes), 0, d.dtype)
    axis = dim % len(sizes)
    first = slice(start, end, step).indices(sizes[axis])[0]
    apart = g.dilate(d, axis, step)
    lo = [first if i == axis else 0 for i in range(len(sizes))]
    hi = [n - m - a for n, m, a in zip(sizes, apart.shape, lo, strict=True)]
    return g.pad(apart, lo, hi)


@row("select_backward")
def _select_backward(d: Node, sizes: Sequence[int], dim: int, at: int) -> Node:
    axis, n = dim % len(sizes), at % sizes[dim]
    zeros: Node = _slice_backward(movement.unsqueeze(d, axis), sizes, axis, n, n + 1)
    return zeros


# What waits for values: given the number of elements


@row("nonzero")
def nonzero(x: Node, found: int) -> Node:
    """i64[found, axes]."""
    mask = x if x.dtype is DType.BOOL else e.ne(x, 0)
    return compact.columns(compact.places(mask, found), not x.shape)


# Random numbers


@row("philox")
def words(state: Node, n: int) -> list[Node]:
    """u32[n] random words and the state (key, offset) behind them."""
    key, offset = (g.slice_axis(state, 0, i, i + 1) for i in (0, 1))
    drawn = words_from(g.reshape(offset, ()), g.reshape(key, ()), n)
    more = g.add(offset, g.full((1,), taken(n), DType.U64))
    return [drawn, g.concat([key, more], 0)]


# Those of the framework


_CALLED = {"input": "self", "x": "self", "y": "other", "tensors": "self"}
_SAME = (
    {"other", "exponent", "mat2", "vec", "vec2", "batch2", "tensor2", "tensor", "end"},
    {"self", "values", "x1", "condition"},
    {"src", "value", "source"},
    {"test_element", "test_elements"},
)
"""Words for one argument."""


def _fits(expression: F, schema: Any) -> bool:
    """Whether the arguments of the operator mean to the expression what they mean to torch: one
    that stood in another one's place would be taken for it."""
    given = inspect.signature(expression).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in given):
        return False
    mine = [p.name for p in given if p.kind is p.POSITIONAL_OR_KEYWORD]
    for i, a in enumerate(a for a in schema.arguments if not a.kwarg_only):
        if i >= len(mine):
            return False
        pair = {a.name, mine[i], _CALLED.get(mine[i], mine[i])}
        if i and len(pair) > 1 and a.name != _CALLED.get(mine[i]) and not any(
            {a.name, mine[i]} <= same or {a.name, _CALLED.get(mine[i], "")} <= same
            for same in _SAME
        ):  # fmt: skip
            return False
    return True


_MODULES = ("elementwise", "activation", "special", "public")

# the framework's operators that name one of torch's, each once
_PUBLISHED = {
    id(p): p
    for space in (FUNCTIONS, METHODS, LAYERS, SPECIAL, LINALG)
    for p in space.values()
    if p.face.aten
}
for _public in _PUBLISHED.values():
    if _public.face.waits:
        continue
    _packet_name, _, _only = _public.face.aten.partition(".")
    _packet = getattr(torch.ops.aten, _packet_name, None)
    for _overload in _packet.overloads() if _packet is not None else ():
        _key = _packet_name if _overload == "default" else f"{_packet_name}.{_overload}"
        _schema = getattr(_packet, _overload)._schema
        _mutates = any(a.alias_info is not None for a in _schema.arguments)
        known = torch._C._dispatch_has_kernel(f"aten::{_key}")  # not those of TorchScript alone
        _free = known and _key not in ROWS and not _mutates and (not _only or _only == _overload)
        if _free and _fits(_public.expression, _schema):
            _module = _public.expression.__module__.rpartition(".")[2]
            row(_key, pointwise=_module in _MODULES)(_public.expression)


# Those whose operands have one element type, where the framework's own would cast


_ALIKE: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "convolution", "linear"), (0, 1)),
    **dict.fromkeys(("addmm", "addmv", "baddbmm", "addbmm", "addr"), (0, 1, 2)),
    **dict.fromkeys(("lerp.Scalar", "lerp.Tensor"), (0, 1)),
    **dict.fromkeys(("scatter.src", "scatter_add", "scatter_reduce.two"), (0, 3)),
    **dict.fromkeys(("index_add", "index_copy"), (0, 3)),
    **dict.fromkeys(("index_put", "masked_scatter"), (0, 2)),
}
"""Which operands they are."""


def _alike(lower: F, places: tuple[int, ...]) -> F:
    """The row, for operands at these places whose element types are equal."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        given = [args[i] for i in places if i < len(args) and isinstance(args[i], Node)]
        if len({x.dtype for x in given}) > 1:
            shown = ", ".join(text(x) for x in given)
            raise TensorError(f"expected operands of one element type, got {shown}")
        return lower(*args, **kwargs)

    return checked


for _name, _places in _ALIKE.items():
    if _name in ROWS:
        _row = ROWS[_name]
        ROWS[_name] = Row(_name, _alike(_row.lower, _places), _row.pointwise)


# What scales a tensor of whole numbers is one


def _whole(lower: F) -> F:
    def checked(x: Any, y: Any, alpha: Any = 1) -> Any:
        operands = [v for v in (x, y) if isinstance(v, Node)]
        whole = not any(v.dtype.is_float for v in operands) and not isinstance(y, float)
        if whole and isinstance(alpha, float):
            raise TensorError(f"alpha of {text(operands[0])} is a whole number, got {alpha}")
        return lower(x, y, alpha)

    return checked


for _name in ("add.Tensor", "sub.Tensor", "add.Scalar", "sub.Scalar", "rsub.Tensor", "rsub.Scalar"):
    if _name in ROWS:
        _row = ROWS[_name]
        ROWS[_name] = Row(_name, _whole(_row.lower), _row.pointwise)
