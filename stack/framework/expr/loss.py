"""Losses, in float32 for float16 and bfloat16."""

from __future__ import annotations

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr import reduce as r
from stack.framework.expr.operand import as_float, text
from stack.framework.expr.public import operator
from stack.framework.mode import autocast_dtype
from stack.framework.store import barrier


@operator(
    function=False,
    method=False,
    layer=True,
    aten="cross_entropy_loss",
    onnx="SoftmaxCrossEntropyLoss",
)
def cross_entropy(
    input: Node,
    target: Node,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Node:
    """-log softmax(input)[target]; classes are axis 1 (axis 0 of a single row), targets integers.

    Entries equal to ignore_index do not count. The mean is over those that count.
    """
    rows, x = _classes_last(input, target)
    logits = g.cast(x, x.dtype.computed_in)
    shifted = e.sub(logits, barrier(g.reduce("max", logits, -1)))
    total = g.log(r.sum(g.exp(shifted), -1))
    loss = g.sub(total, _chosen(shifted, target))
    if label_smoothing:
        even = g.sub(total, r.mean(shifted, -1))
        loss = e.add(e.mul(loss, 1 - label_smoothing), e.mul(even, label_smoothing))
    counts = e.ne(target, ignore_index)
    loss = e.where(counts, loss, 0.0)
    result = _reduced(loss, reduction, counts)
    keep = autocast_dtype() or not rows.dtype.is_narrow
    return result if keep else g.cast(result, rows.dtype)


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


def _reduced(loss: Node, reduction: str, counts: Node | None = None) -> Node:
    if reduction == "none":
        return loss
    if reduction == "sum":
        return r.sum(loss)
    if reduction != "mean":
        raise TensorError(f'reduction is "mean", "sum" or "none", got {reduction!r}')
    if counts is None:
        return r.mean(loss)
    return e.mul(r.sum(loss), g.recip(r.sum(g.cast(counts, loss.dtype))))


@operator(function=False, method=False, layer=True, aten="mse_loss")
def mse_loss(input: Node, target: Node, reduction: str = "mean") -> Node:
    """The squares of the differences."""
    return _elementwise(e.square, input, target, reduction)


@operator(function=False, method=False, layer=True, aten="l1_loss")
def l1_loss(input: Node, target: Node, reduction: str = "mean") -> Node:
    """The absolute differences."""
    return _elementwise(g.abs, input, target, reduction)


def _elementwise(function: object, input: Node, target: Node, reduction: str) -> Node:
    assert callable(function)
    if input.shape != target.shape:
        raise TensorError(f"input {text(input)} and target {text(target)} differ in shape")
    difference = e.sub(input, target)
    wide = g.cast(difference, DType.F32) if autocast_dtype() else difference
    return _reduced(function(wide), reduction)


@operator(function=False, method=False, layer=True, aten="binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(input: Node, target: Node, reduction: str = "mean") -> Node:
    """-(target * log sigmoid(input) + (1 - target) * log sigmoid(-input)), without overflow."""
    if input.shape != target.shape:
        raise TensorError(f"input {text(input)} and target {text(target)} differ in shape")
    tail = g.log(e.add(g.exp(g.neg(g.abs(input))), 1.0))
    positive = e.sub(e.clamp(input, min=0.0), e.mul(input, target))
    return _reduced(e.add(positive, tail), reduction)
