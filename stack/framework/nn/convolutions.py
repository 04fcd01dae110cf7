"""Convolutions and transposed convolutions that learn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hal.core.dtypes import DType
from stack.framework import functional as F
from stack.framework.create import zeros
from stack.framework.nn import init
from stack.framework.nn.module import Module, Parameter
from stack.framework.tensor import Tensor

Sizes = int | Sequence[int]


class _Convolution(Module):
    """What both kinds share: settings for each axis, weight and bias drawn uniformly within +-1 /
    sqrt(what one output adds up)."""

    axes: int
    transposed = False
    bias: Parameter | None

    def _prepare(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes,
        padding: Sizes | str,
        dilation: Sizes,
        groups: int,
        bias: bool,
        padding_mode: str,
        device: str | None,
        dtype: DType | None,
    ) -> None:
        if in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{groups} groups do not divide {in_channels} and {out_channels} channels"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride = self._each(kernel_size), self._each(stride)
        self.dilation = self._each(dilation)
        self.padding = padding if isinstance(padding, str) else self._each(padding)
        self.padding_mode = padding_mode
        channels = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        shape = (channels[0], channels[1] // groups, *self.kernel_size)
        kind = dtype or DType.F32
        self.weight = Parameter(zeros(*shape, dtype=kind, device=device))
        self.bias = Parameter(zeros(out_channels, dtype=kind, device=device)) if bias else None
        self.reset_parameters()

    def _each(self, sizes: Sizes) -> tuple[int, ...]:
        return (sizes,) * self.axes if isinstance(sizes, int) else tuple(sizes)

    def reset_parameters(self) -> None:
        """Draw weight and bias anew."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(max(math.prod(self.weight.shape[1:]), 1))
            init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        shown = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        shown += f", stride={self.stride}"
        for name, default in (("padding", 0), ("dilation", 1), ("groups", 1)):
            value = getattr(self, name)
            if value not in (default, (default,) * self.axes):
                shown += f", {name}={value}"
        return shown + ("" if self.bias is not None else ", bias=False")


class _Conv(_Convolution):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self._prepare(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def forward(self, input: Tensor) -> Tensor:
        function: Any = getattr(F, f"conv{self.axes}d")
        x, padding = input, self.padding
        if self.padding_mode != "zeros":
            sides = [n for p in reversed(self._sides()) for n in p]
            pad: Any = F.pad
            x, padding = pad(x, sides, mode=self.padding_mode), self._each(0)
        y: Tensor = function(
            x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups
        )
        return y

    def _sides(self) -> list[tuple[int, int]]:
        if self.padding == "valid":
            return [(0, 0)] * self.axes
        if isinstance(self.padding, str):
            spans = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            return [(n // 2, n - n // 2) for n in spans]
        return [(p, p) for p in self.padding]


class Conv1d(_Conv):
    """`F.conv1d` of x[N, in_channels, L]."""

    axes = 1


class Conv2d(_Conv):
    """`F.conv2d` of x[N, in_channels, H, W]."""

    axes = 2


class Conv3d(_Conv):
    """`F.conv3d` of x[N, in_channels, D, H, W]."""

    axes = 3


class _ConvTranspose(_Convolution):
    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        padding_mode: str = "zeros",
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        if padding_mode != "zeros":
            raise ValueError(f'a transposed convolution pads with "zeros", not {padding_mode!r}')
        self.output_padding = self._each(output_padding)
        self._prepare(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        function: Any = getattr(F, f"conv_transpose{self.axes}d")
        extra = self.output_padding if output_size is None else self._rest(input, output_size)
        y: Tensor = function(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            extra,
            self.groups,
            self.dilation,
        )
        return y

    def _rest(self, x: Tensor, wanted: Sequence[int]) -> tuple[int, ...]:
        """The output_padding that gives these sizes. Raises ValueError where none does."""
        assert not isinstance(self.padding, str)
        sizes, found = list(wanted)[-self.axes :], []
        for i, n in enumerate(x.shape[-self.axes :]):
            span = self.dilation[i] * (self.kernel_size[i] - 1) + 1
            least = (n - 1) * self.stride[i] - 2 * self.padding[i] + span
            if not 0 <= sizes[i] - least < max(self.stride[i], self.dilation[i]):
                raise ValueError(f"output_size {sizes[i]} cannot come from {n}; {least} can")
            found.append(sizes[i] - least)
        return tuple(found)


class ConvTranspose1d(_ConvTranspose):
    """`F.conv_transpose1d` of x[N, in_channels, L]."""

    axes = 1


class ConvTranspose2d(_ConvTranspose):
    """`F.conv_transpose2d` of x[N, in_channels, H, W]."""

    axes = 2


class ConvTranspose3d(_ConvTranspose):
    """`F.conv_transpose3d` of x[N, in_channels, D, H, W]."""

    axes = 3
