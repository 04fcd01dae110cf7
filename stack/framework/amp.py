"""Mixed precision: `autocast`, and the scale that keeps the gradients of float16 from vanishing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stack.framework.modes import autocast
from stack.framework.optim.optimizer import Optimizer
from stack.framework.tensor import Tensor

__all__ = ["GradScaler", "autocast"]


class GradScaler:
    """Multiplies losses by a scale, divides gradients by it before a step, and leaves a step out
    whose gradients are not finite; then the scale shrinks by backoff_factor, and after
    growth_interval good steps it grows by growth_factor. Micikevicius et al.,
    https://arxiv.org/abs/1710.03740.

    A step reads from the device whether all gradients are finite. Not `enabled`, nothing changes.
    """

    def __init__(
        self,
        device: str = "",
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self._enabled, self._scale = enabled, init_scale
        self._growth, self._backoff = growth_factor, backoff_factor
        self._interval, self._good = growth_interval, 0
        self._finite: dict[int, bool] = {}

    def is_enabled(self) -> bool:
        return self._enabled

    def get_scale(self) -> float:
        return self._scale if self._enabled else 1.0

    def scale(self, outputs: Any) -> Any:
        """A loss, or a list of them, times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._scale
        return type(outputs)(self.scale(each) for each in outputs)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimizer's parameters by the scale, once for each step."""
        if not self._enabled:
            return
        if id(optimizer) in self._finite:
            raise RuntimeError("unscale_() was called for this optimizer since the last update()")
        total = 0.0
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad = p.grad / self._scale
                    total += float(p.grad.float().abs().max().item()) if p.grad.numel() else 0.0
        self._finite[id(optimizer)] = math.isfinite(total)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """optimizer.step(), unless a gradient is infinite or NaN."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if id(optimizer) not in self._finite:
            self.unscale_(optimizer)
        return optimizer.step(*args, **kwargs) if self._finite[id(optimizer)] else None

    def update(self, new_scale: float | None = None) -> None:
        """Make the scale fit the steps since the last update, or set it."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = float(new_scale)
        elif not self._finite:
            raise RuntimeError("update() comes behind a step(), and there was none")
        elif not all(self._finite.values()):
            self._scale, self._good = self._scale * self._backoff, 0
        else:
            self._good += 1
            if self._good == self._interval:
                self._scale, self._good = self._scale * self._growth, 0
        self._finite.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self._scale, "_growth_tracker": self._good} if self._enabled else {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        if self._enabled:
            self._scale, self._good = state_dict["scale"], state_dict["_growth_tracker"]
