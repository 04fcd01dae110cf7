"""Generated from the table of operators by `python -m stack.framework.stubs`."""

from collections.abc import Sequence
from typing import Any

from hal.core.dtypes import DType
from stack.framework.nn.module import Module
from stack.framework.tensor import Tensor

Scalar = float | int | bool

ROWS: dict[str, Any]

def module_of(name: str) -> type[Module]: ...

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BCEWithLogitsLoss",
    "CrossEntropyLoss",
    "Dropout",
    "GELU",
    "L1Loss",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "LeakyReLU",
    "LocalResponseNorm",
    "LogSoftmax",
    "MSELoss",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "ReLU",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softmax2d",
    "Softplus",
    "Tanh",
]

class AdaptiveAvgPool1d(Module):
    """`functional.adaptive_avg_pool1d` with fixed settings."""

    def __init__(self, output_size: Any) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class AdaptiveAvgPool2d(Module):
    """`functional.adaptive_avg_pool2d` with fixed settings."""

    def __init__(self, output_size: Any) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class AdaptiveAvgPool3d(Module):
    """`functional.adaptive_avg_pool3d` with fixed settings."""

    def __init__(self, output_size: Any) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class AdaptiveMaxPool1d(Module):
    """`functional.adaptive_max_pool1d` with fixed settings."""

    def __init__(self, output_size: Any, return_indices: bool = False) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class AdaptiveMaxPool2d(Module):
    """`functional.adaptive_max_pool2d` with fixed settings."""

    def __init__(self, output_size: Any, return_indices: bool = False) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class AdaptiveMaxPool3d(Module):
    """`functional.adaptive_max_pool3d` with fixed settings."""

    def __init__(self, output_size: Any, return_indices: bool = False) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class AvgPool1d(Module):
    """`functional.avg_pool1d` with fixed settings."""

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class AvgPool2d(Module):
    """`functional.avg_pool2d` with fixed settings."""

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class AvgPool3d(Module):
    """`functional.avg_pool3d` with fixed settings."""

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class BCEWithLogitsLoss(Module):
    """`functional.binary_cross_entropy_with_logits` with fixed settings."""

    def __init__(self, reduction: str = "mean") -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class CrossEntropyLoss(Module):
    """`functional.cross_entropy` with fixed settings."""

    def __init__(
        self, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Dropout(Module):
    """`functional.dropout` with fixed settings."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class GELU(Module):
    """`functional.gelu` with fixed settings."""

    def __init__(self, approximate: str = "none") -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class L1Loss(Module):
    """`functional.l1_loss` with fixed settings."""

    def __init__(self, reduction: str = "mean") -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class LPPool1d(Module):
    """`functional.lp_pool1d` with fixed settings."""

    def __init__(
        self,
        norm_type: float,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        ceil_mode: bool = False,
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class LPPool2d(Module):
    """`functional.lp_pool2d` with fixed settings."""

    def __init__(
        self,
        norm_type: float,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        ceil_mode: bool = False,
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class LPPool3d(Module):
    """`functional.lp_pool3d` with fixed settings."""

    def __init__(
        self,
        norm_type: float,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        ceil_mode: bool = False,
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class LeakyReLU(Module):
    """`functional.leaky_relu` with fixed settings."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class LocalResponseNorm(Module):
    """`functional.local_response_norm` with fixed settings."""

    def __init__(
        self, size: int, alpha: float = 0.0001, beta: float = 0.75, k: float = 1.0
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class LogSoftmax(Module):
    """`functional.log_softmax` with fixed settings."""

    def __init__(self, dim: int) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class MSELoss(Module):
    """`functional.mse_loss` with fixed settings."""

    def __init__(self, reduction: str = "mean") -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class MaxPool1d(Module):
    """`functional.max_pool1d` with fixed settings."""

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class MaxPool2d(Module):
    """`functional.max_pool2d` with fixed settings."""

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class MaxPool3d(Module):
    """`functional.max_pool3d` with fixed settings."""

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class ReLU(Module):
    """`functional.relu` with fixed settings."""

    def __init__(self, inplace: bool = False) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class SiLU(Module):
    """`functional.silu` with fixed settings."""

    def __init__(self, inplace: bool = False) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Sigmoid(Module):
    """`functional.sigmoid` with fixed settings."""

    def __init__(self) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Softmax(Module):
    """`functional.softmax` with fixed settings."""

    def __init__(self, dim: int) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Softmax2d(Module):
    """`functional.softmax` with fixed settings."""

    def __init__(self) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Softplus(Module):
    """`functional.softplus` with fixed settings."""

    def __init__(self) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Tanh(Module):
    """`functional.tanh` with fixed settings."""

    def __init__(self) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...
