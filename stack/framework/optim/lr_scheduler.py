"""Learning-rate schedules. Call `step()` after each optimizer step, outside of jitted functions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stack.framework.optim.optimizer import Optimizer


class LRScheduler(ABC):
    """Sets every group's "lr" to a function of its initial one and of the number of steps,
    `last_epoch`."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = 0
        self._set()

    @abstractmethod
    def rate(self, base: float, group: int) -> float:
        """The learning rate of a group after `last_epoch` steps."""

    def step(self) -> None:
        """Go one step on."""
        self.last_epoch += 1
        self._set()

    def _set(self) -> None:
        for k, (group, base) in enumerate(
            zip(self.optimizer.param_groups, self.base_lrs, strict=True)
        ):
            group["lr"] = self.rate(base, k)

    def get_last_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.last_epoch, self.base_lrs = state["last_epoch"], list(state["base_lrs"])
        self._set()


class LambdaLR(LRScheduler):
    """base * lr_lambda(steps); one function for all groups, or one for each."""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
    ) -> None:
        groups = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * groups if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != groups:
            raise ValueError(f"{len(self.lr_lambdas)} functions for {groups} parameter groups")
        super().__init__(optimizer)

    def rate(self, base: float, group: int) -> float:
        return base * self.lr_lambdas[group](self.last_epoch)


class LinearLR(LRScheduler):
    """base times a factor that goes from start_factor to end_factor in total_iters steps, then
    stays: warm-up."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
    ) -> None:
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer)

    def rate(self, base: float, group: int) -> float:
        done = min(self.last_epoch / self.total_iters, 1.0)
        return base * (self.start_factor + (self.end_factor - self.start_factor) * done)


class CosineAnnealingLR(LRScheduler):
    """From base to eta_min along half a cosine of T_max steps, and back again."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer)

    def rate(self, base: float, group: int) -> float:
        wave = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return self.eta_min + (base - self.eta_min) * wave


class WarmupCosineLR(LRScheduler):
    """Linear warm-up from 0 to base in `warmup` steps, then half a cosine down to eta_min at step
    `total`."""

    def __init__(self, optimizer: Optimizer, warmup: int, total: int, eta_min: float = 0.0) -> None:
        self.warmup, self.total, self.eta_min = warmup, total, eta_min
        super().__init__(optimizer)

    def rate(self, base: float, group: int) -> float:
        if self.last_epoch < self.warmup:
            return base * (self.last_epoch + 1) / self.warmup
        span = max(self.total - self.warmup, 1)
        done = min((self.last_epoch - self.warmup) / span, 1.0)
        return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * done)) / 2
