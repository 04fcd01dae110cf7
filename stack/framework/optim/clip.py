"""Gradient clipping."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.devices import default_device
from stack.framework.expr import elementwise as e
from stack.framework.expr import reduce as r
from stack.framework.flat import FlatLayout, home_of
from stack.framework.tensor import Tensor


def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients so that their common 2-norm is at most max_norm. Returns the norm before.

    The gradients become views of flat arrays; where these are an optimizer's, its step takes them
    as they are.
    """
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    params = [p for p in given if p.grad is not None]
    if not params:
        return Tensor(g.const(0.0, DType.F32), given[0].device if given else default_device())
    parts = [_flat_gradient(group) for group in _by_dtype(params)]
    squares = [r.sum(e.square(g.cast(flat, DType.F32))) for _, _, flat in parts]
    total = squares[0]
    for s in squares[1:]:
        total = g.add(total, s)
    norm = g.sqrt(total)
    scale = e.minimum(e.div(max_norm, e.add(norm, 1e-6)), 1.0)
    for members, layout, flat in parts:
        scaled = e.mul(flat, g.cast(scale, flat.dtype))
        for p, view in zip(members, layout.split(scaled), strict=True):
            p.grad = Tensor(view, p.device)
    return Tensor(norm, params[0].device)


def _by_dtype(params: Sequence[Tensor]) -> list[list[Tensor]]:
    groups: dict[DType, list[Tensor]] = {}
    for p in params:
        groups.setdefault(p.dtype, []).append(p)
    return list(groups.values())


def _flat_gradient(params: Sequence[Tensor]) -> tuple[Sequence[Tensor], FlatLayout, Node]:
    """The gradients one after the other, in the order of the optimizer's array where there is
    one."""
    home = home_of(params)
    members = params if home is None else home.members
    layout = FlatLayout.of([p.shape for p in members]) if home is None else home.layout
    return members, layout, layout.join([p.grad.node for p in members if p.grad is not None])
