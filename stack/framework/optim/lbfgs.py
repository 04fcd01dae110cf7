"""L-BFGS: steps by an estimate of the second derivatives from the last gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from hal.tile.node import Node
from stack.framework.functions import cat
from stack.framework.modes import enable_grad, no_grad
from stack.framework.optim.optimizer import Optimizer, Shard
from stack.framework.tensor import Tensor


class LBFGS(Optimizer):
    """Each `step(closure)` makes up to max_iter moves along the direction of the two-loop recursion
    over the last history_size moves, with a fixed rate, or with line_search_fn "strong_wolfe" by
    a rate that `searched` finds. Nocedal, https://doi.org/10.1090/S0025-5718-1980-0572855-7.

    The closure clears gradients, computes the loss and calls backward. Scalars are read from the
    device after each move, so a step cannot be jitted. The parameters are one group.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        if line_search_fn not in (None, "strong_wolfe"):
            raise ValueError(f'line_search_fn is None or "strong_wolfe", not {line_search_fn!r}')
        defaults = {
            "lr": lr,
            "max_iter": max_iter,
            "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change,
            "history_size": history_size,
            "line_search_fn": line_search_fn,
            "maximize": False,
        }
        super().__init__(params, defaults)
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS moves one group of parameters")
        self._moves: list[tuple[Tensor, Tensor, float]] = []
        self._direction: Tensor | None = None
        self._before: Tensor | None = None
        self._iterations, self._scale, self._rate = 0, 1.0, 0.0

    def update(self, shard: Shard, value: Node, gradient: Node) -> tuple[Node, dict[str, Node]]:
        raise NotImplementedError("LBFGS moves by its closure")

    def _gradient(self) -> Tensor:
        parts = [
            (p.grad if p.grad is not None else p.detach() * 0).reshape(-1)
            for p in self.param_groups[0]["params"]
        ]
        return cat(parts)

    def _move(self, rate: float, direction: Tensor) -> None:
        start = 0
        for p in self.param_groups[0]["params"]:
            p.add_(direction[start : start + p.numel()].reshape(p.shape) * rate)
            start += p.numel()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Up to max_iter moves; gives the loss before the first one."""
        if closure is None:
            raise TypeError("LBFGS.step takes a closure that computes the loss and its gradients")
        group = self.param_groups[0]
        with no_grad():
            with enable_grad():
                first = closure()
            loss, evaluations = float(first), 1
            gradient = self._gradient()
            for n in range(1, group["max_iter"] + 1):
                if float(gradient.abs().max()) <= group["tolerance_grad"]:
                    break
                direction = self._next_direction(gradient, group)
                slope = float((gradient * direction).sum())
                if slope > -group["tolerance_change"]:
                    break
                lr = float(group["lr"])
                whole = float(gradient.abs().sum())
                rate = min(1.0, 1.0 / whole) * lr if self._iterations == 1 else lr
                self._direction, self._before, last = direction, gradient, loss
                if group["line_search_fn"] is not None:
                    begin = Point(0.0, loss, slope, gradient)
                    length, left = float(direction.abs().max()), group["max_eval"] - evaluations
                    along = self._along(closure, direction)
                    found, tried = searched(along, begin, rate, length, left)
                    rate, loss, gradient = found.rate, found.loss, found.gradient
                    evaluations += tried
                self._move(rate, direction)
                self._rate = rate
                if n == group["max_iter"]:
                    break
                if group["line_search_fn"] is None:
                    with enable_grad():
                        loss = float(closure())
                    evaluations += 1
                    gradient = self._gradient()
                moved = float((direction * rate).abs().max())
                if evaluations >= group["max_eval"] or moved <= group["tolerance_change"]:
                    break
                if abs(loss - last) < group["tolerance_change"]:
                    break
        return first

    def _along(self, closure: Callable[[], Any], direction: Tensor) -> Callable[[float], Point]:
        """What the closure finds so far along the direction; the parameters stay where they are."""
        params = self.param_groups[0]["params"]
        before = [p.detach().clone() for p in params]

        def at(rate: float) -> Point:
            self._move(rate, direction)
            with enable_grad():
                loss = float(closure())
            gradient = self._gradient()
            for p, value in zip(params, before, strict=True):
                p.copy_(value)
            return Point(rate, loss, float((gradient * direction).sum()), gradient)

        return at

    def _next_direction(self, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        self._iterations += 1
        if self._direction is None or self._before is None:
            return -gradient
        y, s = gradient - self._before, self._direction * self._rate
        curvature = float((y * s).sum())
        if curvature > 1e-10:
            self._moves = [*self._moves, (y, s, 1.0 / curvature)][-group["history_size"] :]
            self._scale = curvature / float((y * y).sum())
        q, weights = -gradient, []
        for y, s, rho in reversed(self._moves):
            weights.append(float((s * q).sum()) * rho)
            q = q - y * weights[-1]
        q = q * self._scale
        for (y, s, rho), weight in zip(self._moves, reversed(weights), strict=True):
            q = q + s * (weight - float((y * q).sum()) * rho)
        return q


class Point(NamedTuple):
    """A rate along a direction, the loss there, its slope along the direction, and the gradient."""

    rate: float
    loss: float
    slope: float
    gradient: Tensor


_DECREASE, _CURVATURE = 1e-4, 0.9
"""c1 and c2 of the strong Wolfe conditions."""
_NEAREST = 1e-9
"""How near to each other two points still enclose one."""


def searched(
    at: Callable[[float], Point], begin: Point, rate: float, length: float, most: int
) -> tuple[Point, int]:
    """A point at which the strong Wolfe conditions hold, or the best one after `most` tries, or
    where two that enclose one are as near as _NEAREST, of a direction whose greatest element is
    `length`; and how many were computed. First the rate grows until two points enclose one, then
    these come nearer: Nocedal and Wright, Numerical Optimization, algorithms 3.5 and 3.6, with
    cubic interpolation."""
    last, new, tries = begin, at(rate), 0
    low, high = begin, new
    while tries < most:
        low, high = last, new
        if _too_high(new, begin) or (tries > 1 and new.loss >= last.loss):
            break
        if _flat(new, begin):
            return new, tries + 1
        if new.slope >= 0:
            break
        farther = new.rate + 0.01 * (new.rate - last.rate), 10 * new.rate
        last, new = new, at(_lowest(last, new, *farther))
        tries += 1
    else:
        low, high = begin, new
    stuck = False
    if low.loss > high.loss:
        low, high = high, low
    while tries < most and abs(high.rate - low.rate) * length >= _NEAREST:
        bottom, top = sorted((low.rate, high.rate))
        t = _lowest(low, high, bottom, top)
        margin = 0.1 * (top - bottom)
        near = min(top - t, t - bottom) < margin
        if near and (stuck or not bottom < t < top):
            t, stuck = (top - margin if top - t < t - bottom else bottom + margin), False
        else:
            stuck = near
        new = at(t)
        tries += 1
        if _too_high(new, begin) or new.loss >= low.loss:
            low, high = (low, new) if low.loss <= new.loss else (new, low)
            continue
        if _flat(new, begin):
            return new, tries + 1
        if new.slope * (high.rate - low.rate) >= 0:
            high = low
        low = new
    return low, tries + 1


def _too_high(p: Point, begin: Point) -> bool:
    return p.loss > begin.loss + _DECREASE * p.rate * begin.slope


def _flat(p: Point, begin: Point) -> bool:
    return abs(p.slope) <= -_CURVATURE * begin.slope


def _lowest(a: Point, b: Point, least: float, most: float) -> float:
    """Where the cubic through two points with their slopes is least, within bounds; their middle
    where it only falls or rises, the upper one where it is a line."""
    first = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.rate - b.rate)
    square = first * first - a.slope * b.slope
    if square < 0:
        return (least + most) / 2
    if a.rate > b.rate:
        a, b = b, a
    root = math.sqrt(square)
    if not (bend := b.slope - a.slope + 2 * root):
        return most
    part = (b.slope + root - first) / bend
    return min(max(b.rate - (b.rate - a.rate) * part, least), most)
