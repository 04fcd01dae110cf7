"""Rows of lists of tensors, as optimizers and gradient scalers call them: a list is one recorded
operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.bridge.torch.kernels import call_into
from stack.bridge.torch.rows import F, _lerp, _vector_norm, row
from stack.bridge.torch.tape import Row
from stack.framework.errors import TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr.public import METHODS


def _each(function: F) -> F:
    """A row on lists of tensors, and lists of or single other arguments."""

    def lower(xs: Sequence[Node], *args: Any, **kwargs: Any) -> list[Node]:
        counts = [len(a) for a in args if isinstance(a, list)]
        if any(n != len(xs) for n in counts):
            raise TensorError(f"lists of {[len(xs), *counts]} elements, which are to be equal")
        return [
            g.cast(
                function(x, *[a[i] if isinstance(a, list) else a for a in args], **kwargs), x.dtype
            )
            for i, x in enumerate(xs)
        ]

    return lower


def _of_moments(x: Node, a: Node, b: Node, value: Any = 1, *, divided: bool) -> Node:
    return e.add(x, e.mul((e.div if divided else e.mul)(a, b), value))


_FOREACH: dict[str, F] = {
    "add": lambda x, y, alpha=1: e.add(x, y, alpha),
    "sub": lambda x, y, alpha=1: e.sub(x, y, alpha),
    "mul": e.mul,
    "div": e.div,
    "pow": e.pow,
    "maximum": e.maximum,
    "minimum": e.minimum,
    "clamp_min": lambda x, y: e.clamp(x, min=y),
    "clamp_max": lambda x, y: e.clamp(x, max=y),
    "lerp": _lerp,
    "addcmul": lambda x, a, b, value=1: _of_moments(x, a, b, value, divided=False),
    "addcdiv": lambda x, a, b, value=1: _of_moments(x, a, b, value, divided=True),
    "sqrt": g.sqrt,
    "rsqrt": g.rsqrt,
    "reciprocal": lambda x: e.div(1.0, x),
    "neg": g.neg,
    "abs": lambda x: METHODS["abs"].expression(x),
    "exp": g.exp,
    "log": g.log,
    "sign": e.sign,
    "zero": lambda x: g.full_like(x, 0),
    "copy": lambda x, y: y,
}
for _name, _function in _FOREACH.items():
    for _overload in getattr(torch.ops.aten, f"_foreach_{_name}_").overloads():
        if "out" not in _overload:
            _full = f"_foreach_{_name}" + ("" if _overload == "default" else f".{_overload}")
            row(_full)(_each(_function))


@row("_foreach_norm.Scalar")
def _foreach_norm(xs: Sequence[Node], ord: Any = 2, dtype: DType | None = None) -> list[Node]:
    return [_vector_norm(x, ord, dtype=dtype) for x in xs]


# Fused optimizers


def _wide(x: Node) -> Node:
    return g.cast(x, x.dtype.computed_in)


def _unscaled(grad: Node, scale: Node | None, maximize: bool) -> Node:
    made = _wide(grad) if scale is None else e.div(_wide(grad), scale)
    return g.neg(made) if maximize else made


def _unless(found: Node | None, old: Sequence[Node], new: Sequence[Node]) -> list[Node]:
    """The new values, but the old ones where gradients were not finite."""
    made = [g.cast(n, o.dtype) for n, o in zip(new, old, strict=True)]
    if found is None:
        return made
    skip = e.ne(g.reshape(found, ()), 0.0)
    return [e.where(skip, o, n) for o, n in zip(old, made, strict=True)]


def _adam(decoupled: bool) -> F:
    def step(
        xs: Sequence[Node], grads: Sequence[Node], firsts: Sequence[Node],
        seconds: Sequence[Node], most: Sequence[Node], steps: Sequence[Node], lr: Any,
        beta1: float, beta2: float, decay: float, eps: float, amsgrad: bool, maximize: bool,
        scale: Node | None, found: Node | None,
    ) -> list[Node]:  # fmt: skip
        new: list[list[Node]] = [[], [], [], []]
        for i, x in enumerate(xs):
            grad, wide, at = _unscaled(grads[i], scale, maximize), _wide(x), _wide(steps[i])
            if decoupled:
                wide = e.mul(wide, e.sub(1.0, e.mul(lr, decay)))
            else:
                grad = e.add(grad, e.mul(wide, decay))
            first = e.add(_wide(firsts[i]), e.mul(e.sub(grad, _wide(firsts[i])), 1 - beta1))
            second = e.add(e.mul(_wide(seconds[i]), beta2), e.mul(e.mul(grad, grad), 1 - beta2))
            bound = second
            if amsgrad:
                bound = e.maximum(_wide(most[i]), second)
                new[3].append(bound)
            one, two = e.sub(1.0, e.pow(beta1, at)), e.sub(1.0, e.pow(beta2, at))
            below = e.add(e.div(g.sqrt(bound), g.sqrt(two)), eps)
            new[0].append(e.sub(wide, e.div(e.mul(e.div(lr, one), first), below)))
            new[1].append(first)
            new[2].append(second)
        old = [*xs, *firsts, *seconds, *(most if amsgrad else ())]
        return _unless(found, old, [n for part in new for n in part])

    return step


def _fused_adam(name: str, decoupled: bool) -> Any:
    table = Row(name, _adam(decoupled))

    def kernel(
        xs: Sequence[Tensor], grads: Sequence[Tensor], firsts: Sequence[Tensor],
        seconds: Sequence[Tensor], most: Sequence[Tensor], steps: Sequence[Tensor], *, lr: Any,
        beta1: float, beta2: float, weight_decay: float, eps: float, amsgrad: bool,
        maximize: bool, grad_scale: Any = None, found_inf: Any = None,
    ) -> None:  # fmt: skip
        targets = [*xs, *firsts, *seconds, *(most if amsgrad else ())]
        if xs:
            call_into(
                table, targets,
                (xs, grads, firsts, seconds, most, steps, lr, beta1, beta2, weight_decay, eps,
                 amsgrad, maximize, grad_scale, found_inf), {},
            )  # fmt: skip

    return kernel


def _sgd(
    xs: Sequence[Node], grads: Sequence[Node], before: Sequence[Node], decay: float,
    momentum: float, lr: Any, dampening: float, nesterov: bool, maximize: bool, first: bool,
    scale: Node | None, found: Node | None,
) -> list[Node]:  # fmt: skip
    new: list[Node] = []
    kept: list[Node] = []
    for i, x in enumerate(xs):
        grad, wide = _unscaled(grads[i], scale, maximize), _wide(x)
        grad = e.add(grad, e.mul(wide, decay))
        if before:
            old = _wide(before[i])
            moved = grad if first else e.add(e.mul(old, momentum), e.mul(grad, 1 - dampening))
            kept.append(moved)
            grad = e.add(grad, e.mul(moved, momentum)) if nesterov else moved
        new.append(e.sub(wide, e.mul(grad, lr)))
    return _unless(found, [*xs, *before], [*new, *kept])


_SGD = Row("_fused_sgd_", _sgd)


def _fused_sgd(
    xs: Sequence[Tensor], grads: Sequence[Tensor], buffers: Sequence[Tensor], *,
    weight_decay: float, momentum: float, lr: Any, dampening: float, nesterov: bool,
    maximize: bool, is_first_step: bool, grad_scale: Any = None, found_inf: Any = None,
) -> None:  # fmt: skip
    kept = buffers if momentum else []
    if xs:
        call_into(
            _SGD, [*xs, *kept],
            (xs, grads, kept, float(weight_decay), float(momentum), lr, float(dampening), nesterov,
             maximize, is_first_step, grad_scale, found_inf), {},
        )  # fmt: skip


def _adagrad(
    xs: Sequence[Node], grads: Sequence[Node], sums: Sequence[Node], steps: Sequence[Node],
    lr: Any, lr_decay: float, decay: float, eps: float, maximize: bool, scale: Node | None,
    found: Node | None,
) -> list[Node]:  # fmt: skip
    new: list[Node] = []
    kept: list[Node] = []
    for i, x in enumerate(xs):
        grad, wide = _unscaled(grads[i], scale, maximize), _wide(x)
        grad = e.add(grad, e.mul(wide, decay))
        rate = e.div(lr, e.add(e.mul(e.sub(_wide(steps[i]), 1.0), lr_decay), 1.0))
        kept.append(e.add(_wide(sums[i]), e.mul(grad, grad)))
        below = e.add(g.sqrt(kept[-1]), eps)
        new.append(e.sub(wide, e.mul(e.div(grad, below), rate)))
    return _unless(found, [*xs, *sums], [*new, *kept])


_ADAGRAD = Row("_fused_adagrad_", _adagrad)


def _fused_adagrad(
    xs: Sequence[Tensor], grads: Sequence[Tensor], sums: Sequence[Tensor],
    steps: Sequence[Tensor], *, lr: Any, lr_decay: float, weight_decay: float, eps: float,
    maximize: bool, grad_scale: Any = None, found_inf: Any = None,
) -> None:  # fmt: skip
    if xs:
        call_into(
            _ADAGRAD, [*xs, *sums],
            (xs, grads, sums, steps, lr, float(lr_decay), float(weight_decay), eps, maximize,
             grad_scale, found_inf), {},
        )  # fmt: skip


# Scaled gradients


def _unscale(xs: Sequence[Node], found: Node, inverse: Node) -> list[Node]:
    """The gradients by the inverse of the scale, and 1 where one of them is not finite."""
    bad = found
    for x in xs:
        finite = METHODS["isfinite"].expression(_wide(x))
        flat = g.reshape(g.cast(e.logical_not(finite), DType.F32), (x.type.size,))
        bad = e.maximum(bad, g.reshape(g.reduce("max", flat, 0), found.shape))
    return [*[g.cast(e.mul(_wide(x), inverse), x.dtype) for x in xs], bad]


_UNSCALE = Row("_amp_foreach_non_finite_check_and_unscale_", _unscale)


def _amp_unscale(xs: Sequence[Tensor], found: Tensor, inverse: Tensor) -> None:
    kept = [x for x in xs if x.numel()]
    if kept:
        call_into(_UNSCALE, [*kept, found], (kept, found, inverse), {})


def _scale(
    scale: Node, tracker: Node, found: Node, growth: float, backoff: float, interval: int
) -> list[Node]:
    bad = e.ne(found, 0.0)
    steps = e.add(tracker, 1)
    full = e.eq(steps, interval)
    grown = e.mul(scale, growth)
    grown = e.where(METHODS["isfinite"].expression(grown), grown, scale)
    made = e.where(bad, e.mul(scale, backoff), e.where(full, grown, scale))
    return [made, e.where(bad, 0, e.where(full, 0, steps))]


_SCALE = Row("_amp_update_scale_", _scale)


def _amp_update(
    scale: Tensor, tracker: Tensor, found: Tensor, growth: float, backoff: float, interval: int
) -> Tensor:
    call_into(_SCALE, [scale, tracker], (scale, tracker, found, growth, backoff, interval), {})
    return scale


KERNELS: dict[str, Callable[..., Any]] = {
    "_fused_adam_": _fused_adam("_fused_adam_", decoupled=False),
    "_fused_adam_.tensor_lr": _fused_adam("_fused_adam_", decoupled=False),
    "_fused_adamw_": _fused_adam("_fused_adamw_", decoupled=True),
    "_fused_adamw_.tensor_lr": _fused_adam("_fused_adamw_", decoupled=True),
    "_fused_adagrad_": _fused_adagrad,
    "_fused_adagrad_.tensor_lr": _fused_adagrad,
    "_fused_sgd_": _fused_sgd,
    "_fused_sgd_.tensor_lr": _fused_sgd,
    "_amp_foreach_non_finite_check_and_unscale_": _amp_unscale,
    "_amp_update_scale_": _amp_update,
}
"""By operator."""
