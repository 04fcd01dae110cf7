"""Adam and its kin: steps by running means of gradients and of their squares."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, cast

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.expr import elementwise as e
from stack.framework.expr.operand import Operand, as_node
from stack.framework.optim.optimizer import Group, Optimizer, Shard

Betas = tuple[float, float]


class Moments(Optimizer):
    """Keeps m and v, the running means of d and of d * d, where d is the gradient plus weight_decay
    * p (or, decoupled, p is multiplied by 1 - lr * weight_decay)."""

    state_names: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
    schedulable: tuple[tuple[str, int | None], ...] = (("betas", 0), ("betas", 1))

    def correction(self, shard: Shard, which: int) -> list[Node]:
        """1 - beta^t for every group's beta of that number, in the form of the count."""
        return [_left(shard, beta) for beta in self.operands("betas", which)]

    def decayed(self, shard: Shard, value: Node, gradient: Node) -> tuple[Node, Node]:
        """p and d with their part of the weight decay."""
        spread, decay = shard.spread, self.setting("weight_decay")
        apart = self.setting("decoupled_weight_decay")
        if any(w for w, a in zip(decay, apart, strict=True) if a):
            each = zip(self.rates(), decay, apart, strict=True)
            kept = [e.sub(1.0, e.mul(r, w * a)) for r, w, a in each]
            value = g.mul(value, spread.vector(kept))
        if any(w for w, a in zip(decay, apart, strict=True) if not a):
            joined = [w * (not a) for w, a in zip(decay, apart, strict=True)]
            gradient = g.add(gradient, g.mul(spread.vector(joined), value))
        return value, gradient

    def means(self, shard: Shard, d: Node) -> tuple[Node, Node]:
        """The new m and v."""
        spread, (first, second) = shard.spread, (self.operands("betas", i) for i in (0, 1))
        m, v = shard.state["exp_avg"].node, shard.state["exp_avg_sq"].node
        m = g.add(m, g.mul(g.sub(d, m), spread.vector([_rest(b) for b in first])))
        fresh = g.mul(g.mul(d, d), spread.vector([_rest(b) for b in second]))
        return m, g.add(g.mul(v, spread.vector(second)), fresh)


def _rest(beta: Operand) -> Operand:
    return e.sub(1.0, beta) if isinstance(beta, Node) else 1 - beta


def _left(shard: Shard, beta: Operand) -> Node:
    """1 - beta^t, of the count alone, so that who goes on from a count has it to the bit; by
    expm1, because 1 - 0.999 loses four digits in float32."""
    if isinstance(beta, Node):
        return g.neg(g.expm1(g.mul(shard.count, g.log(as_node(beta, DType.F32)))))
    return g.neg(g.expm1(_power(shard, beta)))


def _power(shard: Shard, beta: float) -> Node:
    """log beta^t."""
    return e.mul(shard.count, math.log(beta) if beta else -math.inf)


def quotients(a: Sequence[Node], b: Sequence[Node]) -> list[Node]:
    """The quotient of each pair."""
    return [e.div(x, y) for x, y in zip(a, b, strict=True)]


class Adam(Moments):
    """p -= lr * m / (sqrt(v) + eps), with m and v bias-corrected; with amsgrad the greatest v so
    far takes v's place. Kingma and Ba, https://arxiv.org/abs/1412.6980."""

    decoupled = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool | None = None,
    ) -> None:
        apart = self.decoupled if decoupled_weight_decay is None else decoupled_weight_decay
        if amsgrad:
            self.state_names = (*self.state_names, "max_exp_avg_sq")
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "differentiable": differentiable,
            "decoupled_weight_decay": apart,
        }
        super().__init__(params, defaults)

    def update(self, shard: Shard, value: Node, gradient: Node) -> tuple[Node, dict[str, Node]]:
        spread = shard.spread
        value, d = self.decayed(shard, value, gradient)
        m, v = self.means(shard, d)
        state = {"exp_avg": m, "exp_avg_sq": v}
        if "max_exp_avg_sq" in shard.state:
            most = g.maximum(shard.state["max_exp_avg_sq"].node, v)
            flags = [float(a) for a in self.setting("amsgrad")]
            v = most if all(flags) else e.where(e.gt(spread.vector(flags), 0), most, v)
            state["max_exp_avg_sq"] = most
        size = quotients(self.rates(), self.correction(shard, 0))
        scale = shard.vector([g.sqrt(c) for c in self.correction(shard, 1)])
        bottom = g.add(g.div(g.sqrt(v), scale), spread.vector(self.setting("eps")))
        return g.sub(value, g.div(g.mul(m, shard.vector(size)), bottom)), state


class AdamW(Adam):
    """Adam whose weight decay does not pass through the gradient: p *= 1 - lr * weight_decay
    first. Loshchilov and Hutter, https://arxiv.org/abs/1711.05101."""

    decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        ways = {"maximize": maximize, "differentiable": differentiable}
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **ways)


class Adamax(Moments):
    """p -= lr / (1 - beta1^t) * m / u, with u = max(beta2 * u, abs(d) + eps): Adam with the
    greatest gradient in the place of v. Kingma and Ba, https://arxiv.org/abs/1412.6980."""

    state_names = ("exp_avg", "exp_inf")

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 2e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "differentiable": differentiable,
            "decoupled_weight_decay": False,
        }
        super().__init__(params, defaults)

    def update(self, shard: Shard, value: Node, gradient: Node) -> tuple[Node, dict[str, Node]]:
        spread, (first, second) = shard.spread, (self.operands("betas", i) for i in (0, 1))
        value, d = self.decayed(shard, value, gradient)
        m, u = shard.state["exp_avg"].node, shard.state["exp_inf"].node
        m = g.add(m, g.mul(g.sub(d, m), spread.vector([_rest(b) for b in first])))
        most = g.add(g.abs(d), spread.vector(self.setting("eps")))
        u = g.maximum(g.mul(u, spread.vector(second)), most)
        size = shard.vector(quotients(self.rates(), self.correction(shard, 0)))
        return g.sub(value, g.mul(size, g.div(m, u))), {"exp_avg": m, "exp_inf": u}


EXCESS_TERMS = 9
"""Of e^y - 1 - y as a series down to y = -1: the next one is 7e-8 of it."""


class RAdam(Moments):
    """Adam whose steps are scaled by how sure v is, and which takes m alone while v is not: Liu et
    al., https://arxiv.org/abs/1908.03265."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "differentiable": differentiable,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, defaults)

    schedulable = ()

    def update(self, shard: Shard, value: Node, gradient: Node) -> tuple[Node, dict[str, Node]]:
        spread = shard.spread
        value, d = self.decayed(shard, value, gradient)
        m, v = self.means(shard, d)
        sure, size, scale = [], [], []
        for rate, (a, b) in zip(self.rates(), self.setting("betas"), strict=True):
            c, t = _left(shard, b), shard.count
            ratio = g.div(_excess(shard, b), e.mul(c, 1 - b))
            rho, end = e.sub(e.mul(g.sub(t, ratio), 2.0), 1.0), 2 / (1 - b) - 1
            top = e.mul(e.mul(e.sub(rho, 4.0), e.sub(rho, 2.0)), end)
            squared = g.div(top, e.mul(rho, (end - 4) * (end - 2)))
            is_sure = e.gt(rho, 5.0)
            sure.append(e.where(is_sure, 1.0, 0.0))
            scale.append(g.sqrt(e.mul(e.where(is_sure, squared, 1.0), c)))
            size.append(e.div(rate, _left(shard, a)))
        bottom = g.add(g.sqrt(v), spread.vector(self.setting("eps")))
        rated = g.div(g.mul(m, shard.vector(scale)), bottom)
        step = g.where(e.gt(shard.vector(sure), 0.0), rated, m)
        return g.sub(value, g.mul(shard.vector(size), step)), {"exp_avg": m, "exp_avg_sq": v}


def _excess(shard: Shard, beta: float) -> Node:
    """s = t (1 - beta) - (1 - beta^t).

    The length of RAdam's average, rho = 2 / (1 - beta) - 1 - 2 t beta^t / (1 - beta^t), is the
    difference of numbers near 2000. It is 2 t - 1 - 2 s / ((1 - beta) (1 - beta^t)), and with y =
    log beta^t s is t (1 - beta + log beta) + (e^y - 1 - y), in which float32 loses little."""
    if not beta:
        return e.sub(shard.count, 1.0)
    y = _power(shard, beta)
    near: Operand = 0.0
    for k in range(EXCESS_TERMS + 1, 1, -1):
        near = e.add(e.mul(y, near), 1 / math.factorial(k))
    beyond = g.where(e.gt(y, -1.0), e.mul(g.mul(y, y), near), g.sub(g.expm1(y), y))
    return g.add(e.mul(shard.count, 1 - beta + math.log(beta)), beyond)


class NAdam(Moments):
    """Adam with Nesterov's look ahead: the step takes the next m, with mu_t = beta1 * (1 - 0.5 *
    0.96^(t * momentum_decay)) in the place of beta1.
    Dozat, https://openreview.net/pdf?id=OM0jvwB8jIp57ZJjtNEZ."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 2e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
            "maximize": maximize,
            "differentiable": differentiable,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, defaults)

    schedulable = ()

    def numbers_of(self, group: Group) -> dict[str, Hashable]:
        return {"mu_product": (group["betas"][0], group["momentum_decay"])}

    def number_at(self, key: Hashable, steps: float) -> float:
        beta, psi = cast("tuple[float, float]", key)
        each = (beta * (1 - 0.5 * math.pow(0.96, t * psi)) for t in range(1, int(steps) + 1))
        return math.prod(each)

    def advance(self, shard: Shard) -> dict[Hashable, Node]:
        found: dict[Hashable, Node] = {}
        for key in shard.numbers:
            beta, psi = cast("tuple[float, float]", key)
            mu = _mu_node(beta, psi, shard.steps.node)
            found[key] = g.mul(shard.numbers[key].node, mu)
        return found

    def update(self, shard: Shard, value: Node, gradient: Node) -> tuple[Node, dict[str, Node]]:
        spread = shard.spread
        value, d = self.decayed(shard, value, gradient)
        m, v = self.means(shard, d)
        now, ahead = [], []
        settings = zip(
            self.rates(), self.setting("betas"), self.setting("momentum_decay"), strict=True
        )
        for rate, (b, _), psi in settings:
            product, t = shard.number((b, psi)), shard.count
            mu, following = _mu_node(b, psi, t), _mu_node(b, psi, e.add(t, 1.0))
            now.append(g.div(e.mul(rate, e.sub(1.0, mu)), e.sub(1.0, product)))
            ahead.append(g.div(e.mul(rate, following), e.sub(1.0, g.mul(product, following))))
        scale = shard.vector([g.sqrt(c) for c in self.correction(shard, 1)])
        bottom = g.add(g.div(g.sqrt(v), scale), spread.vector(self.setting("eps")))
        step = g.add(g.mul(shard.vector(now), d), g.mul(shard.vector(ahead), m))
        return g.sub(value, g.div(step, bottom)), {"exp_avg": m, "exp_avg_sq": v}


def _mu_node(beta: float, psi: float, t: Node) -> Node:
    power = g.exp(e.mul(t, psi * math.log(0.96)))
    return g.cast(e.mul(e.sub(1.0, e.mul(power, 0.5)), beta), DType.F32)
