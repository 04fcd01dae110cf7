"""Losses, in float32 for float16 and bfloat16."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, TypeVar, cast

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework import within
from stack.framework.errors import TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr import reduce as r
from stack.framework.expr.activation import log1p_exp, logsigmoid
from stack.framework.expr.operand import as_float, meet, once, text, widened
from stack.framework.expr.public import layer
from stack.framework.modes import autocast_dtype
from stack.framework.store import barrier

F = TypeVar("F", bound=Callable[..., Node])


def _rounded_once(loss: F) -> F:
    """The loss of narrow floats computed in float32, and rounded at its end (not under
    autocast)."""
    rounded = once(loss)

    @wraps(loss)
    def wide(*args: Any, **kwargs: Any) -> Node:
        if not autocast_dtype():
            return rounded(*args, **kwargs)
        return loss(*map(widened, args), **kwargs)

    return cast("F", wide)


def _loss(**face: Any) -> Callable[[F], F]:
    """As `layer`, of a loss whose reduction may also be said as it once was: by size_average and
    reduce, where one of them is given."""

    def decorate(loss: F) -> F:
        places = {name: at for at, name in enumerate(signature(loss).parameters)}
        first = min(places[name] for name in _ONCE)

        @wraps(loss)
        def reduced(*args: Any, **kwargs: Any) -> Node:
            if len(args) > first or not kwargs.keys().isdisjoint(_ONCE):
                given = dict(zip(places, args, strict=False)) | kwargs
                average, reduce = (given.pop(name, None) for name in _ONCE)
                if average is not None or reduce is not None:
                    kept = "none" if reduce is False else "sum" if average is False else "mean"
                    given["reduction"] = kept
                return loss(**given)
            return loss(*args, **kwargs)

        return layer(**face)(cast("F", reduced))

    return decorate


_ONCE = ("size_average", "reduce")


@_loss(aten="cross_entropy_loss", onnx="SoftmaxCrossEntropyLoss")
def cross_entropy(
    input: Node,
    target: Node,
    weight: Node | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Node:
    """-log softmax(input)[target]; classes are axis 1 (axis 0 of a single row), targets integers,
    or the probability of each class.

    Entries equal to ignore_index do not count, others count as much as the weight of their class.
    The mean is over what counts.
    """
    if target.dtype.is_float and target.shape == input.shape:
        return _soft_cross_entropy(input, target, weight, reduction, label_smoothing)
    rows, x = _classes_last(input, target)
    within.check(target, x.shape[-1], besides=ignore_index)
    logits = g.cast(x, x.dtype.computed_in)
    shifted = e.sub(logits, barrier(g.reduce("max", logits, -1)))
    total = g.log(r.sum(g.exp(shifted), -1))
    counts = e.ne(target, ignore_index)
    loss = g.sub(total, _chosen(shifted, target))
    factor = None if weight is None else _chosen(_line(weight, logits), target)
    if factor is not None:
        loss = e.mul(loss, factor)
    if label_smoothing:
        every = e.sub(_row(total), shifted)
        if weight is not None:
            every = e.mul(every, g.cast(weight, every.dtype))
        even = r.mean(every, -1)
        loss = e.add(e.mul(loss, 1 - label_smoothing), e.mul(even, label_smoothing))
    loss = e.where(counts, loss, 0.0)
    counted = g.cast(counts, loss.dtype) if factor is None else e.where(counts, factor, 0.0)
    result = _reduced(loss, reduction, counted)
    keep = autocast_dtype() or not rows.dtype.is_narrow
    return result if keep else g.cast(result, rows.dtype)


def _soft_cross_entropy(
    input: Node, target: Node, weight: Node | None, reduction: str, label_smoothing: float
) -> Node:
    x = as_float(input)
    if target.shape != x.shape or not x.shape:
        raise TensorError(
            f"probabilities are of the input's shape: input {text(input)}, target {text(target)}"
        )
    a = 1 if len(x.shape) > 1 else 0
    if label_smoothing:
        target = e.add(e.mul(target, 1 - label_smoothing), label_smoothing / x.shape[a])
    logs = e.mul(r.log_softmax(g.cast(x, x.dtype.computed_in), a), target)
    if weight is not None:
        line = [1] * len(x.shape)
        line[a] = x.shape[a]
        logs = e.mul(logs, g.reshape(weight, line))
    loss = g.neg(r.sum(logs, a))
    if reduction == "mean":
        rows = max(1, loss.type.size)
        return g.cast(e.div(r.sum(loss), rows), x.dtype)
    return g.cast(_reduced(loss, reduction), x.dtype)


def _line(weight: Node, logits: Node) -> Node:
    """The classes' weights as rows of the logits."""
    return g.broadcast(g.cast(weight, logits.dtype), logits.shape)


def _row(x: Node) -> Node:
    return g.reshape(x, (*x.shape, 1))


@_loss(aten="nll_loss_nd", onnx="NegativeLogLikelihoodLoss")
@_rounded_once
def nll_loss(
    input: Node,
    target: Node,
    weight: Node | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Node:
    """-input[target] of log-probabilities; otherwise as cross_entropy."""
    _, x = _classes_last(input, target)
    within.check(target, x.shape[-1], besides=ignore_index)
    counts = e.ne(target, ignore_index)
    loss = g.neg(_chosen(x, target))
    factor = None if weight is None else _chosen(_line(weight, x), target)
    if factor is not None:
        loss = e.mul(loss, factor)
    loss = e.where(counts, loss, 0.0)
    counted = g.cast(counts, loss.dtype) if factor is None else e.where(counts, factor, 0.0)
    return _reduced(loss, reduction, counted)


def _classes_last(input: Node, target: Node) -> tuple[Node, Node]:
    x = as_float(input)
    rank = len(x.shape)
    a = 1 if rank > 1 else 0
    if not rank or target.shape != x.shape[:a] + x.shape[a + 1 :] or not target.dtype.is_int:
        raise TensorError(
            f"targets are integers of the input's shape without its class axis {a}: "
            f"input {text(input)}, target {text(target)}"
        )
    return x, g.permute(x, [*(i for i in range(rank) if i != a), a])


def _chosen(x: Node, target: Node) -> Node:
    """x at the target's place on the last axis, by comparison with every place."""
    places = g.arange(x.shape[-1], target.dtype)
    hit = e.eq(g.reshape(target, (*target.shape, 1)), places)
    return r.sum(e.where(hit, x, 0.0), -1)


def _reduced(loss: Node, reduction: str, counted: Node | None = None) -> Node:
    """The loss as it is, its sum, or its mean, over as much as counted."""
    if reduction == "none":
        return loss
    if reduction == "sum":
        return r.sum(loss)
    if reduction != "mean":
        raise TensorError(f'reduction is "mean", "sum" or "none", got {reduction!r}')
    return r.mean(loss) if counted is None else e.div(r.sum(loss), r.sum(counted))


def _difference(input: Node, target: Node) -> Node:
    """input - target, of one shape; in float32 under autocast."""
    _same_shape(input, target)
    difference = e.sub(input, target)
    return g.cast(difference, DType.F32) if autocast_dtype() else difference


def _weighed(loss: Node, weight: Node | None) -> Node:
    return loss if weight is None else e.mul(loss, weight)


@_loss(aten="mse_loss")
@_rounded_once
def mse_loss(
    input: Node,
    target: Node,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Node | None = None,
) -> Node:
    """The squares of the differences."""
    return _reduced(_weighed(e.square(_difference(input, target)), weight), reduction)


@_loss(aten="l1_loss")
@_rounded_once
def l1_loss(
    input: Node,
    target: Node,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Node | None = None,
) -> Node:
    """The absolute differences."""
    return _reduced(_weighed(g.abs(_difference(input, target)), weight), reduction)


@_loss(aten="smooth_l1_loss")
@_rounded_once
def smooth_l1_loss(
    input: Node,
    target: Node,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Node:
    """Squares / (2 * beta) of differences below beta, else their size - beta / 2."""
    if beta < 0:
        raise TensorError(f"beta is at least 0, got {beta}")
    size = g.abs(_difference(input, target))
    if beta == 0:
        return _reduced(size, reduction)
    near = e.mul(e.square(size), 0.5 / beta)
    return _reduced(e.where(e.lt(size, beta), near, e.sub(size, 0.5 * beta)), reduction)


@layer(aten="huber_loss")
@_rounded_once
def huber_loss(
    input: Node,
    target: Node,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Node | None = None,
) -> Node:
    """Half the squares of differences below delta, else delta * (their size - delta / 2)."""
    if delta <= 0:
        raise TensorError(f"delta is above 0, got {delta}")
    size = g.abs(_difference(input, target))
    near, far = e.mul(e.square(size), 0.5), e.mul(e.sub(size, 0.5 * delta), delta)
    return _reduced(_weighed(e.where(e.lt(size, delta), near, far), weight), reduction)


@_loss(aten="binary_cross_entropy")
@_rounded_once
def binary_cross_entropy(
    input: Node,
    target: Node,
    weight: Node | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Node:
    """-(target * log(input) + (1 - target) * log(1 - input)), with logarithms of at least -100."""
    _same_shape(input, target)
    one, two = (e.clamp(f(v), min=-100.0) for f, v in ((g.log, input), (g.log1p, g.neg(input))))
    total = e.add(e.mul(target, one), e.mul(e.sub(1.0, target), two))
    return _reduced(_weighed(g.neg(total), weight), reduction)


@_loss(aten="binary_cross_entropy_with_logits")
@_rounded_once
def binary_cross_entropy_with_logits(
    input: Node,
    target: Node,
    weight: Node | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Node | None = None,
) -> Node:
    """-(pos_weight * target * log sigmoid(input) + (1 - target) * log sigmoid(-input)), without
    overflow."""
    _same_shape(input, target)
    positive = logsigmoid(input)
    positive = e.mul(target, positive if pos_weight is None else e.mul(pos_weight, positive))
    negative = e.mul(e.sub(1.0, target), logsigmoid(g.neg(input)))
    return _reduced(_weighed(g.neg(e.add(positive, negative)), weight), reduction)


def _same_shape(input: Node, target: Node) -> None:
    if input.shape != target.shape:
        raise TensorError(f"input {text(input)} and target {text(target)} differ in shape")


@_loss(aten="kl_div")
@_rounded_once
def kl_div(
    input: Node,
    target: Node,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Node:
    """target * (log(target) - input) of log-probabilities input; "batchmean" divides the sum by the
    rows."""
    if log_target:
        loss = e.mul(g.exp(target), e.sub(target, input))
    else:
        loss = e.sub(e.xlogy(target, target), e.mul(target, input))
    if reduction == "batchmean":
        return e.div(r.sum(loss), max(1, input.shape[0] if input.shape else 1))
    return _reduced(loss, reduction)


@_loss(aten="poisson_nll_loss")
@_rounded_once
def poisson_nll_loss(
    input: Node,
    target: Node,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Node:
    """exp(input) - target * input (of logarithms), or input - target * log(input + eps); with full
    plus Stirling's approximation of log(target!)."""
    if log_input:
        loss = e.sub(g.exp(input), e.mul(target, input))
    else:
        loss = e.sub(input, e.mul(target, g.log(e.add(input, eps))))
    if full:
        safe = e.where(e.gt(target, 1), target, 1.0)
        stirling = e.sub(e.mul(e.add(safe, 0.5), g.log(safe)), safe)
        stirling = e.add(stirling, 0.5 * math.log(2 * math.pi))
        loss = e.add(loss, e.where(e.gt(target, 1), stirling, 0.0))
    return _reduced(loss, reduction)


@layer(aten="gaussian_nll_loss")
@_rounded_once
def gaussian_nll_loss(
    input: Node,
    target: Node,
    var: Node | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Node:
    """(log(var) + (input - target) ** 2 / var) / 2, with a variance that counts as at least eps."""
    v = var if isinstance(var, Node) else g.full_like(input, var)
    if v.shape != input.shape and v.shape == input.shape[:-1]:
        v = g.reshape(v, (*v.shape, 1))
    held = e.where(e.lt(v, eps), barrier(e.clamp(v, min=eps)), v)
    held = e.add(v, barrier(e.sub(held, v)))  # PyTorch's gradient passes through the limit
    loss = e.mul(e.add(g.log(held), e.div(e.square(e.sub(input, target)), held)), 0.5)
    if full:
        loss = e.add(loss, 0.5 * math.log(2 * math.pi))
    return _reduced(loss, reduction)


@_loss(aten="hinge_embedding_loss")
@_rounded_once
def hinge_embedding_loss(
    input: Node,
    target: Node,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Node:
    """input where target is 1, max(0, margin - input) where it is -1."""
    away = e.where(e.eq(target, 1), 0.0, e.clamp(e.sub(margin, input), min=0.0))
    return _reduced(e.add(away, e.where(e.eq(target, -1), 0.0, input)), reduction)


@_loss(aten="soft_margin_loss")
@_rounded_once
def soft_margin_loss(
    input: Node,
    target: Node,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Node:
    """log(1 + exp(-target * input))."""
    return _reduced(log1p_exp(g.neg(e.mul(target, input))), reduction)


@_loss(aten="margin_ranking_loss")
@_rounded_once
def margin_ranking_loss(
    input1: Node,
    input2: Node,
    target: Node,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Node:
    """max(0, -target * (input1 - input2) + margin)."""
    loss = e.add(e.mul(g.neg(target), e.sub(input1, input2)), margin)
    return _reduced(e.clamp(loss, min=0.0), reduction)


@layer(aten="cosine_similarity")
@_rounded_once
def cosine_similarity(x1: Node, x2: Node, dim: int = 1, eps: float = 1e-8) -> Node:
    """The cosine of the angle of vectors along an axis, whose lengths count as at least eps."""
    a, b = (as_float(v) for v in meet(x1, x2))
    lengths = (e.clamp(r.norm(v, 2, dim, keepdim=True), min=eps) for v in (a, b))
    one, two = (e.div(v, length) for v, length in zip((a, b), lengths, strict=True))
    return r.sum(g.mul(one, two), dim)


@_loss(aten="cosine_embedding_loss")
@_rounded_once
def cosine_embedding_loss(
    input1: Node,
    input2: Node,
    target: Node,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Node:
    """1 - cosine where target is 1, max(0, cosine - margin) where it is -1."""
    dot = r.sum(e.mul(input1, input2), -1)
    lengths = (e.add(r.sum(e.square(v), -1), 1e-12) for v in (input1, input2))
    cosine = e.div(dot, g.sqrt(e.mul(*lengths)))
    near = e.where(e.eq(target, 1), e.sub(1.0, cosine), 0.0)
    away = e.where(e.eq(target, -1), e.clamp(e.sub(cosine, margin), min=0.0), 0.0)
    return _reduced(e.add(near, away), reduction)


@layer(aten="pairwise_distance")
@_rounded_once
def pairwise_distance(
    x1: Node, x2: Node, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Node:
    """The p-norm of x1 - x2 + eps along the last axis."""
    return r.norm(e.add(e.sub(x1, x2), eps), p, -1, keepdim)


@_loss(aten="triplet_margin_loss")
@_rounded_once
def triplet_margin_loss(
    anchor: Node,
    positive: Node,
    negative: Node,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Node:
    """max(0, |anchor - positive| - |anchor - negative| + margin); with swap the nearer of two
    distances to negative."""
    near = pairwise_distance(anchor, positive, p, eps)
    away = pairwise_distance(anchor, negative, p, eps)
    if swap:
        away = e.minimum(away, pairwise_distance(positive, negative, p, eps))
    return _reduced(e.clamp(e.add(e.sub(near, away), margin), min=0.0), reduction)


@_loss(aten="multi_margin_loss")
@_rounded_once
def multi_margin_loss(
    input: Node,
    target: Node,
    p: int = 1,
    margin: float = 1.0,
    weight: Node | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Node:
    """The mean over other classes of max(0, margin - input[target] + input) ** p."""
    n = input.shape[-1] if input.shape else 1
    x = g.reshape(input, (input.type.size // max(1, n), n))
    rows = g.reshape(target, (x.shape[0],))
    within.check(target, n)
    own = _chosen(x, rows)
    loss = e.pow(e.clamp(e.add(e.sub(x, _row(own)), margin), min=0.0), p)
    if weight is not None:
        loss = e.mul(loss, _row(_chosen(_line(weight, x), rows)))
    other = e.ne(g.reshape(rows, (x.shape[0], 1)), g.arange(n))
    loss = e.div(r.sum(e.where(other, loss, 0.0), -1), n)
    return _reduced(g.reshape(loss, target.shape), reduction)


@_loss(aten="multilabel_soft_margin_loss")
@_rounded_once
def multilabel_soft_margin_loss(
    input: Node,
    target: Node,
    weight: Node | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Node:
    """The mean over classes of -(target * log sigmoid(x) + (1 - target) * log sigmoid(-x))."""
    one = e.mul(target, logsigmoid(input))
    two = e.mul(e.sub(1.0, target), logsigmoid(g.neg(input)))
    return _reduced(r.mean(_weighed(g.neg(e.add(one, two)), weight), -1), reduction)


@_loss(aten="multilabel_margin_loss")
@_rounded_once
def multilabel_margin_loss(
    input: Node,
    target: Node,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Node:
    """The mean over pairs of a class of the row (target, up to its first -1) and another one of
    max(0, 1 - x[class] + x[other])."""
    n = input.shape[-1] if input.shape else 1
    rows = (input.type.size // max(1, n), n)
    x, t = g.reshape(input, rows), g.reshape(g.cast(target, DType.I64), rows)
    ended = g.scan("max", g.cast(e.lt(t, 0), DType.I64), 1)
    t = e.where(e.eq(ended, 0), t, -1)
    hit = e.eq(g.reshape(t, (*rows, 1)), g.arange(n))
    own = r.sum(e.where(hit, g.reshape(x, (rows[0], 1, n)), 0.0), -1)
    is_class = g.reduce("max", g.cast(hit, DType.I64), 1)
    pair = e.clamp(e.add(e.sub(g.reshape(x, (rows[0], 1, n)), _row(own)), 1.0), min=0.0)
    counts = g.and_(*meet(e.le(0, _row(t)), e.eq(is_class, 0)))
    loss = e.div(r.sum(e.where(counts, pair, 0.0), (1, 2)), n)
    return _reduced(g.reshape(loss, input.shape[:-1]), reduction)
