"""Averages of a model's parameters over its training, with the names of `torch.optim.swa_utils`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Literal

from hal.core.dtypes import DType
from stack.framework.create import tensor
from stack.framework.errors import absent
from stack.framework.modes import no_grad
from stack.framework.nn.module import Module
from stack.framework.nn.norms import BatchNorm1d, BatchNorm2d, BatchNorm3d
from stack.framework.optim.lr_scheduler import LRScheduler
from stack.framework.optim.optimizer import Optimizer
from stack.framework.tensor import Tensor

__all__ = [
    "SWALR",
    "AveragedModel",
    "get_ema_avg_fn",
    "get_ema_multi_avg_fn",
    "get_swa_avg_fn",
    "get_swa_multi_avg_fn",
    "update_bn",
]

Average = Callable[[Tensor, Tensor, Any], Tensor]
"""(average so far, parameter, how many it is of) to the new average."""
Averages = Callable[[Sequence[Tensor], Sequence[Tensor], Any], None]
"""The same of many, in place."""


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """decay * average + (1 - decay) * parameter."""
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"decay is between 0 and 1, got {decay}")

    def ema_update(ema_param: Tensor, current_param: Tensor, num_averaged: Any) -> Tensor:
        return decay * ema_param + (1 - decay) * current_param

    return ema_update


def get_swa_avg_fn() -> Average:
    """The mean of all so far."""

    def swa_update(averaged_param: Tensor, current_param: Tensor, num_averaged: Any) -> Tensor:
        step: Tensor = (current_param - averaged_param) / (num_averaged + 1)
        return averaged_param + step

    return swa_update


def _each(average: Average) -> Averages:
    def update(averages: Sequence[Tensor], parameters: Sequence[Tensor], count: Any) -> None:
        with no_grad():
            for a, p in zip(averages, parameters, strict=True):
                a.copy_(average(a, p, count).to(a.dtype))

    return update


def get_ema_multi_avg_fn(decay: float = 0.999) -> Averages:
    """`get_ema_avg_fn` of many at once, in place; integers are rounded towards 0."""
    return _each(get_ema_avg_fn(decay))


def get_swa_multi_avg_fn() -> Averages:
    """`get_swa_avg_fn` of many at once, in place; integers are rounded towards 0."""
    return _each(get_swa_avg_fn())


class AveragedModel(Module):
    """A copy of a model, on a device if one is given, whose parameters are averages of the model's
    at the calls of `update_parameters`: means, or what `avg_fn` or `multi_avg_fn` makes. With
    use_buffers buffers are averaged, too; without they are the model's newest."""

    n_averaged: Tensor

    def __init__(
        self,
        model: Module,
        device: str | None = None,
        avg_fn: Average | None = None,
        multi_avg_fn: Averages | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise ValueError("give avg_fn or multi_avg_fn, and not both")
        self.module = deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", tensor(0, dtype=DType.I64, device=device))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def _tensors(self, model: Module) -> list[Tensor]:
        return [*model.parameters(), *(model.buffers() if self.use_buffers else ())]

    def update_parameters(self, model: Module) -> None:
        """Take the model's parameters as they are now into the averages."""
        own = [t.detach() for t in self._tensors(self.module)]
        given = [t.detach().to(a.device) for a, t in zip(own, self._tensors(model), strict=True)]
        count = int(self.n_averaged)
        with no_grad():
            if not count:
                for a, p in zip(own, given, strict=True):
                    a.copy_(p)
            elif self.avg_fn is not None:
                _each(self.avg_fn)(own, given, self.n_averaged.to(own[0].device))
            else:
                (self.multi_avg_fn or get_swa_multi_avg_fn())(own, given, count)
            if not self.use_buffers:
                for a, p in zip(self.module.buffers(), model.buffers(), strict=True):
                    a.detach().copy_(p.detach().to(a.device).to(a.dtype))
            self.n_averaged.add_(1)


def update_bn(loader: Iterable[Any], model: Module, device: str | None = None) -> None:
    """Let the running statistics of batch norms be those of the inputs that the loader gives: the
    first of each batch, where that is a tuple or list."""
    norms = [m for m in model.modules() if isinstance(m, BatchNorm1d | BatchNorm2d | BatchNorm3d)]
    if not norms:
        return
    training, momenta = model.training, [m.momentum for m in norms]
    for m in norms:
        m.reset_running_stats()
        m.momentum = None  # the mean of all batches
    model.train()
    with no_grad():
        for batch in loader:
            x = batch[0] if isinstance(batch, tuple | list) else batch
            model(x if device is None else x.to(device))
    for m, momentum in zip(norms, momenta, strict=True):
        m.momentum = momentum
    model.train(training)


class SWALR(LRScheduler):
    """From each group's rate to `swa_lr` in `anneal_epochs` steps, along a cosine or a line, and
    then that."""

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | Sequence[float],
        anneal_epochs: int = 10,
        anneal_strategy: Literal["cos", "linear"] = "cos",
        last_epoch: int = -1,
    ) -> None:
        groups = optimizer.param_groups
        rates = list(swa_lr) if isinstance(swa_lr, Sequence) else [swa_lr] * len(groups)
        if len(rates) != len(groups):
            raise ValueError(f"{len(rates)} rates for {len(groups)} parameter groups")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f'anneal_strategy is "cos" or "linear", got {anneal_strategy!r}')
        if anneal_epochs < 0:
            raise ValueError(f"anneal_epochs is 0 or more, got {anneal_epochs}")
        for group, rate in zip(groups, rates, strict=True):
            group["swa_lr"] = rate
        self.anneal_epochs, self.anneal_strategy = anneal_epochs, anneal_strategy
        super().__init__(optimizer, last_epoch)

    def _part(self, steps: int) -> float:
        t = max(0.0, min(1.0, steps / max(1, self.anneal_epochs)))
        return (1 - math.cos(math.pi * t)) / 2 if self.anneal_strategy == "cos" else t

    def rate(self, base: float, group: int) -> float:
        """From the rate that the group has now, which another schedule may have set."""
        now, goal = (self.optimizer.param_groups[group][k] for k in ("lr", "swa_lr"))
        steps = self.last_epoch if self.anneal_epochs else max(1, self.last_epoch)
        before, part = self._part(max(0, steps - 1)), self._part(steps)
        began = goal if before == 1 else (now - before * goal) / (1 - before)
        found: float = part * goal + (1 - part) * began
        return found


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise absent("optim.swa_utils", name, __all__)
