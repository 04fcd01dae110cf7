"""Generated from the table of operators by `python -m stack.framework.stubs`."""

from collections.abc import Callable, Sequence
from typing import Any, overload

from hal.core.dtypes import DType
from stack.framework.random import Generator
from stack.framework.tensor import Tensor

Scalar = float | int | bool
__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "affine_grid",
    "alpha_dropout",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "bilinear",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "celu",
    "channel_shuffle",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "ctc_loss",
    "dequantize",
    "dequantize_groups",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "elu",
    "embedding",
    "embedding_bag",
    "feature_alpha_dropout",
    "fold",
    "gaussian_nll_loss",
    "gelu",
    "glu",
    "grid_sample",
    "group_norm",
    "grouped_matmul",
    "grouped_mm",
    "gumbel_softmax",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hinge_embedding_loss",
    "huber_loss",
    "interpolate",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "local_response_norm",
    "log_softmax",
    "logsigmoid",
    "logsumexp",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "margin_ranking_loss",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
    "mish",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "normalize",
    "one_hot",
    "pad",
    "pairwise_distance",
    "pdist",
    "pixel_shuffle",
    "pixel_unshuffle",
    "poisson_nll_loss",
    "prelu",
    "quantize",
    "quantize_groups",
    "relu",
    "relu6",
    "rms_norm",
    "rotary_angles",
    "rotary_embedding",
    "rrelu",
    "sample",
    "selu",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "tanh",
    "tanhshrink",
    "threshold",
    "top_k_top_p",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
    "unfold",
    "upsample",
    "upsample_bilinear",
    "upsample_nearest",
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

def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """The places, [N, sizes, d], where an affine map theta [N, d, d + 1] puts those of an
    image of this size [N, C, sizes]."""

def alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Elements become what SELU gives far below 0 with probability p; mean and variance stay."""

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

def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y[..., o] = input1[..., i] * weight[o, i, j] * input2[..., j], plus bias."""

def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-(target * log(input) + (1 - target) * log(1 - input)), with logarithms of at least
    -100."""

def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """-(pos_weight * target * log sigmoid(input) + (1 - target) * log sigmoid(-input)),
    without overflow."""

def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where it is positive, else alpha * (exp(x / alpha) - 1)."""

def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Channels, axis 1, of `groups` groups in turn."""

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

def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """1 - cosine where target is 1, max(0, cosine - margin) where it is -1."""

def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-08) -> Tensor:
    """The cosine of the angle of vectors along an axis, whose lengths count as at least eps."""

def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """-log softmax(input)[target]; classes are axis 1 (axis 0 of a single row), targets
    integers, or the probability of each class. Entries equal to ignore_index do not count,
    others count as much as the weight of their class. The mean is over what counts."""

def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """-log of the probability that log_probs [T, N, C] (or [T, C]), of input_lengths, read
    without repetitions and blanks, are the targets [N, S], or one after the other, of
    target_lengths; the mean is that of the losses divided by the target lengths. By the
    forward recursion of Graves et al. (2006), a loop over T."""

def dequantize(
    input: Tensor,
    scale: Tensor | Scalar,
    zero_point: Tensor | Scalar | None = None,
    dim: int | None = None,
    dtype: DType = DType.F32,
) -> Tensor:
    """(input - zero_point) * scale, as a float type."""

def dequantize_groups(packed: Tensor, scales: Tensor) -> Tensor:
    """The numbers [..., n] of which quantize_groups gave these, in the scales' type."""

def dropout1d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Whole channels [N, C, L] or [C, L] become 0 with probability p."""

def dropout2d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Whole channels [N, C, H, W] become 0 with probability p; of three axes [N, C, L], as in
    PyTorch."""

def dropout3d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Whole channels [N, C, D, H, W] or [C, D, H, W] become 0 with probability p."""

def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where it is positive, else alpha * (exp(x) - 1)."""

def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """weight's rows at the integers input, which must be in range. No gradient flows to the
    row padding_idx."""

def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The sum, mean or max of the rows of weight that each bag names: a row [B, N] of input,
    or what lies between its offset and the next one. An empty bag gives 0."""

def feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """alpha_dropout of whole channels, axis 1."""

def fold(
    input: Tensor,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> Tensor:
    """Columns as unfold gives them, added up where they came from in planes of output_size."""

def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-06,
    reduction: str = "mean",
) -> Tensor:
    """(log(var) + (input - target) ** 2 / var) / 2, with a variance that counts as at least
    eps."""

def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x * Phi(x) for the normal distribution's Phi; "tanh" approximates it."""

def glu(input: Tensor, dim: int = -1) -> Tensor:
    """a * sigmoid(b) for the halves a and b of an axis."""

def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """input [N, C, sizes] at the places [N, outputs, d] from -1 to 1 of a grid, whose last
    axis begins with the last of the sizes; by the nearest element, between neighbours, or
    bicubic."""

def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over each of num_groups groups of
    channels, axis 1, and all axes behind it."""

def grouped_matmul(input: Tensor, weight: Tensor, group: Tensor) -> Tensor:
    """x[N, K]'s rows, each times the matrix of its group: row n times weight[group[n]] of
    weight[G, K, M]. [N, M]; a row whose group is out of range gives 0. The work is that of
    the rows and of less than a block more for each group."""

def grouped_mm(
    mat_a: Tensor, mat_b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Products of groups: of mat_a[N, K]'s rows that end at `offs` with mat_b[G, K, M]; of
    mat_a[G, M, K] with mat_b[K, N]'s columns that end there; of mat_a[M, N]'s columns with
    mat_b[N, K]'s rows, [G, M, K]; or of both in batches, without `offs`. What lies behind
    the last end gives 0."""

def gumbel_softmax(
    logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    """A random choice by logits that gradients flow through: softmax of (logits + noise) /
    tau; with hard, 1 at the greatest and 0 elsewhere, with the gradient of the soft one.
    Jang et al., https://arxiv.org/abs/1611.01144."""

def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x, but 0 within [-lambd, lambd]."""

def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """x / 6 + 1/2 limited to [0, 1]."""

def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * hardsigmoid(x)."""

def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """x limited to [min_val, max_val]; the gradient at the limits is 0."""

def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """input where target is 1, max(0, margin - input) where it is -1."""

def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    """Half the squares of differences below delta, else delta * (their size - delta / 2)."""

def interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """input [N, C, sizes] at another size, or so many times its own: the nearest element,
    between neighbours (linear, bilinear, trilinear, bicubic) or by means of areas."""

def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """target * (log(target) - input) of log-probabilities input; "batchmean" divides the sum
    by the rows."""

def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """The absolute differences."""

def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axes; float32 under
    autocast."""

def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x where it is positive, else negative_slope * x."""

def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias; weight is [out, in]. Under autocast the result has its element
    type."""

def local_response_norm(
    input: Tensor, size: int, alpha: float = 0.0001, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """x / (k + alpha * mean of squares over `size` neighbouring channels) ** beta."""

def log_softmax(
    input: Tensor, dim: int, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    """The logarithm of softmax, exact where softmax underflows."""

def logsigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(x)), without overflow."""

def logsumexp(
    input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> Tensor:
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

def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, -target * (input1 - input2) + margin)."""

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

def max_unpool1d(
    input: Tensor,
    indices: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """The elements of max_pool1d at the places where they were, and 0 elsewhere."""

def max_unpool2d(
    input: Tensor,
    indices: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """The elements of max_pool2d at the places where they were, and 0 elsewhere."""

def max_unpool3d(
    input: Tensor,
    indices: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """The elements of max_pool3d at the places where they were, and 0 elsewhere."""

def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * tanh(softplus(x))."""

def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """The squares of the differences."""

def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean over other classes of max(0, margin - input[target] + input) ** p."""

def multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean over pairs of a class of the row (target, up to its first -1) and another one
    of max(0, 1 - x[class] + x[other])."""

def multilabel_soft_margin_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean over classes of -(target * log sigmoid(x) + (1 - target) * log sigmoid(-x))."""

def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-input[target] of log-probabilities; otherwise as cross_entropy."""

def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x divided by its p-norm along an axis, which counts as at least eps."""

def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """int64: 1 at the position that each entry names along a new last axis, 0 elsewhere. Waits
    for the greatest where num_classes is -1."""

def pad(
    input: Tensor, pad: Sequence[int], mode: str = "constant", value: Scalar | None = None
) -> Tensor:
    """x with more around it: `pad` is (before, after) of the last axis, then of the one before
    it, ...: `value` (0), or by mode "reflect", "replicate" or "circular" of its own
    elements. Negative padding cuts off."""

def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-06, keepdim: bool = False
) -> Tensor:
    """The p-norm of x1 - x2 + eps along the last axis."""

def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The p-norms of the differences of all pairs of rows, each once."""

def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """[..., C * r * r, H, W] to [..., C, H * r, W * r]."""

def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """[..., C, H * r, W * r] to [..., C * r * r, H, W]."""

def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-08,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """exp(input) - target * input (of logarithms), or input - target * log(input + eps); with
    full plus Stirling's approximation of log(target!)."""

def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """x where it is positive, else weight * x; weight has one value, or one for each channel,
    axis 1."""

def quantize(
    input: Tensor,
    scale: Tensor | Scalar,
    zero_point: Tensor | Scalar | None = None,
    dtype: DType = DType.I8,
    dim: int | None = None,
) -> Tensor:
    """input / scale (+ zero_point) in an integer type, rounded with halves to even, or in
    float8; what is beyond the type becomes its last number. Scale and zero point are
    numbers, or tensors with one for each place of `dim`."""

def quantize_groups(input: Tensor, group_size: int = 32) -> Any:
    """uint8[..., n / 2] and float[..., n / group_size]: the last axis in groups, each of whole
    numbers from -7 to 7 times a scale, the size of its greatest element / 7. The low half
    of a byte holds the first of two elements, plus 8."""

def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """x where it is positive, else 0; NaN stays. The gradient at 0 is 0."""

def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """x limited to [0, 6]."""

def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """x / sqrt(mean(x * x) + eps) * weight over the last axes; float32 under autocast."""

def rotary_angles(positions: Tensor, dim: int, base: float = 10000.0) -> Any:
    """Cosines and sines [..., dim / 2] of each position times base ** (-2 i / dim), in
    float32."""

def rotary_embedding(input: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """input [..., D] with the pair (i, i + D / 2) of features, or (2 i, 2 i + 1) where
    interleaved, turned by the angle whose cosine and sine [..., D / 2] broadcast; in
    float32, given in input's type."""

def rrelu(
    input: Tensor,
    lower: float = 0.125,
    upper: float = 0.3333333333333333,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """x where it is positive, else x times a slope drawn from [lower, upper), or their mean."""

def sample(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    generator: Generator | None = None,
) -> Tensor:
    """int64[...]: a place of the last axis, drawn as likely as softmax(logits / temperature)
    says among those that top_k_top_p keeps; the greatest for a temperature of 0."""

def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """elu with the scale and alpha that keep mean 0 and variance 1."""

def sigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """1 / (1 + exp(-x))."""

def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x * sigmoid(x)."""

def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """Squares / (2 * beta) of differences below beta, else their size - beta / 2."""

def soft_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """log(1 + exp(-target * input))."""

def softmax(input: Tensor, dim: int, _stacklevel: int = 3, dtype: DType | None = None) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis, without overflow."""

def softmin(input: Tensor, dim: int, _stacklevel: int = 3, dtype: DType | None = None) -> Tensor:
    """softmax of -x."""

def softplus(input: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """log(1 + exp(beta * x)) / beta, without overflow; x itself where beta * x > threshold."""

def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved by lambd towards 0, and 0 within [-lambd, lambd]."""

def softsign(input: Tensor) -> Tensor:
    """x / (1 + |x|)."""

def tanh(input: Tensor, inplace: bool = False) -> Tensor:
    """the hyperbolic tangent of x, element by element; integers and bool become float32."""

def tanhshrink(input: Tensor) -> Tensor:
    """x - tanh(x)."""

def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """x where it is above the threshold, else value."""

def top_k_top_p(logits: Tensor, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Logits with -inf for all but the top_k greatest of the last axis (0: all), and but those
    greatest whose probabilities add up to top_p: the one with which they reach it is kept,
    too. Holtzman et al., https://arxiv.org/abs/1904.09751."""

def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-06,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, |anchor - positive| - |anchor - negative| + margin); with swap the nearer of two
    distances to negative."""

def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin) for a distance d; with swap
    the nearer of two distances to negative."""

def unfold(
    input: Tensor,
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> Tensor:
    """The windows of planes [N, C, H, W] as columns: [N, C * window, windows]."""

def upsample(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """interpolate, under its older name."""

def upsample_bilinear(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Tensor:
    """interpolate between neighbours, corners on corners."""

def upsample_nearest(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Tensor:
    """interpolate by the nearest element."""
