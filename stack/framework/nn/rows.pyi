"""Generated from the table of operators by `python -m stack.framework.stubs`."""

from collections.abc import Callable, Sequence
from typing import Any, overload

from hal.core.dtypes import DType
from stack.framework.nn.module import Module
from stack.framework.random import Generator
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
    "AlphaDropout",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "CELU",
    "CTCLoss",
    "ChannelShuffle",
    "CosineEmbeddingLoss",
    "CosineSimilarity",
    "CrossEntropyLoss",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "ELU",
    "FeatureAlphaDropout",
    "Fold",
    "GELU",
    "GLU",
    "GaussianNLLLoss",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "LeakyReLU",
    "LocalResponseNorm",
    "LogSigmoid",
    "LogSoftmax",
    "MSELoss",
    "MarginRankingLoss",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
    "Mish",
    "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss",
    "MultiMarginLoss",
    "NLLLoss",
    "NLLLoss2d",
    "PairwiseDistance",
    "PixelShuffle",
    "PixelUnshuffle",
    "PoissonNLLLoss",
    "RReLU",
    "ReLU",
    "ReLU6",
    "SELU",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "SoftMarginLoss",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Threshold",
    "TripletMarginLoss",
    "TripletMarginWithDistanceLoss",
    "Unfold",
    "Upsample",
    "UpsamplingBilinear2d",
    "UpsamplingNearest2d",
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

class AlphaDropout(Module):
    """`functional.alpha_dropout` with fixed settings."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None: ...
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

class BCELoss(Module):
    """`functional.binary_cross_entropy` with fixed settings."""

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class BCEWithLogitsLoss(Module):
    """`functional.binary_cross_entropy_with_logits` with fixed settings."""

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class CELU(Module):
    """`functional.celu` with fixed settings."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class CTCLoss(Module):
    """`functional.ctc_loss` with fixed settings."""

    def __init__(
        self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class ChannelShuffle(Module):
    """`functional.channel_shuffle` with fixed settings."""

    def __init__(self, groups: int) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class CosineEmbeddingLoss(Module):
    """`functional.cosine_embedding_loss` with fixed settings."""

    def __init__(
        self,
        margin: float = 0,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class CosineSimilarity(Module):
    """`functional.cosine_similarity` with fixed settings."""

    def __init__(self, dim: int = 1, eps: float = 1e-08) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class CrossEntropyLoss(Module):
    """`functional.cross_entropy` with fixed settings."""

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Dropout(Module):
    """`functional.dropout` with fixed settings."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Dropout1d(Module):
    """`functional.dropout1d` with fixed settings."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Dropout2d(Module):
    """`functional.dropout2d` with fixed settings."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Dropout3d(Module):
    """`functional.dropout3d` with fixed settings."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class ELU(Module):
    """`functional.elu` with fixed settings."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class FeatureAlphaDropout(Module):
    """`functional.feature_alpha_dropout` with fixed settings."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Fold(Module):
    """`functional.fold` with fixed settings."""

    def __init__(
        self,
        output_size: int | Sequence[int],
        kernel_size: int | Sequence[int],
        dilation: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        stride: int | Sequence[int] = 1,
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class GELU(Module):
    """`functional.gelu` with fixed settings."""

    def __init__(self, approximate: str = "none") -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class GLU(Module):
    """`functional.glu` with fixed settings."""

    def __init__(self, dim: int = -1) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class GaussianNLLLoss(Module):
    """`functional.gaussian_nll_loss` with fixed settings."""

    def __init__(self, full: bool = False, eps: float = 1e-06, reduction: str = "mean") -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Hardshrink(Module):
    """`functional.hardshrink` with fixed settings."""

    def __init__(self, lambd: float = 0.5) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Hardsigmoid(Module):
    """`functional.hardsigmoid` with fixed settings."""

    def __init__(self, inplace: bool = False) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Hardswish(Module):
    """`functional.hardswish` with fixed settings."""

    def __init__(self, inplace: bool = False) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Hardtanh(Module):
    """`functional.hardtanh` with fixed settings."""

    def __init__(
        self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class HingeEmbeddingLoss(Module):
    """`functional.hinge_embedding_loss` with fixed settings."""

    def __init__(
        self,
        margin: float = 1.0,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class HuberLoss(Module):
    """`functional.huber_loss` with fixed settings."""

    def __init__(
        self, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class KLDivLoss(Module):
    """`functional.kl_div` with fixed settings."""

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        log_target: bool = False,
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class L1Loss(Module):
    """`functional.l1_loss` with fixed settings."""

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
    ) -> None: ...
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

class LogSigmoid(Module):
    """`functional.logsigmoid` with fixed settings."""

    def __init__(self) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class LogSoftmax(Module):
    """`functional.log_softmax` with fixed settings."""

    def __init__(self, dim: int, _stacklevel: int = 3, dtype: DType | None = None) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class MSELoss(Module):
    """`functional.mse_loss` with fixed settings."""

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class MarginRankingLoss(Module):
    """`functional.margin_ranking_loss` with fixed settings."""

    def __init__(
        self,
        margin: float = 0,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None: ...
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

class MaxUnpool1d(Module):
    """`functional.max_unpool1d` with fixed settings."""

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class MaxUnpool2d(Module):
    """`functional.max_unpool2d` with fixed settings."""

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class MaxUnpool3d(Module):
    """`functional.max_unpool3d` with fixed settings."""

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Mish(Module):
    """`functional.mish` with fixed settings."""

    def __init__(self, inplace: bool = False) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class MultiLabelMarginLoss(Module):
    """`functional.multilabel_margin_loss` with fixed settings."""

    def __init__(
        self, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class MultiLabelSoftMarginLoss(Module):
    """`functional.multilabel_soft_margin_loss` with fixed settings."""

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class MultiMarginLoss(Module):
    """`functional.multi_margin_loss` with fixed settings."""

    def __init__(
        self,
        p: int = 1,
        margin: float = 1.0,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class NLLLoss(Module):
    """`functional.nll_loss` with fixed settings."""

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class NLLLoss2d(Module):
    """`functional.nll_loss` with fixed settings."""

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class PairwiseDistance(Module):
    """`functional.pairwise_distance` with fixed settings."""

    def __init__(self, p: float = 2.0, eps: float = 1e-06, keepdim: bool = False) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class PixelShuffle(Module):
    """`functional.pixel_shuffle` with fixed settings."""

    def __init__(self, upscale_factor: int) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class PixelUnshuffle(Module):
    """`functional.pixel_unshuffle` with fixed settings."""

    def __init__(self, downscale_factor: int) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class PoissonNLLLoss(Module):
    """`functional.poisson_nll_loss` with fixed settings."""

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        size_average: bool | None = None,
        eps: float = 1e-08,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class RReLU(Module):
    """`functional.rrelu` with fixed settings."""

    def __init__(
        self, lower: float = 0.125, upper: float = 0.3333333333333333, inplace: bool = False
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class ReLU(Module):
    """`functional.relu` with fixed settings."""

    def __init__(self, inplace: bool = False) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class ReLU6(Module):
    """`functional.relu6` with fixed settings."""

    def __init__(self, inplace: bool = False) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class SELU(Module):
    """`functional.selu` with fixed settings."""

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

class SmoothL1Loss(Module):
    """`functional.smooth_l1_loss` with fixed settings."""

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        beta: float = 1.0,
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class SoftMarginLoss(Module):
    """`functional.soft_margin_loss` with fixed settings."""

    def __init__(
        self, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Softmax(Module):
    """`functional.softmax` with fixed settings."""

    def __init__(self, dim: int, _stacklevel: int = 3, dtype: DType | None = None) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Softmax2d(Module):
    """`functional.softmax` with fixed settings."""

    def __init__(self, _stacklevel: int = 3, dtype: DType | None = None) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Softmin(Module):
    """`functional.softmin` with fixed settings."""

    def __init__(self, dim: int, _stacklevel: int = 3, dtype: DType | None = None) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Softplus(Module):
    """`functional.softplus` with fixed settings."""

    def __init__(self, beta: float = 1, threshold: float = 20) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Softshrink(Module):
    """`functional.softshrink` with fixed settings."""

    def __init__(self, lambd: float = 0.5) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Softsign(Module):
    """`functional.softsign` with fixed settings."""

    def __init__(self) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Tanh(Module):
    """`functional.tanh` with fixed settings."""

    def __init__(self) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Tanhshrink(Module):
    """`functional.tanhshrink` with fixed settings."""

    def __init__(self) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Threshold(Module):
    """`functional.threshold` with fixed settings."""

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class TripletMarginLoss(Module):
    """`functional.triplet_margin_loss` with fixed settings."""

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2,
        eps: float = 1e-06,
        swap: bool = False,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class TripletMarginWithDistanceLoss(Module):
    """`functional.triplet_margin_with_distance_loss` with fixed settings."""

    def __init__(
        self,
        distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Unfold(Module):
    """`functional.unfold` with fixed settings."""

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        dilation: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        stride: int | Sequence[int] = 1,
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class Upsample(Module):
    """`functional.interpolate` with fixed settings."""

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class UpsamplingBilinear2d(Module):
    """`functional.interpolate` with fixed settings."""

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        recompute_scale_factor: bool | None = None,
        antialias: bool = False,
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...

class UpsamplingNearest2d(Module):
    """`functional.interpolate` with fixed settings."""

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
        antialias: bool = False,
    ) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...
