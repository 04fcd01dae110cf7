"""What of torch asks which device it is, or has no hook for one in Python, taught this one."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
from torch import Tensor

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from stack import ops as g
from stack.bridge.torch import kernels
from stack.recorder.window import Window, steps_between


def install() -> None:
    """Change these, once."""
    Tensor.__deepcopy__ = _deepcopy_of(Tensor.__deepcopy__)
    Tensor.__repr__ = _repr_of(Tensor.__repr__)
    torch.nn.Module._apply = _apply_of(torch.nn.Module._apply)
    torch.serialization.register_package(5, _tag, _restored)


def reshaped_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The strides under another shape; None where elements would have to be copied."""
    whole = Window(shape, strides)
    x: Node = g.input(0, Type(shape, DType.F32))
    steps = steps_between(x, g.reshape(x, wanted))
    found = None if steps is None else whole.through(steps)
    return None if found is None else found.strides


def _apply_of(otherwise: Any) -> Any:
    """Module.to between this device and another one: parameters stay the same objects, so that
    those which modules share, and those that an optimizer has, go on being so."""

    def _apply(self: torch.nn.Module, fn: Any, recurse: bool = True) -> Any:
        own = next(itertools.chain(self.parameters(), self.buffers()), None)
        if own is None or torch.__future__.get_swap_module_params_on_conversion():
            return otherwise(self, fn, recurse)
        probe = torch.empty(0, dtype=own.dtype, device=own.device)
        kinds = {own.device.type, fn(probe).device.type}
        if len(kinds) == 1 or kernels.NAME not in kinds:
            return otherwise(self, fn, recurse)
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return otherwise(self, fn, recurse)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)

    return _apply


def _deepcopy_of(otherwise: Any) -> Any:
    def __deepcopy__(self: Tensor, memo: dict[int, Any]) -> Any:
        if self.device.type != kernels.NAME or not self.is_leaf or id(self) in memo:
            return otherwise(self, memo)
        with torch.no_grad():
            made: Any = self.detach().clone()
            if isinstance(self, torch.nn.Parameter):
                made = type(self)(made, self.requires_grad)
            else:
                made.requires_grad_(self.requires_grad)
            if self.grad is not None:
                made.grad = copy.deepcopy(self.grad, memo)
            made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        memo[id(self)] = made
        return made

    return __deepcopy__


def _repr_of(otherwise: Any) -> Any:
    def __repr__(self: Tensor, *, tensor_contents: Any = None) -> str:
        if self.device.type != kernels.NAME:
            return str(otherwise(self, tensor_contents=tensor_contents))
        shown = torch._tensor_str._tensor_str(self.detach().cpu(), 7)
        text = f"tensor({shown}, device='{self.device}'"
        if self.dtype not in _PLAIN:
            text += f", dtype={self.dtype}"
        if self.grad_fn is not None:
            text += f", grad_fn=<{type(self.grad_fn).__name__}>"
        elif self.requires_grad:
            text += ", requires_grad=True"
        text += ")"
        return f"Parameter containing:\n{text}" if isinstance(self, torch.nn.Parameter) else text

    return __repr__


_PLAIN = (torch.float32, torch.int64, torch.bool)


def _tag(storage: Any) -> str | None:
    return f"{kernels.NAME}:{storage.device.index}" if storage.device.type == kernels.NAME else None


def _restored(storage: Any, location: str) -> Any:
    return None
