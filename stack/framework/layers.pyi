"""Generated from the table of operators by `python -m stack.framework.stubs`."""

from collections.abc import Sequence
from typing import Any

from hal.core.dtypes import DType
from stack.framework.tensor import Tensor

Scalar = float | int | bool
__all__ = [
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "embedding",
    "gelu",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log_softmax",
    "logsumexp",
    "mse_loss",
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

def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, reduction: str = "mean"
) -> Tensor:
    """-(target * log sigmoid(input) + (1 - target) * log sigmoid(-input)), without overflow."""

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

def log_softmax(x: Tensor, dim: int) -> Tensor:
    """The logarithm of softmax, exact where softmax underflows."""

def logsumexp(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) over axes, without overflow; -inf where all are -inf."""

def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The squares of the differences."""

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
