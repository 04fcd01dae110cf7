"""L-BFGS: steps by an estimate of the second derivatives from the last gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hal.tile.node import Node
from stack.framework.functions import cat
from stack.framework.mode import enable_grad, no_grad
from stack.framework.optim.optimizer import Optimizer, Shard
from stack.framework.tensor import Tensor


class LBFGS(Optimizer):
    """Each `step(closure)` makes up to max_iter moves along the direction of the two-loop recursion
    over the last history_size moves, with a fixed rate. Nocedal,
    https://doi.org/10.1090/S0025-5718-1980-0572855-7.

    The closure clears gradients, computes the loss and calls backward. Scalars are read from the
    device after each move, so a step cannot be jitted. There is no line search: line_search_fn is
    None. The parameters are one group.
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
        if line_search_fn is not None:
            raise NotImplementedError(f"LBFGS has no line search {line_search_fn!r}, only None")
        defaults = {
            "lr": lr,
            "max_iter": max_iter,
            "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change,
            "history_size": history_size,
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
                self._move(rate, direction)
                self._direction, self._before, self._rate = direction, gradient, rate
                if n == group["max_iter"]:
                    break
                with enable_grad():
                    value = float(closure())
                evaluations += 1
                gradient, change = self._gradient(), abs(value - loss)
                loss = value
                moved = float((direction * rate).abs().max())
                if evaluations >= group["max_eval"] or moved <= group["tolerance_change"]:
                    break
                if change < group["tolerance_change"]:
                    break
        return first

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
