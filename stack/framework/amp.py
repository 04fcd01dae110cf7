"""Mixed precision: `autocast`, and the scale that keeps the gradients of float16 from vanishing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stack.framework.cell import tracing
from stack.framework.create import full_like, tensor, zeros_like
from stack.framework.functions import where
from stack.framework.modes import autocast, no_grad
from stack.framework.optim.optimizer import Optimizer
from stack.framework.tensor import Tensor

__all__ = ["GradScaler", "autocast"]


class GradScaler:
    """Multiplies losses by a scale, divides gradients by it before a step, and leaves a step out
    whose gradients are not finite; then the scale shrinks by backoff_factor, and after
    growth_interval good steps it grows by growth_factor. Micikevicius et al.,
    https://arxiv.org/abs/1710.03740.

    Within a function under `jit`, also on ranks, scale and steps follow what the device finds at
    each call; `step` and `update` are in one such function. Outside a step reads from the device
    whether all gradients are finite. Not `enabled`, nothing changes. Under `jit` the scale has
    to be where the model is: on `device` ("opencl:0"), or on the default one if that is "" or a
    kind without a number, as scripts for PyTorch have it.
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
        self._enabled = enabled
        self._growth, self._backoff = growth_factor, backoff_factor
        self._interval = growth_interval
        place = device if ":" in device else None
        self._scale = tensor(np.float32(init_scale), device=place)
        self._good = tensor(np.int32(0), device=place)
        self._finite: dict[int, Tensor] = {}

    def is_enabled(self) -> bool:
        return self._enabled

    def get_scale(self) -> float:
        return float(self._scale.item()) if self._enabled else 1.0

    def scale(self, outputs: Any) -> Any:
        """A loss, or a list of them, times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._scale.to(outputs.device)
        return type(outputs)(self.scale(each) for each in outputs)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimizer's parameters by the scale, once for each step."""
        if not self._enabled:
            return
        if id(optimizer) in self._finite:
            raise RuntimeError("unscale_() was called for this optimizer since the last update()")
        total = tensor(np.float32(0), device=self._scale.device)
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad = p.grad / self._scale.to(p.grad.device)
                    if p.grad.numel():
                        total = total + p.grad.float().abs().max().to(total.device)
        self._finite[id(optimizer)] = total.isfinite()

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """optimizer.step(), unless a gradient is infinite or NaN."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if id(optimizer) not in self._finite:
            self.unscale_(optimizer)
        finite = self._finite[id(optimizer)]
        if tracing() is not None:
            optimizer.step_where(finite)
            return None
        return optimizer.step(*args, **kwargs) if finite.item() else None

    def update(self, new_scale: float | None = None) -> None:
        """Make the scale fit the steps since the last update, or set it."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._set(full_like(self._scale, new_scale), self._good)
        elif not self._finite:
            raise RuntimeError("update() comes behind a step(), and there was none")
        else:
            first, *others = self._finite.values()
            finite = first
            for other in others:
                finite = finite & other.to(finite.device)
            good = self._good + 1
            grows = good == self._interval
            grown = where(grows, self._scale * self._growth, self._scale)
            self._set(
                where(finite, grown, self._scale * self._backoff),
                where(finite & ~grows, good, zeros_like(good)),
            )
        self._finite.clear()

    def _set(self, scale: Tensor, good: Tensor) -> None:
        with no_grad():
            scale, good = scale.detach(), good.detach()
            self._scale.copy_(scale)
            self._good.copy_(good)

    def state_dict(self) -> dict[str, Any]:
        if not self._enabled:
            return {}
        return {"scale": self.get_scale(), "_growth_tracker": int(self._good.item())}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        if self._enabled:
            tracker = full_like(self._good, state_dict["_growth_tracker"])
            self._set(full_like(self._scale, state_dict["scale"]), tracker)
