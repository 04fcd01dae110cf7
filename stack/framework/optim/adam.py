"""Adam and AdamW."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.cell import rebind
from stack.framework.create import tensor
from stack.framework.expr import elementwise as e
from stack.framework.optim.optimizer import Optimizer, Shard
from stack.framework.tensor import Tensor


class Adam(Optimizer):
    """p -= lr * m / (sqrt(v) + eps), with m and v the bias-corrected running means of d and of d *
    d.

    d is the gradient plus weight_decay * p. The correction counts the optimizer's steps: unlike in
    PyTorch, which counts those of each parameter, also the ones in which a parameter had no
    gradient and stayed as it was.
    """

    state_names = ("exp_avg", "exp_avg_sq")
    decoupled = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )
        each = sorted({b for pair in self.setting("betas") for b in pair})
        # 1 - beta^t, kept by its recurrence because 1 - 0.999 loses four digits in float32.
        self._corrections = {b: tensor(np.float32(0), device=self.steps.device) for b in each}

    def advance(self) -> None:
        super().advance()
        for beta, cell in self._corrections.items():
            rebind(cell, e.add(e.mul(cell.node, beta), 1 - beta))

    def _set_steps(self, count: float) -> None:
        super()._set_steps(count)
        for beta, cell in self._corrections.items():
            done = -math.expm1(count * math.log(beta)) if beta else float(count > 0)
            rebind(cell, g.const(done, DType.F32))

    def _correction(self, which: int) -> list[Node]:
        return [self._corrections[pair[which]].node for pair in self.setting("betas")]

    def update(self, shard: Shard, value: Node, gradient: Node) -> tuple[Node, dict[str, Node]]:
        spread, betas = shard.spread, self.setting("betas")
        rates, decay = self.rates(), self.setting("weight_decay")
        d = gradient
        if any(decay) and self.decoupled:
            kept = [e.sub(1.0, e.mul(r, w)) for r, w in zip(rates, decay, strict=True)]
            value = g.mul(value, spread.vector(kept))
        elif any(decay):
            d = g.add(d, g.mul(spread.vector(decay), value))
        m, v = shard.state["exp_avg"].node, shard.state["exp_avg_sq"].node
        m = g.add(m, g.mul(g.sub(d, m), spread.vector([1 - b for b, _ in betas])))
        fresh = g.mul(g.mul(d, d), spread.vector([1 - b for _, b in betas]))
        v = g.add(g.mul(v, spread.vector([b for _, b in betas])), fresh)
        size = [g.div(r, c) for r, c in zip(rates, self._correction(0), strict=True)]
        scale = spread.vector([g.sqrt(c) for c in self._correction(1)])
        bottom = g.add(g.div(g.sqrt(v), scale), spread.vector(self.setting("eps")))
        moved = g.sub(value, g.div(g.mul(m, spread.vector(size)), bottom))
        return moved, {"exp_avg": m, "exp_avg_sq": v}


class AdamW(Adam):
    """Adam whose weight decay does not pass through the gradient: p *= 1 - lr * weight_decay
    first."""

    decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)
