"""Learning-rate schedules. Call `step()` after each optimizer step, outside of jitted functions.

Each is a function of the number of steps, so a rate that a script sets by hand is set anew at the
next step.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stack.framework.errors import absent
from stack.framework.optim.optimizer import Optimizer


class LRScheduler:
    """Sets every group's "lr" to a function of its initial one and of the number of steps,
    `last_epoch`: `rate`, or, in a schedule of the user's, `get_lr`, which gives the rates of all
    groups. A `last_epoch` that is given is that of the step before, -1 before the first."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            if last_epoch != -1 and "initial_lr" not in group:
                raise KeyError("to go on at last_epoch the groups need the key 'initial_lr'")
            group.setdefault("initial_lr", group["lr"])
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch + 1
        self._set()

    def rate(self, base: float, group: int) -> float:
        """The learning rate of a group after `last_epoch` steps."""
        raise NotImplementedError(f"{type(self).__name__} says the rates of its steps in get_lr()")

    def step(self, epoch: int | None = None) -> None:
        """Go one step on, or to that one."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._set()

    def _set(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = rate

    def get_lr(self) -> list[float]:
        """The rates of this step."""
        return [self.rate(base, k) for k, base in enumerate(self.base_lrs)]

    def get_last_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.last_epoch = state_dict["last_epoch"]
        self.base_lrs = list(state_dict["base_lrs"])
        if type(self).get_lr is LRScheduler.get_lr:  # another may go on from the rates before
            self._set()


_LRScheduler = LRScheduler
"""The name of programs that are older."""


Factor = Callable[[int], float]


class LambdaLR(LRScheduler):
    """base * lr_lambda(steps); one function for all groups, or one for each."""

    def __init__(
        self, optimizer: Optimizer, lr_lambda: Factor | Sequence[Factor], last_epoch: int = -1
    ) -> None:
        groups = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * groups if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != groups:
            raise ValueError(f"{len(self.lr_lambdas)} functions for {groups} parameter groups")
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, group: int) -> float:
        return base * self.lr_lambdas[group](self.last_epoch)


class MultiplicativeLR(LambdaLR):
    """base times lr_lambda(1) * ... * lr_lambda(steps)."""

    def rate(self, base: float, group: int) -> float:
        return base * math.prod(map(self.lr_lambdas[group], range(1, self.last_epoch + 1)))


class StepLR(LRScheduler):
    """base times gamma for each step_size steps."""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, group: int) -> float:
        return base * self.gamma ** (self.last_epoch // self.step_size)


class MultiStepLR(LRScheduler):
    """base times gamma for each milestone, a number of steps, that is reached."""

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, group: int) -> float:
        return base * self.gamma ** bisect_right(
            sorted(self.milestones.elements()), self.last_epoch
        )


class ConstantLR(LRScheduler):
    """base times factor for the first total_iters steps, then base."""

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, group: int) -> float:
        return base * (self.factor if self.last_epoch < self.total_iters else 1.0)


class LinearLR(LRScheduler):
    """base times a factor that goes from start_factor to end_factor in total_iters steps, then
    stays: warm-up."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, group: int) -> float:
        done = min(self.last_epoch / self.total_iters, 1.0)
        return base * (self.start_factor + (self.end_factor - self.start_factor) * done)


class ExponentialLR(LRScheduler):
    """base * gamma^steps."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, group: int) -> float:
        return base * self.gamma**self.last_epoch


class PolynomialLR(LRScheduler):
    """base * (1 - steps / total_iters)^power, then 0."""

    def __init__(
        self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, group: int) -> float:
        left: float = 1 - min(self.last_epoch, self.total_iters) / self.total_iters
        return base * math.pow(left, self.power)


class CosineAnnealingLR(LRScheduler):
    """From base to eta_min along half a cosine of T_max steps, and back again."""

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, group: int) -> float:
        wave = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return self.eta_min + (base - self.eta_min) * wave


class CosineAnnealingWarmRestarts(LRScheduler):
    """From base to eta_min along half a cosine, again and again: first in T_0 steps, each time in
    T_mult times as many."""

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, group: int) -> float:
        done, length = float(self.last_epoch), self.T_0
        while done >= length:
            done, length = done - length, length * self.T_mult
        return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * done / length)) / 2


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


class OneCycleLR(LRScheduler):
    """From max_lr / div_factor up to max_lr in pct_start of all steps, then down to the initial
    rate / final_div_factor; the momentum, or the first beta, goes the other way between
    max_momentum and base_momentum. Smith and Topin, https://arxiv.org/abs/1708.07120."""

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float = 0.85,
        max_momentum: float = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("give total_steps, or epochs and steps_per_epoch")
            total_steps = epochs * steps_per_epoch
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f'anneal_strategy is "cos" or "linear", got {anneal_strategy!r}')
        self.total_steps, self.anneal_strategy = total_steps, anneal_strategy
        groups = optimizer.param_groups
        peaks = [max_lr] * len(groups) if isinstance(max_lr, float | int) else list(max_lr)
        lows = [peak / div_factor for peak in peaks]
        ends = [low / final_div_factor for low in lows]
        top = pct_start * total_steps - 1
        if three_phase:
            places = [0.0, top, 2 * top, total_steps - 1.0]
            self._rates = [list(each) for each in zip(lows, peaks, lows, ends, strict=True)]
        else:
            places = [0.0, top, total_steps - 1.0]
            self._rates = [list(each) for each in zip(lows, peaks, ends, strict=True)]
        self._places = places
        self._momenta = [max_momentum, base_momentum, max_momentum, max_momentum][: len(places)]
        self._cycles = cycle_momentum
        if last_epoch == -1:
            for group, low in zip(groups, lows, strict=True):
                group["initial_lr"] = low
        super().__init__(optimizer, last_epoch)

    def _between(self, values: Sequence[float]) -> float:
        if self.last_epoch > self.total_steps:
            raise ValueError(f"the schedule has {self.total_steps} steps, and this is one more")
        i = 1
        while i < len(values) - 1 and self.last_epoch > self._places[i]:
            i += 1
        before, after = self._places[i - 1], self._places[i]
        done = (self.last_epoch - before) / (after - before)
        if self.anneal_strategy == "cos":
            done = (1 - math.cos(math.pi * done)) / 2
        return values[i - 1] + (values[i] - values[i - 1]) * done

    def rate(self, base: float, group: int) -> float:
        return self._between(self._rates[group])

    def _set(self) -> None:
        super()._set()
        for group in self.optimizer.param_groups if self._cycles else ():
            _set_momentum(group, self._between(self._momenta))


def _set_momentum(group: dict[str, Any], value: float) -> None:
    if "betas" in group:
        group["betas"] = (value, *group["betas"][1:])
    elif "momentum" in group:
        group["momentum"] = value
    else:
        raise ValueError("the optimizer has no momentum to cycle; pass cycle_momentum=False")


class CyclicLR(LRScheduler):
    """Up from base_lr to max_lr in step_size_up steps and down again in step_size_down, again and
    again; mode "triangular2" halves the height each time, "exp_range" scales it by gamma^steps.
    Smith, https://arxiv.org/abs/1506.01186."""

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | Sequence[float],
        max_lr: float | Sequence[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float = 0.8,
        max_momentum: float = 0.9,
        last_epoch: int = -1,
    ) -> None:
        if scale_fn is None and mode not in ("triangular", "triangular2", "exp_range"):
            raise ValueError(f'mode is "triangular", "triangular2" or "exp_range", got {mode!r}')
        groups = optimizer.param_groups
        bases = [base_lr] * len(groups) if isinstance(base_lr, float | int) else list(base_lr)
        self.max_lrs = [max_lr] * len(groups) if isinstance(max_lr, float | int) else list(max_lr)
        self.up, self.down = step_size_up, step_size_down or step_size_up
        self.mode, self.gamma, self._scale_fn, self._scale_mode = mode, gamma, scale_fn, scale_mode
        self._cycles, self._momenta = cycle_momentum, (base_momentum, max_momentum)
        if last_epoch == -1:
            for group, base in zip(groups, bases, strict=True):
                group["initial_lr"] = base
        super().__init__(optimizer, last_epoch)

    def _height(self) -> float:
        total = self.up + self.down
        cycle = self.last_epoch // total
        at = self.last_epoch - cycle * total
        height = at / self.up if at <= self.up else 1 - (at - self.up) / self.down
        if self._scale_fn is not None:
            by_cycle = self._scale_mode == "cycle"
            return height * self._scale_fn(cycle + 1 if by_cycle else self.last_epoch)
        if self.mode == "triangular2":
            return float(height / 2.0**cycle)
        return float(height * (self.gamma**self.last_epoch if self.mode == "exp_range" else 1.0))

    def rate(self, base: float, group: int) -> float:
        return base + (self.max_lrs[group] - base) * self._height()

    def _set(self) -> None:
        super()._set()
        low, high = self._momenta
        for group in self.optimizer.param_groups if self._cycles else ():
            _set_momentum(group, high - (high - low) * self._height())


class SequentialLR(LRScheduler):
    """One schedule after the other: the next one begins, at its step 0, at each milestone."""

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(f"{len(schedulers)} schedules have {len(schedulers) - 1} milestones")
        self._schedulers, self._milestones = list(schedulers), list(milestones)
        super().__init__(optimizer, last_epoch)

    def _set(self) -> None:
        current = bisect_right(self._milestones, self.last_epoch)
        first = self._milestones[current - 1] if current else 0
        self._schedulers[current].step(self.last_epoch - first)

    def rate(self, base: float, group: int) -> float:
        current = bisect_right(self._milestones, self.last_epoch)
        return self._schedulers[current].rate(base, group)


class ChainedScheduler(LRScheduler):
    """All these schedules at once: base times the factor of each."""

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        self._schedulers = list(schedulers)
        super().__init__(optimizer or schedulers[0].optimizer)

    def _set(self) -> None:
        for scheduler in self._schedulers:
            scheduler.step(self.last_epoch)
        super()._set()

    def rate(self, base: float, group: int) -> float:
        return base * math.prod(s.rate(base, group) / base for s in self._schedulers if base)


class ReduceLROnPlateau:
    """Multiplies every rate by `factor` when a metric has not become better by `threshold` for more
    than `patience` calls of `step(metric)`, and then rests for `cooldown` calls."""

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ValueError(
                f'mode is "min" or "max", got {mode!r}; threshold_mode is "rel" or "abs", got '
                f"{threshold_mode!r}"
            )
        if factor >= 1:
            raise ValueError(f"factor is below 1, got {factor}")
        groups = len(optimizer.param_groups)
        self.min_lrs = [min_lr] * groups if isinstance(min_lr, float | int) else list(min_lr)
        self.optimizer, self.mode, self.factor, self.patience = optimizer, mode, factor, patience
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.cooldown, self.eps = cooldown, eps
        self.last_epoch = self.num_bad_epochs = self.cooldown_counter = 0
        self.best = math.inf if mode == "min" else -math.inf

    def step(self, metrics: Any, epoch: int | None = None) -> None:
        """Take the metric of one more epoch."""
        current = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self.num_bad_epochs += 1
        margin = self.threshold * (abs(self.best) if self.threshold_mode == "rel" else 1.0)
        if math.isinf(self.best):
            better = current < self.best if self.mode == "min" else current > self.best
        else:
            better = (
                current < self.best - margin if self.mode == "min" else current > self.best + margin
            )
        if better:
            self.best, self.num_bad_epochs = current, 0
        if self.cooldown_counter:
            self.cooldown_counter, self.num_bad_epochs = self.cooldown_counter - 1, 0
        if self.num_bad_epochs > self.patience:
            for group, low in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
                new = max(group["lr"] * self.factor, low)
                if group["lr"] - new > self.eps:
                    group["lr"] = new
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def get_last_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        names = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        vars(self).update(state_dict)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise absent("optim.lr_scheduler", name, [n for n in globals() if not n.startswith("_")])
