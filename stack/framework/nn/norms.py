"""Norms that learn."""

from __future__ import annotations

from collections.abc import Sequence

from hal.core.dtypes import DType
from stack.framework import functional as F
from stack.framework.create import ones, tensor, zeros
from stack.framework.modes import no_grad
from stack.framework.nn import init
from stack.framework.nn.module import Module, Parameter
from stack.framework.tensor import Tensor


def _sizes(shape: int | Sequence[int]) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


class LayerNorm(Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axes."""

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = size = _sizes(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        affine, kind = elementwise_affine, dtype or DType.F32
        self.weight = Parameter(ones(size, dtype=kind, device=device)) if affine else None
        self.bias = Parameter(zeros(size, dtype=kind, device=device)) if affine and bias else None

    def reset_parameters(self) -> None:
        """1 and 0."""
        _reset(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


def _reset(weight: Parameter | None, bias: Parameter | None) -> None:
    if weight is not None:
        init.ones_(weight)
    if bias is not None:
        init.zeros_(bias)


class RMSNorm(Module):
    """x / sqrt(mean(x * x) + eps) * weight over the last axes."""

    weight: Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _sizes(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        made = ones(self.normalized_shape, dtype=dtype or DType.F32, device=device)
        self.weight = Parameter(made) if elementwise_affine else None

    def reset_parameters(self) -> None:
        """1."""
        _reset(self.weight, None)

    def forward(self, input: Tensor) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class GroupNorm(Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias over each of num_groups groups of channels,
    axis 1, and all axes behind it."""

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(f"{num_groups} groups do not divide {num_channels} channels")
        self.num_groups, self.num_channels = num_groups, num_channels
        self.eps, self.affine, kind = eps, affine, dtype or DType.F32
        self.weight = Parameter(ones(num_channels, dtype=kind, device=device)) if affine else None
        self.bias = Parameter(zeros(num_channels, dtype=kind, device=device)) if affine else None

    def reset_parameters(self) -> None:
        """1 and 0."""
        _reset(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class _Running(Module):
    """A norm over each channel, axis 1, of inputs of these ranks, with running statistics."""

    ranks: tuple[int, ...]
    default_affine = True
    default_track = True
    weight: Parameter | None
    bias: Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool | None = None,
        track_running_stats: bool | None = None,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine = self.default_affine if affine is None else affine
        track = self.default_track if track_running_stats is None else track_running_stats
        self.track_running_stats, n, kind = track, num_features, dtype or DType.F32
        self.weight = Parameter(ones(n, dtype=kind, device=device)) if self.affine else None
        self.bias = Parameter(zeros(n, dtype=kind, device=device)) if self.affine else None
        mean = zeros(n, dtype=kind, device=device) if track else None
        self.register_buffer("running_mean", mean)
        self.register_buffer("running_var", ones(n, dtype=kind, device=device) if track else None)
        count = tensor(0, dtype=DType.I64, device=device) if track else None
        self.register_buffer("num_batches_tracked", count)

    def reset_running_stats(self) -> None:
        """Mean 0, variance 1, no batch seen."""
        if self.running_mean is not None and self.running_var is not None:
            init.zeros_(self.running_mean)
            init.ones_(self.running_var)
        if self.num_batches_tracked is not None:
            init.zeros_(self.num_batches_tracked)

    def reset_parameters(self) -> None:
        """1 and 0, and no batch seen."""
        self.reset_running_stats()
        _reset(self.weight, self.bias)

    def _checked(self, x: Tensor) -> Tensor:
        if x.ndim not in self.ranks:
            wanted = " or ".join(map(str, self.ranks))
            raise ValueError(f"{type(self).__name__} takes {wanted} axes, got {list(x.shape)}")
        return x

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_Running):
    def forward(self, input: Tensor) -> Tensor:
        x, momentum = self._checked(input), self.momentum
        if self.training and self.num_batches_tracked is not None:
            with no_grad():
                self.num_batches_tracked.add_(1)
        if momentum is None:
            count = self.num_batches_tracked
            momentum = 1.0 / count.item() if self.training and count is not None else 0.0
        own = self.training or self.running_mean is None
        keep = self.track_running_stats or not self.training
        mean, var = (self.running_mean, self.running_var) if keep else (None, None)
        return F.batch_norm(x, mean, var, self.weight, self.bias, own, momentum, self.eps)


class BatchNorm1d(_BatchNorm):
    """`F.batch_norm` of x[N, C] or x[N, C, L]."""

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """`F.batch_norm` of x[N, C, H, W]."""

    ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """`F.batch_norm` of x[N, C, D, H, W]."""

    ranks = (5,)


class _InstanceNorm(_Running):
    default_affine = False
    default_track = False

    def forward(self, input: Tensor) -> Tensor:
        x = self._checked(input)
        own = self.training or not self.track_running_stats
        single = x.ndim == self.ranks[0]
        y = F.instance_norm(
            x.unsqueeze(0) if single else x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            own,
            0.0 if self.momentum is None else self.momentum,
            self.eps,
        )
        return y.squeeze(0) if single else y


class InstanceNorm1d(_InstanceNorm):
    """`F.instance_norm` of x[N, C, L] or x[C, L]."""

    ranks = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """`F.instance_norm` of x[N, C, H, W] or x[C, H, W]."""

    ranks = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """`F.instance_norm` of x[N, C, D, H, W] or x[C, D, H, W]."""

    ranks = (4, 5)
