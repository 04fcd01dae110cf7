"""Gradient descent with momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hal.tile.node import Node
from stack import ops as g
from stack.framework.expr import elementwise as e
from stack.framework.optim.optimizer import Optimizer, Shard


class SGD(Optimizer):
    """p -= lr * d, where d is the gradient plus weight_decay * p.

    With momentum b = momentum * b + (1 - dampening) * d takes d's place (b = d at the first step);
    with nesterov d + momentum * b.
    """

    state_names = ("momentum_buffer",)
    schedulable = (("momentum", None),)

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        if nesterov and (momentum <= 0 or dampening):
            raise ValueError("nesterov needs a momentum above 0, and no dampening")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def update(self, shard: Shard, value: Node, gradient: Node) -> tuple[Node, dict[str, Node]]:
        spread = shard.spread
        rate, momentum = spread.vector(self.rates()), self.setting("momentum")
        d = gradient
        if any(self.setting("weight_decay")):
            d = g.add(d, g.mul(spread.vector(self.setting("weight_decay")), value))
        if not any(momentum):
            return g.sub(value, g.mul(rate, d)), {}
        factor = spread.vector(self.operands("momentum"))
        fresh = d
        if any(self.setting("dampening")):
            is_first = e.le(shard.count, 1.0)
            kept = [e.where(is_first, 1.0, 1 - a) for a in self.setting("dampening")]
            fresh = g.mul(shard.vector(kept), d)
        buffer = g.add(g.mul(factor, shard.state["momentum_buffer"].node), fresh)
        ahead = g.add(d, g.mul(factor, buffer))
        flags = [float(n) for n in self.setting("nesterov")]
        step = e.where(e.gt(spread.vector(flags), 0), ahead, buffer) if any(flags) else buffer
        if all(flags):
            step = ahead
        return g.sub(value, g.mul(rate, step)), {"momentum_buffer": buffer}
