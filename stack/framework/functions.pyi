"""Generated from the table of operators by `python -m stack.framework.stubs`."""

from collections.abc import Callable, Sequence
from typing import Any, overload

from hal.core.dtypes import DType
from stack.framework.random import Generator
from stack.framework.tensor import Tensor

Scalar = float | int | bool
__all__ = [
    "abs",
    "absolute",
    "acos",
    "acosh",
    "add",
    "addbmm",
    "addcdiv",
    "addcmul",
    "addmm",
    "addmv",
    "addr",
    "adjoint",
    "all",
    "allclose",
    "amax",
    "amin",
    "aminmax",
    "angle",
    "any",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "argmax",
    "argmin",
    "argsort",
    "argwhere",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "avg_pool1d",
    "baddbmm",
    "bilinear",
    "bincount",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "block_diag",
    "bmm",
    "broadcast_tensors",
    "broadcast_to",
    "bucketize",
    "cartesian_prod",
    "cat",
    "cdist",
    "ceil",
    "celu",
    "channel_shuffle",
    "cholesky",
    "cholesky_inverse",
    "cholesky_solve",
    "chunk",
    "clamp",
    "clamp_max",
    "clamp_min",
    "clip",
    "column_stack",
    "concat",
    "concatenate",
    "conj",
    "conj_physical",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "copysign",
    "corrcoef",
    "cos",
    "cosh",
    "cosine_similarity",
    "count_nonzero",
    "cov",
    "cross",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "cumulative_trapezoid",
    "deg2rad",
    "det",
    "diag",
    "diag_embed",
    "diagflat",
    "diagonal",
    "diagonal_copy",
    "diagonal_scatter",
    "diff",
    "digamma",
    "dist",
    "div",
    "divide",
    "dot",
    "dsplit",
    "dstack",
    "einsum",
    "eq",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "fake_quantize_per_channel_affine",
    "fake_quantize_per_tensor_affine",
    "fill",
    "fix",
    "flatten",
    "flip",
    "fliplr",
    "flipud",
    "float_power",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "frac",
    "gather",
    "gcd",
    "ge",
    "ger",
    "greater",
    "greater_equal",
    "group_norm",
    "gt",
    "hardshrink",
    "heaviside",
    "histc",
    "hsplit",
    "hstack",
    "hypot",
    "i0",
    "index_add",
    "index_copy",
    "index_fill",
    "index_put",
    "index_reduce",
    "index_select",
    "inner",
    "inverse",
    "isclose",
    "isfinite",
    "isin",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "isreal",
    "kron",
    "kthvalue",
    "layer_norm",
    "lcm",
    "ldexp",
    "le",
    "lerp",
    "less",
    "less_equal",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_softmax",
    "logaddexp",
    "logaddexp2",
    "logcumsumexp",
    "logdet",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logit",
    "logsumexp",
    "lt",
    "masked_fill",
    "masked_scatter",
    "masked_select",
    "matmul",
    "matrix_exp",
    "matrix_power",
    "max",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "maximum",
    "mean",
    "median",
    "meshgrid",
    "min",
    "minimum",
    "mm",
    "mode",
    "moveaxis",
    "movedim",
    "msort",
    "mul",
    "multinomial",
    "multiply",
    "mv",
    "mvlgamma",
    "nan_to_num",
    "nanmean",
    "nanmedian",
    "nanquantile",
    "nansum",
    "narrow",
    "narrow_copy",
    "native_layer_norm",
    "ne",
    "neg",
    "negative",
    "nextafter",
    "nonzero",
    "norm",
    "normal",
    "not_equal",
    "one_hot",
    "outer",
    "pairwise_distance",
    "pdist",
    "permute",
    "permute_copy",
    "pinverse",
    "pixel_shuffle",
    "pixel_unshuffle",
    "polygamma",
    "positive",
    "pow",
    "prelu",
    "prod",
    "put",
    "qr",
    "quantile",
    "rad2deg",
    "randint_like",
    "ravel",
    "reciprocal",
    "relu",
    "remainder",
    "renorm",
    "repeat_interleave",
    "reshape",
    "resolve_conj",
    "resolve_neg",
    "rms_norm",
    "roll",
    "rot90",
    "round",
    "row_stack",
    "rsqrt",
    "rsub",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "searchsorted",
    "select",
    "select_copy",
    "select_scatter",
    "selu",
    "sgn",
    "sigmoid",
    "sign",
    "signbit",
    "sin",
    "sinc",
    "sinh",
    "slice_scatter",
    "slogdet",
    "softmax",
    "sort",
    "split",
    "split_with_sizes",
    "split_with_sizes_copy",
    "sqrt",
    "square",
    "squeeze",
    "squeeze_copy",
    "stack",
    "std",
    "std_mean",
    "sub",
    "subtract",
    "sum",
    "svd",
    "swapaxes",
    "swapdims",
    "t",
    "t_copy",
    "take",
    "take_along_dim",
    "tan",
    "tanh",
    "tensor_split",
    "tensordot",
    "threshold",
    "tile",
    "topk",
    "trace",
    "transpose",
    "transpose_copy",
    "trapezoid",
    "trapz",
    "triangular_solve",
    "tril",
    "triu",
    "true_divide",
    "trunc",
    "unbind",
    "unbind_copy",
    "unflatten",
    "unique",
    "unique_consecutive",
    "unsafe_chunk",
    "unsafe_split",
    "unsafe_split_with_sizes",
    "unsqueeze",
    "unsqueeze_copy",
    "vander",
    "var",
    "var_mean",
    "vdot",
    "vsplit",
    "vstack",
    "where",
    "xlogy",
]

def abs(input: Tensor) -> Tensor:
    """|x|; integers wrap, element by element."""

def absolute(input: Tensor) -> Tensor:
    """The size of x."""

def acos(input: Tensor) -> Tensor:
    """the angle in radians whose cosine is x, element by element; integers and bool become
    float32."""

def acosh(input: Tensor) -> Tensor:
    """what x is the hyperbolic cosine of; NaN below 1, element by element; integers and bool
    become float32."""

def add(input: Tensor | Scalar, other: Tensor | Scalar, alpha: Scalar = 1) -> Tensor:
    """x + alpha * y; for bool tensors `or`."""

def addbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, beta: Scalar = 1, alpha: Scalar = 1
) -> Tensor:
    """beta * x + alpha * the sum over the batch of batch1 @ batch2."""

def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, value: Scalar = 1) -> Tensor:
    """x + value * tensor1 / tensor2."""

def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, value: Scalar = 1) -> Tensor:
    """x + value * tensor1 * tensor2."""

def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
    """beta * x + alpha * mat1 @ mat2."""

def addmv(input: Tensor, mat: Tensor, vec: Tensor, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
    """beta * x + alpha * mat @ vec."""

def addr(input: Tensor, vec1: Tensor, vec2: Tensor, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
    """beta * x + alpha * outer(vec1, vec2)."""

def adjoint(input: Tensor) -> Tensor:
    """x with its last two axes exchanged."""

def all(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """Whether no element is 0, as bool; of uint8 as 0 or 1."""

def allclose(
    x: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Whether isclose holds for all elements. Waits for them."""

def amax(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """The greatest element over axes (all without any); NaN where there is one."""

def amin(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """The least element over axes (all without any); NaN where there is one."""

def aminmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The least and the greatest element, along an axis if one is given."""

def angle(input: Tensor) -> Tensor:
    """pi where x is negative, else 0."""

def any(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """Whether some element is not 0, as bool; of uint8 as 0 or 1."""

def arccos(input: Tensor) -> Tensor:
    """the angle in radians whose cosine is x, element by element; integers and bool become
    float32."""

def arccosh(input: Tensor) -> Tensor:
    """what x is the hyperbolic cosine of; NaN below 1, element by element; integers and bool
    become float32."""

def arcsin(input: Tensor) -> Tensor:
    """the angle in radians whose sine is x, element by element; integers and bool become
    float32."""

def arcsinh(input: Tensor) -> Tensor:
    """what x is the hyperbolic sine of, element by element; integers and bool become float32."""

def arctan(input: Tensor) -> Tensor:
    """the angle in radians whose tangent is x, element by element; integers and bool become
    float32."""

def arctan2(input: Tensor | float, other: Tensor | float) -> Tensor:
    """the angle in radians of the point with height a at b, from -pi to pi, element by
    element; integers and bool become float32."""

def arctanh(input: Tensor) -> Tensor:
    """what x is the hyperbolic tangent of; NaN beyond 1, element by element; integers and bool
    become float32."""

def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The int64 position of the first greatest element along an axis (of the flattened tensor
    without one)."""

def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The int64 position of the first least element along an axis (of the flattened tensor
    without one)."""

def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The int64 places that put x in order along an axis; the order is always stable."""

def argwhere(x: Tensor) -> Tensor:
    """nonzero."""

def asin(input: Tensor) -> Tensor:
    """the angle in radians whose sine is x, element by element; integers and bool become
    float32."""

def asinh(input: Tensor) -> Tensor:
    """what x is the hyperbolic sine of, element by element; integers and bool become float32."""

def atan(input: Tensor) -> Tensor:
    """the angle in radians whose tangent is x, element by element; integers and bool become
    float32."""

def atan2(input: Tensor | float, other: Tensor | float) -> Tensor:
    """the angle in radians of the point with height a at b, from -pi to pi, element by
    element; integers and bool become float32."""

def atanh(input: Tensor) -> Tensor:
    """what x is the hyperbolic tangent of; NaN beyond 1, element by element; integers and bool
    become float32."""

def atleast_1d(*tensors: Any) -> Any:
    """Each tensor with at least 1 axes."""

def atleast_2d(*tensors: Any) -> Any:
    """Each tensor with at least 2 axes."""

def atleast_3d(*tensors: Any) -> Any:
    """Each tensor with at least 3 axes."""

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

def baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, beta: Scalar = 1, alpha: Scalar = 1
) -> Tensor:
    """beta * x + alpha * batch1 @ batch2."""

def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y[..., o] = input1[..., i] * weight[o, i, j] * input2[..., j], plus bias."""

def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each of 0, 1, ... is in x, or the sums of their weights. Waits for the
    greatest."""

def bitwise_and(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """The bits set in both of two integers or bools."""

def bitwise_left_shift(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x with its bits y places up; 0 from the width of its type on."""

def bitwise_not(input: Tensor) -> Tensor:
    """Every bit of an integer or bool inverted."""

def bitwise_or(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """The bits set in either of two integers or bools."""

def bitwise_right_shift(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x with its bits y places down; an integer with a sign keeps it."""

def bitwise_xor(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """The bits set in one of two integers or bools."""

def block_diag(*tensors: Tensor) -> Tensor:
    """Matrices one after the other on the diagonal, zeros elsewhere."""

def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """The products of two batches of matrices."""

def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in their common shape."""

def broadcast_to(input: Tensor, size: Sequence[int]) -> Tensor:
    """x repeated to a shape by the rules of broadcasting."""

def bucketize(
    input: Any, boundaries: Tensor, out_int32: bool = False, right: bool = False
) -> Tensor:
    """The number of the bucket between sorted boundaries in which each element is."""

def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All combinations of one element of each tensor of one axis, as rows."""

def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The parts one after the other along an axis, in their common element type."""

def cdist(
    x1: Tensor,
    x2: Tensor,
    p: float = 2.0,
    compute_mode: str | None = "use_mm_for_euclid_dist_if_necessary",
) -> Tensor:
    """The p-norms of the differences of all rows of both. Euclidean ones of more than 25 rows
    come from a product, as PyTorch's do: rows that are near each other beside their size
    have distances of few digits. `compute_mode` "donot_use_mm_for_euclid_dist" takes
    differences."""

def ceil(input: Tensor) -> Tensor:
    """The least whole number that is at least x; integers stay."""

def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where it is positive, else alpha * (exp(x / alpha) - 1)."""

def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Channels, axis 1, of `groups` groups in turn."""

def cholesky(input: Tensor, upper: bool = False) -> Tensor:
    """The lower triangular L with L @ L.T = x, or its transpose."""

def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """The inverse of L @ L.T, of an upper one of L.T @ L."""

def cholesky_solve(input: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """What L @ L.T (of an upper one L.T @ L) times gives x."""

def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """x in at most `chunks` pieces of one size along an axis; the last may be smaller."""

def clamp(
    input: Tensor, min: Tensor | Scalar | None = None, max: Tensor | Scalar | None = None
) -> Tensor:
    """x limited to [min, max]; NaN where x or a limit is NaN."""

def clamp_max(input: Tensor, max: Tensor | Scalar) -> Tensor:
    """x, but at most max."""

def clamp_min(input: Tensor, min: Tensor | Scalar) -> Tensor:
    """x, but at least min."""

def clip(
    input: Tensor, min: Tensor | Scalar | None = None, max: Tensor | Scalar | None = None
) -> Tensor:
    """x limited to [min, max]; NaN where x or a limit is NaN."""

def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one axis as columns, others as they are, beside each other."""

def concat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The parts one after the other along an axis, in their common element type."""

def concatenate(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The parts one after the other along an axis, in their common element type."""

def conj(input: Tensor) -> Tensor:
    """x: there are no complex tensors."""

def conj_physical(input: Tensor) -> Tensor:
    """x: there are no complex tensors."""

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

def copysign(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """The size of x with the sign of y."""

def corrcoef(input: Tensor) -> Tensor:
    """The correlations of the rows."""

def cos(input: Tensor) -> Tensor:
    """the cosine of x radians, element by element; integers and bool become float32."""

def cosh(input: Tensor) -> Tensor:
    """the hyperbolic cosine of x, element by element; integers and bool become float32."""

def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-08) -> Tensor:
    """The cosine of the angle of vectors along an axis, whose lengths count as at least eps."""

def count_nonzero(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """How many elements are not 0 over axes, int64."""

def cov(
    input: Tensor,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    """The covariances of the rows, whose columns are observations, which count fweights times
    and weigh aweights."""

def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The cross products of vectors of three along an axis: the first one of three elements."""

def cummax(input: Tensor, dim: int) -> Any:
    """The greatest elements up to each one along an axis, and the last places where they are."""

def cummin(input: Tensor, dim: int) -> Any:
    """The least elements up to each one along an axis, and the last places where they are."""

def cumprod(input: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    """The products of all elements up to each one along an axis; bool and integers as int64."""

def cumsum(input: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    """The sums of all elements up to each one along an axis; bool and integers as int64."""

def cumulative_trapezoid(
    other: Tensor, input: Tensor | None = None, dx: float | None = None, dim: int = -1
) -> Tensor:
    """The integrals of y up to each place of an axis, but the first."""

def deg2rad(input: Tensor) -> Tensor:
    """An angle of degrees in radians."""

def det(A: Tensor) -> Tensor:
    """The determinant."""

def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """A matrix with x on a diagonal; of a matrix its diagonal."""

def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices in two new axes with x's last axis on the diagonal, zeros elsewhere."""

def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """A matrix with all elements of x on a diagonal."""

def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The elements of two axes at (i, i + offset), as a new last axis."""

def diagonal_copy(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The elements of two axes at (i, i + offset), as a new last axis."""

def diagonal_scatter(
    input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """x with src as its diagonal."""

def diff(
    input: Tensor,
    n: int = 1,
    dim: int = -1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """The differences of neighbours along an axis, n times."""

def digamma(input: Tensor) -> Tensor:
    """the derivative of lgamma, element by element; integers and bool become float32."""

def dist(input: Tensor, other: Tensor, p: float = 2.0) -> Tensor:
    """The p-norm of x - other."""

def div(input: Tensor | Scalar, other: Tensor | Scalar, rounding_mode: str | None = None) -> Tensor:
    """x / y, in float32 when both are integers; rounded down with "floor", to 0 with "trunc"."""

def divide(
    input: Tensor | Scalar, other: Tensor | Scalar, rounding_mode: str | None = None
) -> Tensor:
    """x / y, in float32 when both are integers; rounded down with "floor", to 0 with "trunc"."""

def dot(input: Tensor, other: Tensor) -> Tensor:
    """The sum of the products of two vectors."""

def dsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """tensor_split along axis 2."""

def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors, of at least three axes, one after the other along axis 2."""

def einsum(equation: str, *operands: Any) -> Tensor:
    """The sums of products that an equation such as "bik,bkj->bij" says; an ellipsis stands
    for axes that broadcast. Operands are taken pair by pair from the left."""

def eq(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x == y, as bool."""

def erf(input: Tensor) -> Tensor:
    """the error function of x, element by element; integers and bool become float32."""

def erfc(input: Tensor) -> Tensor:
    """1 less the error function of x, exact where that is nearly 1, element by element;
    integers and bool become float32."""

def erfinv(input: Tensor) -> Tensor:
    """what x is the error function of, element by element; integers and bool become float32."""

def exp(input: Tensor) -> Tensor:
    """e to the x, element by element; integers and bool become float32."""

def exp2(input: Tensor) -> Tensor:
    """2 to the x, element by element; integers and bool become float32."""

def expm1(input: Tensor) -> Tensor:
    """e to the x, less 1, exact near 0, element by element; integers and bool become float32."""

def fake_quantize_per_channel_affine(
    input: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> Tensor:
    """fake_quantize_per_tensor_affine with a scale and zero point for each place of an axis."""

def fake_quantize_per_tensor_affine(
    input: Tensor,
    scale: Tensor | Scalar,
    zero_point: Tensor | Scalar,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """input rounded to the numbers that quant_min to quant_max stand for; the gradient passes
    where it was within them."""

def fill(input: Tensor, value: Tensor | Scalar) -> Tensor:
    """value everywhere, in x's shape and element type."""

def fix(input: Tensor) -> Tensor:
    """The nearest whole number towards 0; integers stay. No gradient flows."""

def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """x with the axes from start_dim to end_dim made one."""

def flip(input: Tensor, *dims: int | Sequence[int]) -> Tensor:
    """x with these axes reversed."""

def fliplr(input: Tensor) -> Tensor:
    """x with axis 1 reversed."""

def flipud(input: Tensor) -> Tensor:
    """x with axis 0 reversed."""

def float_power(input: Tensor | Scalar, exponent: Tensor | Scalar) -> Tensor:
    """x to the power of exponent, in float64."""

def floor(input: Tensor) -> Tensor:
    """The greatest whole number that is at most x; integers stay."""

def floor_divide(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x / y rounded down; an integer divided by 0 gives 0."""

def fmax(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """The greater of both; the other one where one is NaN."""

def fmin(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """The lesser of both; the other one where one is NaN."""

def fmod(input: Tensor | float, other: Tensor | float) -> Tensor:
    """what is left of a by whole multiples of b, with a's sign; integers by zero give 0,
    element by element."""

def frac(input: Tensor) -> Tensor:
    """x without its whole part."""

def gather(input: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    """y[i][j] = x[i][index[i][j]] for dim 1, and so on."""

def gcd(input: Tensor, other: Tensor) -> Tensor:
    """The greatest common divisor, by as many of Euclid's steps as the type may need."""

def ge(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x >= y, as bool."""

def ger(input: Tensor, vec2: Tensor) -> Tensor:
    """Each element of a vector times each of another."""

def greater(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x > y, as bool."""

def greater_equal(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x >= y, as bool."""

def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over each of num_groups groups of
    channels, axis 1, and all axes behind it."""

def gt(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x > y, as bool."""

def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x, but 0 within [-lambd, lambd]."""

def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """0 below 0, values at 0, 1 above."""

def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements lie in each of equal parts of [min, max], or of their own range if
    both are equal."""

def hsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """tensor_split along axis 1, of one axis along it."""

def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors one after the other along axis 1, of one axis along it."""

def hypot(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """sqrt(x * x + y * y), without overflow."""

def i0(input: Tensor) -> Tensor:
    """The modified Bessel function of the first kind, of order 0."""

def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Scalar = 1) -> Tensor:
    """x with alpha * source added to its slices at index of an axis."""

def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """x with source as its slices at index of an axis."""

def index_fill(input: Tensor, dim: int, index: Tensor, value: Tensor | float) -> Tensor:
    """x with value as its slices at index of an axis."""

def index_put(
    input: Tensor, indices: Sequence[Any], values: Tensor, accumulate: bool = False
) -> Tensor:
    """x with values at x[indices], added to what is there with accumulate."""

def index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    """x with source combined by prod, mean, amin or amax with its slices at index of an axis."""

def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices at these positions of an axis, which stays; one position may have no axis."""

def inner(input: Tensor, other: Tensor) -> Tensor:
    """The sums of products over the last axis of both."""

def inverse(input: Tensor) -> Tensor:
    """The inverse."""

def isclose(
    input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Tensor:
    """Whether |x - other| <= atol + rtol * |other|, as bool; equal infinities are close."""

def isfinite(input: Tensor) -> Tensor:
    """Whether x is neither infinite nor NaN, as bool."""

def isin(
    input: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """Whether each element is among others."""

def isinf(input: Tensor) -> Tensor:
    """Whether x is inf or -inf, as bool."""

def isnan(input: Tensor) -> Tensor:
    """Whether x is NaN, as bool."""

def isneginf(input: Tensor) -> Tensor:
    """Whether x is -inf, as bool."""

def isposinf(input: Tensor) -> Tensor:
    """Whether x is inf, as bool."""

def isreal(input: Tensor) -> Tensor:
    """True: there are no complex tensors."""

def kron(input: Tensor, other: Tensor) -> Tensor:
    """Each element of x times all of other, in its place."""

def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """The k-th least element along an axis, and its place."""

def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axes; float32 under
    autocast."""

def lcm(input: Tensor, other: Tensor) -> Tensor:
    """The least common multiple; 0 where one is 0."""

def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """x * 2 ** other."""

def le(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x <= y, as bool."""

def lerp(input: Tensor, end: Tensor | Scalar, weight: Tensor | Scalar) -> Tensor:
    """x + weight * (end - x)."""

def less(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x < y, as bool."""

def less_equal(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x <= y, as bool."""

def lgamma(input: Tensor) -> Tensor:
    """the logarithm of the size of the gamma function of x, element by element; integers and
    bool become float32."""

def log(input: Tensor) -> Tensor:
    """the natural logarithm of x, element by element; integers and bool become float32."""

def log10(input: Tensor) -> Tensor:
    """The logarithm of x to the base 10."""

def log1p(input: Tensor) -> Tensor:
    """the natural logarithm of 1 + x, exact near 0, element by element; integers and bool
    become float32."""

def log2(input: Tensor) -> Tensor:
    """The logarithm of x to the base 2."""

def log_softmax(
    input: Tensor, dim: int, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    """The logarithm of softmax, exact where softmax underflows."""

def logaddexp(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """log(exp(x) + exp(y)), without overflow."""

def logaddexp2(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """log2(2 ** x + 2 ** y), without overflow."""

def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """The logarithms of the sums of exponentials up to each element along an axis: pairs, then
    fours, and so on."""

def logdet(input: Tensor) -> Tensor:
    """The logarithm of the determinant; NaN if it is negative."""

def logical_and(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """Whether neither is 0, as bool."""

def logical_not(input: Tensor) -> Tensor:
    """Whether x is 0, as bool."""

def logical_or(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """Whether one is not 0, as bool."""

def logical_xor(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """Whether one of both is 0, as bool."""

def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), of x held within [eps, 1 - eps]."""

def logsumexp(
    input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> Tensor:
    """log(sum(exp(x))) over axes, without overflow; -inf where all are -inf."""

def lt(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x < y, as bool."""

def masked_fill(input: Tensor, mask: Tensor, value: Tensor | Scalar) -> Tensor:
    """value where the mask holds, else x; its element type is that of x."""

def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """x with the elements of source, in order, where the mask holds."""

def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """x's elements where the mask holds, which broadcasts with it, in a row. Waits for their
    number."""

def matmul(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x @ y: vectors, matrices, and batches of matrices that broadcast. Under autocast in its
    element type."""

def matrix_exp(input: Tensor) -> Tensor:
    """The exponential of square matrices: Taylor's series of x / 2 ** 8, squared eight times."""

def matrix_power(input: Tensor, n: int) -> Tensor:
    """x times itself n times, of its inverse for a negative n."""

def max(input: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The greatest element; with an axis (values, indices) along it; with a tensor `maximum`."""

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

def maximum(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """The greater of both; NaN where one is NaN."""

def mean(
    input: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: DType | None = None,
) -> Tensor:
    """The mean over axes (all without any). Raises TensorError for integers."""

def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The middle element, the lower one of two, of all or along an axis with its place; NaN
    where there is one."""

def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """The coordinates of a grid: each tensor of one axis along an axis of its own; "xy"
    exchanges the first two."""

def min(input: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The least element; with an axis (values, indices) along it; with a tensor `minimum`."""

def minimum(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """The lesser of both; NaN where one is NaN."""

def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """The product of two matrices."""

def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """The least of the most frequent elements along an axis, and the last place where it is."""

def moveaxis(input: Tensor, source: Any, destination: Any) -> Tensor:
    """x with the axes `source` at `destination`, the others in order."""

def movedim(input: Tensor, source: Any, destination: Any) -> Tensor:
    """x with the axes `source` at `destination`, the others in order."""

def msort(input: Tensor) -> Tensor:
    """x in order along axis 0."""

def mul(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x * y; for bool tensors `and`."""

def multinomial(
    x: Tensor, num_samples: int, replacement: bool = False, generator: Generator | None = None
) -> Tensor:
    """int64: num_samples places of each row, each as likely as its weight, which is not
    negative; without replacement each at most once."""

def multiply(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x * y; for bool tensors `and`."""

def mv(input: Tensor, vec: Tensor) -> Tensor:
    """The product of a matrix and a vector."""

def mvlgamma(input: Tensor, p: int) -> Tensor:
    """The logarithm of the gamma function of p dimensions."""

def nan_to_num(
    input: Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    """x with numbers for NaN (0) and for inf and -inf (the greatest and least ones)."""

def nanmean(
    input: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: DType | None = None,
) -> Tensor:
    """mean over what is no NaN."""

def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """median of what is no NaN."""

def nanquantile(
    input: Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    interpolation: str = "linear",
) -> Tensor:
    """quantile of what is no NaN."""

def nansum(
    input: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: DType | None = None,
) -> Tensor:
    """sum, in which NaN counts as 0."""

def narrow(input: Tensor, dim: int, start: int | Tensor, length: int) -> Tensor:
    """`length` slices of an axis from `start` on."""

def narrow_copy(input: Tensor, dim: int, start: int | Tensor, length: int) -> Tensor:
    """`length` slices of an axis from `start` on."""

def native_layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, ...]:
    """layer_norm, the mean, and 1 / sqrt(variance + eps)."""

def ne(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x != y, as bool."""

def neg(input: Tensor) -> Tensor:
    """-x; integers wrap, element by element."""

def negative(input: Tensor) -> Tensor:
    """-x; integers wrap, element by element."""

def nextafter(input: Tensor | float, other: Tensor | float) -> Tensor:
    """the next float after a towards b, element by element; integers and bool become float32."""

def nonzero(x: Tensor, as_tuple: bool = False) -> Any:
    """int64[count, axes]: where elements are not 0; as a tuple an index tensor for each axis.
    Waits for their number."""

def norm(
    input: Tensor,
    p: float | str | None = "fro",
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: DType | None = None,
) -> Tensor:
    """The p-norm over axes: (sum |x|**p) ** (1/p); inf and -inf give extremes, 0 counts what
    is not 0, "fro" is 2; "nuc" is that of matrices. The derivative at 0 is 0."""

def normal(
    mean: Tensor | float = 0.0,
    std: Tensor | float = 1.0,
    size: Sequence[int] | None = None,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: str | None = None,
) -> Tensor:
    """Numbers of normal distributions, one for each mean and deviation, or `size` of one."""

def not_equal(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x != y, as bool."""

def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """int64: 1 at the position that each entry names along a new last axis, 0 elsewhere. Waits
    for the greatest where num_classes is -1."""

def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """Each element of a vector times each of another."""

def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-06, keepdim: bool = False
) -> Tensor:
    """The p-norm of x1 - x2 + eps along the last axis."""

def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The p-norms of the differences of all pairs of rows, each once."""

def permute(input: Tensor, *dims: int | Sequence[int]) -> Tensor:
    """Axis i of the result is axis dims[i] of x."""

def permute_copy(input: Tensor, *dims: int | Sequence[int]) -> Tensor:
    """Axis i of the result is axis dims[i] of x."""

def pinverse(input: Tensor, rcond: float = 1e-15) -> Tensor:
    """linalg.pinv."""

def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """[..., C * r * r, H, W] to [..., C, H * r, W * r]."""

def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """[..., C, H * r, W * r] to [..., C * r * r, H, W]."""

def polygamma(n: int, input: Tensor) -> Tensor:
    """The derivative of order n of digamma; beyond the first of what is above -10."""

def positive(input: Tensor) -> Tensor:
    """x itself."""

def pow(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x to the power of y."""

def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """x where it is positive, else weight * x; weight has one value, or one for each channel,
    axis 1."""

def prod(
    input: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: DType | None = None,
) -> Tensor:
    """The product over axes (all without any); bool and integers are multiplied as int64."""

def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """x with source at these positions of x as one axis."""

def qr(input: Tensor, some: bool = True) -> Any:
    """linalg.qr; without `some` with a square Q."""

def quantile(
    input: Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    interpolation: str = "linear",
) -> Tensor:
    """What the share q, or each of shares, of the elements is at most, between two neighbours
    by interpolation; NaN where there is one."""

def rad2deg(input: Tensor) -> Tensor:
    """An angle of radians in degrees."""

def randint_like(
    x: Tensor,
    low: int,
    high: int | None = None,
    dtype: DType | None = None,
    device: str | None = None,
) -> Tensor:
    """Whole numbers from low (0 where only the end is given) to high - 1 in x's shape."""

def ravel(input: Tensor) -> Tensor:
    """x as one axis."""

def reciprocal(input: Tensor) -> Tensor:
    """1 / x, element by element; integers and bool become float32."""

def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """x where it is positive, else 0; NaN stays. The gradient at 0 is 0."""

def remainder(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """What is left by floor_divide, with y's sign; an integer divided by 0 leaves 0."""

def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """x with each slice of an axis scaled to a p-norm of at most maxnorm."""

def repeat_interleave(
    x: Tensor, repeats: int | Tensor, dim: int | None = None, output_size: int | None = None
) -> Tensor:
    """x with each slice of an axis so often in a row. Waits for the sum of a tensor of
    numbers, which output_size says beforehand."""

def reshape(input: Tensor, *shape: int | Sequence[int]) -> Tensor:
    """x's elements in row-major order under another shape; one -1 stands for what remains."""

def resolve_conj(input: Tensor) -> Tensor:
    """x: there are no complex tensors."""

def resolve_neg(input: Tensor) -> Tensor:
    """x: there are no complex tensors."""

def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """x / sqrt(mean(x * x) + eps) * weight over the last axes; float32 under autocast."""

def roll(input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    """x with its elements `shifts` places on along axes, the last ones first again."""

def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """x turned k times by 90 degrees in the plane of two axes, from the first to the second."""

def round(input: Tensor, decimals: int = 0) -> Tensor:
    """To the nearest whole number, or multiple of 10 ** -decimals, halves to even."""

def row_stack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors, of at least two axes, one after the other along axis 0."""

def rsqrt(input: Tensor) -> Tensor:
    """1 / sqrt(x), element by element; integers and bool become float32."""

def rsub(input: Tensor | Scalar, other: Tensor | Scalar, alpha: Scalar = 1) -> Tensor:
    """y - alpha * x."""

def scatter(
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Any = None,
    reduce: str | None = None,
    value: Any = None,
) -> Tensor:
    """x with src at the places of index along an axis, the later ones of equal places; with
    reduce "add" or "multiply" combined with what is there."""

def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """x with src added at the places of index along an axis."""

def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    """x with src combined by sum, prod, mean, amin or amax at the places of index along an
    axis, with what was there or, without include_self, in its place."""

def searchsorted(
    sorted_sequence: Tensor,
    values: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """How many elements of each sorted row are below each value; on the right side, at most."""

def select(input: Tensor, dim: int, index: int) -> Tensor:
    """One slice of an axis, without it."""

def select_copy(input: Tensor, dim: int, index: int) -> Tensor:
    """One slice of an axis, without it."""

def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """x with src as one slice of an axis."""

def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """elu with the scale and alpha that keep mean 0 and variance 1."""

def sgn(input: Tensor) -> Tensor:
    """-1, 0 or 1; NaN gives 0. No gradient flows."""

def sigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """1 / (1 + exp(-x))."""

def sign(input: Tensor) -> Tensor:
    """-1, 0 or 1; NaN gives 0. No gradient flows."""

def signbit(input: Tensor) -> Tensor:
    """Whether x is negative or -0.0, as bool."""

def sin(input: Tensor) -> Tensor:
    """the sine of x radians, element by element; integers and bool become float32."""

def sinc(input: Tensor) -> Tensor:
    """sin(pi x) / (pi x), 1 at 0."""

def sinh(input: Tensor) -> Tensor:
    """the hyperbolic sine of x, element by element; integers and bool become float32."""

def slice_scatter(
    input: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """x with src as the slice start:end:step of an axis."""

def slogdet(A: Tensor) -> Any:
    """The sign of the determinant, and the logarithm of its size."""

def softmax(input: Tensor, dim: int, _stacklevel: int = 3, dtype: DType | None = None) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis, without overflow."""

def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    """x in order along an axis, and the places where its elements were; NaN counts as greatest
    and the order is always stable."""

def split(input: Tensor, size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces of x along an axis: of `size` each (the last may be less), or of the sizes given."""

def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces of these sizes along an axis."""

def split_with_sizes_copy(
    input: Tensor, split_sizes: Sequence[int], dim: int = 0
) -> tuple[Tensor, ...]:
    """Pieces of these sizes along an axis."""

def sqrt(input: Tensor) -> Tensor:
    """the square root of x, element by element; integers and bool become float32."""

def square(input: Tensor) -> Tensor:
    """x * x; of a bool an int64."""

def squeeze(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """x without axes of size 1: all of them, or those among `dim`."""

def squeeze_copy(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """x without axes of size 1: all of them, or those among `dim`."""

def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The parts, all of one shape, one after the other along a new axis."""

def std(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    correction: Scalar | None = 1,
) -> Tensor:
    """The square root of var, whose gradient is 0 where it is 0."""

def std_mean(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    correction: Scalar | None = 1,
) -> Any:
    """std, and mean."""

def sub(input: Tensor | Scalar, other: Tensor | Scalar, alpha: Scalar = 1) -> Tensor:
    """x - alpha * y. Raises TensorError for bool tensors."""

def subtract(input: Tensor | Scalar, other: Tensor | Scalar, alpha: Scalar = 1) -> Tensor:
    """x - alpha * y. Raises TensorError for bool tensors."""

def sum(
    input: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: DType | None = None,
) -> Tensor:
    """The sum over axes (all without any); bool and integers are added as int64."""

def svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> Any:
    """linalg.svd with V in the place of Vh; with some not completed to square matrices."""

def swapaxes(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """x with two axes exchanged."""

def swapdims(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """x with two axes exchanged."""

def t(input: Tensor) -> Tensor:
    """x of at most two axes, transposed."""

def t_copy(input: Tensor) -> Tensor:
    """x of at most two axes, transposed."""

def take(input: Tensor, index: Tensor) -> Tensor:
    """The elements at these positions of x as one axis."""

def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """gather with an index that broadcasts; without a dim of all elements in a row."""

def tan(input: Tensor) -> Tensor:
    """The tangent of x radians."""

def tanh(input: Tensor, inplace: bool = False) -> Tensor:
    """the hyperbolic tangent of x, element by element; integers and bool become float32."""

def tensor_split(
    x: Tensor, indices_or_sections: int | Sequence[int] | Tensor, dim: int = 0
) -> tuple[Tensor, ...]:
    """x in so many pieces along an axis, the first ones longer by one, or cut at these places.
    Waits for those of a tensor."""

def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """The sums of products over axes of both: the last of a and first of b, or two lists."""

def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """x where it is above the threshold, else value."""

def tile(input: Tensor, *dims: int | Sequence[int]) -> Tensor:
    """x as often along each of its last axes."""

def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The k greatest (or least) elements along an axis, in order, and their places."""

def trace(input: Tensor) -> Tensor:
    """The sum of a matrix's diagonal."""

def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """x with two axes exchanged."""

def transpose_copy(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """x with two axes exchanged."""

def trapezoid(
    other: Tensor, input: Tensor | None = None, dx: float | None = None, dim: int = -1
) -> Tensor:
    """The integral of y along an axis by trapezoids, over places x or steps dx."""

def trapz(
    other: Tensor, input: Tensor | None = None, dx: float | None = None, dim: int = -1
) -> Tensor:
    """The integral of y along an axis by trapezoids, over places x or steps dx."""

def triangular_solve(
    b: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:
    """(X with A @ X = b, A)."""

def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """x with 0 above the diagonal of its last two axes."""

def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """x with 0 below the diagonal of its last two axes."""

def true_divide(
    input: Tensor | Scalar, other: Tensor | Scalar, rounding_mode: str | None = None
) -> Tensor:
    """x / y, in float32 when both are integers; rounded down with "floor", to 0 with "trunc"."""

def trunc(input: Tensor) -> Tensor:
    """The nearest whole number towards 0; integers stay. No gradient flows."""

def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis, without it."""

def unbind_copy(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis, without it."""

def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """x with an axis as several ones; one -1 stands for what remains."""

def unique(
    x: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The different elements in order, the place among them of each element, and how often
    each is there; with dim the different slices along it, in the order of their elements.
    Waits for their number."""

def unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The elements, or slices along dim, that differ from the one before, with places and
    numbers as in unique."""

def unsafe_chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """x in at most `chunks` pieces of one size along an axis; the last may be smaller."""

def unsafe_split(input: Tensor, size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces of x along an axis: of `size` each (the last may be less), or of the sizes given."""

def unsafe_split_with_sizes(
    input: Tensor, size: int | Sequence[int], dim: int = 0
) -> tuple[Tensor, ...]:
    """Pieces of x along an axis: of `size` each (the last may be less), or of the sizes given."""

def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """x with a new axis of size 1 at `dim`."""

def unsqueeze_copy(input: Tensor, dim: int) -> Tensor:
    """x with a new axis of size 1 at `dim`."""

def vander(input: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """The powers N - 1 to 0 of each element of a vector as rows, or 0 to N - 1."""

def var(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    correction: Scalar | None = 1,
) -> Tensor:
    """The variance over axes: squares of deviations from the mean, divided by n - correction
    (NaN at 0); the correction of `unbiased` is 1, of its opposite 0."""

def var_mean(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    correction: Scalar | None = 1,
) -> Any:
    """var, and mean."""

def vdot(input: Tensor, other: Tensor) -> Tensor:
    """dot."""

def vsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """tensor_split along axis 0."""

def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors, of at least two axes, one after the other along axis 0."""

@overload
def where(condition: Tensor) -> tuple[Tensor, ...]:
    """input where the condition holds, else other. Of a condition alone
    nonzero(as_tuple=True), which waits for the number of places."""

@overload
def where(condition: Tensor, input: Tensor | float, other: Tensor | float) -> Tensor:
    """input where the condition holds, else other. Of a condition alone
    nonzero(as_tuple=True), which waits for the number of places."""

def xlogy(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x * log(y), but 0 where x is 0 and y is no NaN."""
