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

    With momentum b = momentum * b + d takes d's place; with nesterov d + momentum * b.
    """

    state_names = ("momentum_buffer",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
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
        factor = spread.vector(momentum)
        buffer = g.add(g.mul(factor, shard.state["momentum_buffer"].node), d)
        ahead = g.add(d, g.mul(factor, buffer))
        flags = [float(n) for n in self.setting("nesterov")]
        step = e.where(e.gt(spread.vector(flags), 0), ahead, buffer) if any(flags) else buffer
        if all(flags):
            step = ahead
        return g.sub(value, g.mul(rate, step)), {"momentum_buffer": buffer}
