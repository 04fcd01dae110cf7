"""Generated from the table of operators by `python -m stack.framework.stubs`."""

from collections.abc import Sequence
from typing import Any

from hal.core.dtypes import DType
from stack.framework.tensor import Tensor

Scalar = float | int | bool
__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "binary_cross_entropy_with_logits",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cross_entropy",
    "embedding",
    "gelu",
    "group_norm",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "local_response_norm",
    "log_softmax",
    "logsumexp",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "mse_loss",
    "normalize",
    "one_hot",
    "pad",
    "relu",
    "rms_norm",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "tanh",
]

def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """The means of the pieces into which axes are cut, as many as output_size says; None keeps
    an axis."""

def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """The means of the pieces into which axes are cut, as many as output_size says; None keeps
    an axis."""

def adaptive_avg_pool3d(input: Tensor, output_size: Any) -> Tensor:
    """The means of the pieces into which axes are cut, as many as output_size says; None keeps
    an axis."""

def adaptive_max_pool1d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The greatest elements of the pieces into which axes are cut, as many as output_size
    says; with return_indices also their places in the plane."""

def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The greatest elements of the pieces into which axes are cut, as many as output_size
    says; with return_indices also their places in the plane."""

def adaptive_max_pool3d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The greatest elements of the pieces into which axes are cut, as many as output_size
    says; with return_indices also their places in the plane."""

def avg_pool1d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window. Zeros around the axes count unless count_include_pad is False;
    divisor_override is divided by instead."""

def avg_pool2d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window. Zeros around the axes count unless count_include_pad is False;
    divisor_override is divided by instead."""

def avg_pool3d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window. Zeros around the axes count unless count_include_pad is False;
    divisor_override is divided by instead."""

def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, reduction: str = "mean"
) -> Tensor:
    """-(target * log sigmoid(input) + (1 - target) * log sigmoid(-input)), without overflow."""

def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """The products of weight [out, C / groups, windows] with the windows of input [N, C, L] or
    [C, L], added up, plus bias. Padding is zeros; "same" keeps the sizes."""

def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """The products of weight [out, C / groups, windows] with the windows of input [N, C, H, W]
    or [C, H, W], added up, plus bias. Padding is zeros; "same" keeps the sizes."""

def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """The products of weight [out, C / groups, windows] with the windows of input [N, C, D, H,
    W] or [C, D, H, W], added up, plus bias. Padding is zeros; "same" keeps the sizes."""

def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """The adjoint of conv1d: input [N, C, L] or [C, L] times weight [C, out / groups,
    windows], added up where the windows lie, plus bias."""

def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """The adjoint of conv2d: input [N, C, H, W] or [C, H, W] times weight [C, out / groups,
    windows], added up where the windows lie, plus bias."""

def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """The adjoint of conv3d: input [N, C, D, H, W] or [C, D, H, W] times weight [C, out /
    groups, windows], added up where the windows lie, plus bias."""

def cross_entropy(
    input: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """-log softmax(input)[target]; classes are axis 1 (axis 0 of a single row), targets
    integers. Entries equal to ignore_index do not count. The mean is over those that count."""

def embedding(x: Tensor, weight: Tensor) -> Tensor:
    """weight's rows at the integers x, which must be in range (others give 0)."""

def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x * Phi(x) for the normal distribution's Phi; "tanh" approximates it."""

def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over each of num_groups groups of
    channels, axis 1, and all axes behind it."""

def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The absolute differences."""

def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axes; float32 under
    autocast."""

def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x where it is positive, else negative_slope * x."""

def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias; weight is [out, in]. Under autocast the result has its element
    type."""

def local_response_norm(
    input: Tensor, size: int, alpha: float = 0.0001, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """x / (k + alpha * mean of squares over `size` neighbouring channels) ** beta."""

def log_softmax(x: Tensor, dim: int) -> Tensor:
    """The logarithm of softmax, exact where softmax underflows."""

def logsumexp(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) over axes, without overflow; -inf where all are -inf."""

def lp_pool1d(
    input: Tensor,
    norm_type: float,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """The norm_type-th root of the sum of such powers of each window."""

def lp_pool2d(
    input: Tensor,
    norm_type: float,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """The norm_type-th root of the sum of such powers of each window."""

def lp_pool3d(
    input: Tensor,
    norm_type: float,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """The norm_type-th root of the sum of such powers of each window."""

def max_pool1d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The greatest element of each window, around which -inf is thought; with return_indices
    also its place in the plane. The gradient goes to the first such element."""

def max_pool2d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The greatest element of each window, around which -inf is thought; with return_indices
    also its place in the plane. The gradient goes to the first such element."""

def max_pool3d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The greatest element of each window, around which -inf is thought; with return_indices
    also its place in the plane. The gradient goes to the first such element."""

def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The squares of the differences."""

def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x divided by its p-norm along an axis, which counts as at least eps."""

def one_hot(index: Tensor, num_classes: int) -> Tensor:
    """int64: 1 at the position that each entry names along a new last axis, 0 elsewhere."""

def pad(x: Tensor, pad: Sequence[int], value: Scalar = 0) -> Tensor:
    """x with `value` around it: `pad` is (before, after) of the last axis, then of the one
    before it, ... Negative padding cuts off."""

def relu(x: Tensor) -> Tensor:
    """x where it is positive, else 0; NaN stays. The gradient at 0 is 0."""

def rms_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """x / sqrt(mean(x * x) + eps) * weight over the last axes; float32 under autocast."""

def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""

def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)."""

def softmax(x: Tensor, dim: int) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis, without overflow."""

def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), without overflow."""

def tanh(x: Tensor) -> Tensor:
    """the hyperbolic tangent of x, element by element; integers and bool become float32."""
