"""Gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import reduce

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node
from stack import ops as g
from stack.framework.cell import under_way
from stack.framework.devices import default_device
from stack.framework.expr import elementwise as e
from stack.framework.expr import reduce as r
from stack.framework.flat import FlatLayout, home_of, windows
from stack.framework.recorded import tape_of
from stack.framework.tensor import Tensor, on_tape, window_on


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients so that their common norm is at most max_norm. Returns the norm before.

    The norm is the root of the sum of the absolute values to the power of norm_type, or the
    greatest one for infinity. With error_if_nonfinite it is read, and RuntimeError raised where it
    is infinite or NaN. The gradients become views of flat arrays; where these are an optimizer's,
    its step takes them as they are.
    """
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    params = [p for p in given if p.grad is not None]
    if not params:
        return Tensor(g.const(0.0, DType.F32), given[0].device if given else default_device())
    recorded = not (under_way or error_if_nonfinite)
    if recorded and (found := _clipped(params, max_norm, norm_type)) is not None:
        return found
    parts = []
    for group in _by_dtype(params):
        members, layout = _order(group)
        grads = [p.grad.node for p in members if p.grad is not None]
        parts.append((members, layout, layout.join(grads)))
    norm = _norm([g.cast(flat, DType.F32) for _, _, flat in parts], float(norm_type))
    if error_if_nonfinite and not math.isfinite(Tensor(norm, params[0].device).item()):
        raise RuntimeError(f"the {norm_type}-norm of the gradients is infinite or NaN")
    for members, layout, flat in parts:
        scaled = _scaled(flat, norm, max_norm)
        for p, view in zip(members, layout.split(scaled), strict=True):
            p.grad = Tensor(view, p.device)
    return Tensor(norm, params[0].device)


def _scaled(flat: Node, norm: Node, max_norm: float) -> Node:
    scale = e.minimum(e.div(max_norm, e.add(norm, 1e-6)), 1.0)
    return e.mul(flat, g.cast(scale, flat.dtype))


@dataclass(frozen=True, slots=True)
class _Clip:
    """Clipping as an operation on a tape: from gradients to their norm before, and to all of them,
    scaled, as one flat array."""

    layout: FlatLayout
    max_norm: float
    kind: float

    def __call__(self, *gradients: Node) -> tuple[Node, Node]:
        flat = self.layout.join(gradients)
        norm = _norm([g.cast(flat, DType.F32)], self.kind)
        return norm, _scaled(flat, norm, self.max_norm)


def _clipped(params: Sequence[Tensor], max_norm: float, norm_type: float) -> Tensor | None:
    """The norm, where clipping is on a tape now; None where it is not for one."""
    members, layout = _order(params)
    found = [p.grad for p in members if p.grad is not None]
    if len(_by_dtype(params)) > 1 or len({*found}) < len(members):
        return None
    tape = tape_of(params[0].device)
    numbers = tape.numbers(found)
    if numbers is None or not max_norm > 0 or any(d.requires_grad for d in found):
        return None
    both = tape.several(_Clip(layout, float(max_norm), float(norm_type)), *numbers)
    if both is None or None in both:
        return None
    norm, flat = [on_tape(tape, n) for n in both if n is not None]
    for p, window in zip(members, windows(layout), strict=True):
        p.grad = window_on(flat, window)
    return norm


def _norm(flats: Sequence[Node], kind: float) -> Node:
    """The common norm of flat arrays, whose gaps hold 0."""
    if math.isinf(kind):
        tops = [r.amax(g.abs(flat)) for flat in flats]
        return reduce(g.maximum, tops)
    powers = [r.sum(e.square(x) if kind == 2 else e.pow(g.abs(x), kind)) for x in flats]
    total = reduce(g.add, powers)
    return g.sqrt(total) if kind == 2 else e.pow(total, 1 / kind)


def clip_grad_value_(
    parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None
) -> None:
    """Limit every element of all gradients to [-clip_value, clip_value]."""
    for p in [parameters] if isinstance(parameters, Tensor) else parameters:
        if p.grad is not None:
            p.grad = p.grad.clamp(-clip_value, clip_value)


def get_total_norm(tensors: Tensor | Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
    """The common norm of tensors, as of one long vector."""
    given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    flats = [g.cast(t.flatten().node, DType.F32) for t in given]
    device = given[0].device if given else default_device()
    return Tensor(_norm(flats, float(norm_type)) if flats else g.const(0.0, DType.F32), device)


def _by_dtype(params: Sequence[Tensor]) -> list[list[Tensor]]:
    groups: dict[DType, list[Tensor]] = {}
    for p in params:
        groups.setdefault(p.dtype, []).append(p)
    return list(groups.values())


def _order(params: Sequence[Tensor]) -> tuple[Sequence[Tensor], FlatLayout]:
    """The parameters in the order of the optimizer's array where there is one, and its layout."""
    home = home_of(params)
    if home is not None:
        return home.members, home.layout
    return params, FlatLayout.of([p.shape for p in params])
