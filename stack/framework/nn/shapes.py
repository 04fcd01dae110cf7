"""Modules that compute nothing, or pad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stack.framework import functional as F
from stack.framework.nn.module import Module
from stack.framework.tensor import Tensor


class Identity(Module):
    """What it is given; settings are taken and change nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return input


class Flatten(Module):
    """The axes from start_dim on made one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Tensor:
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """One axis made several, of these sizes; one -1 stands for what remains."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, input: Tensor) -> Tensor:
        dim = self.dim % input.ndim
        return input.reshape(*input.shape[:dim], *self.unflattened_size, *input.shape[dim + 1 :])

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class _ConstantPad(Module):
    axes: int

    def __init__(self, padding: int | Sequence[int], value: float = 0.0) -> None:
        super().__init__()
        sides = 2 * self.axes
        self.padding = (padding,) * sides if isinstance(padding, int) else tuple(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, value=self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPad):
    axes = 1


class ConstantPad2d(_ConstantPad):
    axes = 2


class ConstantPad3d(_ConstantPad):
    axes = 3


class ZeroPad1d(_ConstantPad):
    axes = 1


class ZeroPad2d(_ConstantPad):
    axes = 2


class ZeroPad3d(_ConstantPad):
    axes = 3


class _Pad(Module):
    axes: int
    mode: str

    def __init__(self, padding: int | Sequence[int]) -> None:
        super().__init__()
        sides = 2 * self.axes
        self.padding = (padding,) * sides if isinstance(padding, int) else tuple(padding)

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, self.mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ReflectionPad1d(_Pad):
    axes, mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    axes, mode = 2, "reflect"


class ReflectionPad3d(_Pad):
    axes, mode = 3, "reflect"


class ReplicationPad1d(_Pad):
    axes, mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    axes, mode = 2, "replicate"


class ReplicationPad3d(_Pad):
    axes, mode = 3, "replicate"


class CircularPad1d(_Pad):
    axes, mode = 1, "circular"


class CircularPad2d(_Pad):
    axes, mode = 2, "circular"


class CircularPad3d(_Pad):
    axes, mode = 3, "circular"
