"""Optimizers that scale each step by the gradients' past sizes or signs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hal.tile.node import Node
from stack import ops as g
from stack.framework.expr import elementwise as e
from stack.framework.optim.optimizer import Optimizer, Shard


class _Decayed(Optimizer):
    def gradient_with_decay(self, shard: Shard, value: Node, gradient: Node) -> Node:
        """The gradient plus weight_decay * p."""
        decay = self.setting("weight_decay")
        if not any(decay):
            return gradient
        return g.add(gradient, g.mul(shard.spread.vector(decay), value))


class Adagrad(_Decayed):
    """p -= lr / (1 + (t - 1) * lr_decay) * d / (sqrt(s) + eps), where s is the sum of all d * d.
    Duchi et al., https://jmlr.org/papers/v12/duchi11a.html."""

    state_names = ("sum",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "maximize": maximize,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def state_at_first(self, name: str) -> float:
        return float(self.defaults["initial_accumulator_value"])

    def update(self, shard: Shard, value: Node, gradient: Node) -> tuple[Node, dict[str, Node]]:
        spread, d = shard.spread, self.gradient_with_decay(shard, value, gradient)
        total = g.add(shard.state["sum"].node, g.mul(d, d))
        before = e.sub(shard.count, 1.0)
        rates = [
            e.div(r, e.add(e.mul(before, w), 1.0)) if w else r
            for r, w in zip(self.rates(), self.setting("lr_decay"), strict=True)
        ]
        bottom = g.add(g.sqrt(total), spread.vector(self.setting("eps")))
        return g.sub(value, g.div(g.mul(shard.vector(rates), d), bottom)), {"sum": total}


class Adadelta(_Decayed):
    """p -= lr * step with step = sqrt(u + eps) / sqrt(v + eps) * d, where v and u are the running
    means of d * d and of step * step. Zeiler, https://arxiv.org/abs/1212.5701."""

    state_names = ("square_avg", "acc_delta")

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        defaults = {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay}
        ways = {"maximize": maximize, "differentiable": differentiable}
        super().__init__(params, {**defaults, **ways})

    def update(self, shard: Shard, value: Node, gradient: Node) -> tuple[Node, dict[str, Node]]:
        spread, d = shard.spread, self.gradient_with_decay(shard, value, gradient)
        rho = spread.vector(self.setting("rho"))
        rest = spread.vector([1 - r for r in self.setting("rho")])
        eps = spread.vector(self.setting("eps"))
        v = g.add(g.mul(rho, shard.state["square_avg"].node), g.mul(rest, g.mul(d, d)))
        u = shard.state["acc_delta"].node
        step = g.mul(g.div(g.sqrt(g.add(u, eps)), g.sqrt(g.add(v, eps))), d)
        u = g.add(g.mul(rho, u), g.mul(rest, g.mul(step, step)))
        moved = g.sub(value, g.mul(spread.vector(self.rates()), step))
        return moved, {"square_avg": v, "acc_delta": u}


class RMSprop(_Decayed):
    """p -= lr * d / (sqrt(v) + eps), where v is the running mean of d * d; centered, less the
    square of the running mean of d; with momentum b = momentum * b + d / (...) moves p. Hinton,
    https://www.cs.toronto.edu/~hinton/coursera/lecture6/lec6.pdf."""

    state_names = ("square_avg", "momentum_buffer", "grad_avg")
    schedulable = (("momentum", None),)

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "alpha": alpha,
            "eps": eps,
            "centered": centered,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def update(self, shard: Shard, value: Node, gradient: Node) -> tuple[Node, dict[str, Node]]:
        spread, d = shard.spread, self.gradient_with_decay(shard, value, gradient)
        rest = spread.vector([1 - a for a in self.setting("alpha")])
        kept = spread.vector(self.setting("alpha"))
        v = g.add(g.mul(kept, shard.state["square_avg"].node), g.mul(rest, g.mul(d, d)))
        state, inside = {"square_avg": v}, v
        if any(self.setting("centered")):
            mean = shard.state["grad_avg"].node
            mean = g.add(mean, g.mul(rest, g.sub(d, mean)))
            flags = [float(c) for c in self.setting("centered")]
            inside = g.sub(v, g.mul(spread.vector(flags), g.mul(mean, mean)))
            state["grad_avg"] = mean
        step = g.div(d, g.add(g.sqrt(inside), spread.vector(self.setting("eps"))))
        if any(self.setting("momentum")):
            before = shard.state["momentum_buffer"].node
            step = g.add(g.mul(spread.vector(self.operands("momentum")), before), step)
            state["momentum_buffer"] = step
        return g.sub(value, g.mul(spread.vector(self.rates()), step)), state


class Rprop(Optimizer):
    """p moves against its gradient's sign by a size of its own, which grows by etas[1] while the
    sign stays, and shrinks by etas[0] where it changes, where p then stays for a step. Riedmiller
    and Braun, https://ieeexplore.ieee.org/document/298623."""

    state_names = ("prev", "step_size")

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        defaults = {"lr": lr, "etas": etas, "step_sizes": step_sizes}
        ways = {"maximize": maximize, "differentiable": differentiable}
        super().__init__(params, {**defaults, **ways})

    def update(self, shard: Shard, value: Node, gradient: Node) -> tuple[Node, dict[str, Node]]:
        spread, before = shard.spread, shard.state["prev"].node
        down, up = (spread.vector([pair[i] for pair in self.setting("etas")]) for i in (0, 1))
        low, high = (spread.vector([s[i] for s in self.setting("step_sizes")]) for i in (0, 1))
        is_first = e.where(e.le(shard.count, 1.0), 1.0, 0.0)
        begins = e.gt(shard.vector([is_first] * len(self.param_groups)), 0.0)
        size = g.where(begins, spread.vector(self.rates()), shard.state["step_size"].node)
        agree = g.mul(gradient, before)
        same, turned = e.gt(agree, 0.0), e.lt(agree, 0.0)
        scaled = g.mul(size, g.where(same, up, g.where(turned, down, g.full_like(up, 1))))
        size = g.maximum(g.minimum(scaled, high), low)
        d = e.where(turned, 0.0, gradient)
        return g.sub(value, g.mul(e.sign(d), size)), {"prev": d, "step_size": size}
