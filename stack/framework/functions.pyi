"""Generated from the table of operators by `python -m stack.framework.stubs`."""

from collections.abc import Sequence
from typing import Any

from hal.core.dtypes import DType
from stack.framework.tensor import Tensor

Scalar = float | int | bool
__all__ = [
    "abs",
    "add",
    "all",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "bmm",
    "cat",
    "ceil",
    "chunk",
    "clamp",
    "clip",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cos",
    "cumprod",
    "cumsum",
    "div",
    "eq",
    "erf",
    "exp",
    "flatten",
    "flip",
    "floor",
    "floor_divide",
    "gather",
    "ge",
    "gt",
    "index_select",
    "isfinite",
    "isinf",
    "isnan",
    "le",
    "log",
    "log10",
    "log2",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logsumexp",
    "lt",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mm",
    "mul",
    "ne",
    "neg",
    "norm",
    "one_hot",
    "permute",
    "pow",
    "prod",
    "reciprocal",
    "relu",
    "remainder",
    "reshape",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "softmax",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "sub",
    "sum",
    "swapaxes",
    "t",
    "tan",
    "tanh",
    "transpose",
    "tril",
    "triu",
    "true_divide",
    "unsqueeze",
    "var",
    "where",
]

def abs(x: Tensor) -> Tensor:
    """|x|; integers wrap, element by element."""

def add(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """x + y; for bool tensors `or`."""

def all(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """Whether no element is 0."""

def amax(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """The greatest element over axes (all without any); NaN where there is one."""

def amin(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """The least element over axes (all without any); NaN where there is one."""

def any(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """Whether some element is not 0."""

def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The int64 position of the first greatest element along an axis (of the flattened tensor
    without one)."""

def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The int64 position of the first least element along an axis (of the flattened tensor
    without one)."""

def bitwise_and(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """The bits set in both of two integers or bools."""

def bitwise_left_shift(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """x with its bits y places up; 0 from the width of its type on."""

def bitwise_not(x: Tensor) -> Tensor:
    """Every bit of an integer or bool inverted."""

def bitwise_or(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """The bits set in either of two integers or bools."""

def bitwise_right_shift(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """x with its bits y places down; an integer with a sign keeps it."""

def bitwise_xor(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """The bits set in one of two integers or bools."""

def bmm(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """x @ y: vectors, matrices, and batches of matrices that broadcast. Under autocast in its
    element type."""

def cat(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The parts one after the other along an axis, in their common element type."""

def ceil(x: Tensor) -> Tensor:
    """The least whole number that is at least x; integers stay."""

def chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """x in at most `chunks` pieces of one size along an axis; the last may be smaller."""

def clamp(
    x: Tensor, min: Tensor | Scalar | None = None, max: Tensor | Scalar | None = None
) -> Tensor:
    """x limited to [min, max]; NaN where x or a limit is NaN."""

def clip(
    x: Tensor, min: Tensor | Scalar | None = None, max: Tensor | Scalar | None = None
) -> Tensor:
    """x limited to [min, max]; NaN where x or a limit is NaN."""

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

def cos(x: Tensor) -> Tensor:
    """the cosine of x radians, element by element; integers and bool become float32."""

def cumprod(x: Tensor, dim: int) -> Tensor:
    """The products of all elements up to each one along an axis; bool and integers as int64."""

def cumsum(x: Tensor, dim: int) -> Tensor:
    """The sums of all elements up to each one along an axis; bool and integers as int64."""

def div(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """x / y, in float32 when both are integers."""

def eq(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """x == y, as bool."""

def erf(x: Tensor) -> Tensor:
    """the error function of x, element by element; integers and bool become float32."""

def exp(x: Tensor) -> Tensor:
    """e to the x, element by element; integers and bool become float32."""

def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """x with the axes from start_dim to end_dim made one."""

def flip(x: Tensor, *dims: int | Sequence[int]) -> Tensor:
    """x with these axes reversed."""

def floor(x: Tensor) -> Tensor:
    """The greatest whole number that is at most x; integers stay."""

def floor_divide(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """x / y rounded down; an integer divided by 0 gives 0."""

def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """y[i][j] = x[i][index[i][j]] for dim 1, and so on: by comparison with each position, for
    short axes."""

def ge(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """x >= y, as bool."""

def gt(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """x > y, as bool."""

def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices at these positions of an axis."""

def isfinite(x: Tensor) -> Tensor:
    """Whether x is neither infinite nor NaN, as bool."""

def isinf(x: Tensor) -> Tensor:
    """Whether x is inf or -inf, as bool."""

def isnan(x: Tensor) -> Tensor:
    """Whether x is NaN, as bool."""

def le(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """x <= y, as bool."""

def log(x: Tensor) -> Tensor:
    """the natural logarithm of x, element by element; integers and bool become float32."""

def log10(x: Tensor) -> Tensor:
    """The logarithm of x to the base 10."""

def log2(x: Tensor) -> Tensor:
    """The logarithm of x to the base 2."""

def log_softmax(x: Tensor, dim: int) -> Tensor:
    """The logarithm of softmax, exact where softmax underflows."""

def logical_and(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """Whether neither is 0, as bool."""

def logical_not(x: Tensor) -> Tensor:
    """Whether x is 0, as bool."""

def logical_or(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """Whether one is not 0, as bool."""

def logsumexp(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) over axes, without overflow; -inf where all are -inf."""

def lt(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """x < y, as bool."""

def matmul(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """x @ y: vectors, matrices, and batches of matrices that broadcast. Under autocast in its
    element type."""

def max(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The greatest element; with an axis (values, indices) along it; with a tensor `maximum`."""

def maximum(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """The greater of both; NaN where one is NaN."""

def mean(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """The mean over axes (all without any). Raises TensorError for integers."""

def min(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The least element; with an axis (values, indices) along it; with a tensor `minimum`."""

def minimum(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """The lesser of both; NaN where one is NaN."""

def mm(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """x @ y: vectors, matrices, and batches of matrices that broadcast. Under autocast in its
    element type."""

def mul(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """x * y; for bool tensors `and`."""

def ne(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """x != y, as bool."""

def neg(x: Tensor) -> Tensor:
    """-x; integers wrap, element by element."""

def norm(
    x: Tensor,
    p: float | str | None = 2,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
) -> Tensor:
    """The p-norm over axes: (sum |x|**p) ** (1/p); inf and -inf give extremes, 0 counts what
    is not 0, "fro" is 2. The derivative at 0 is 0."""

def one_hot(index: Tensor, num_classes: int) -> Tensor:
    """int64: 1 at the position that each entry names along a new last axis, 0 elsewhere."""

def permute(x: Tensor, *dims: int | Sequence[int]) -> Tensor:
    """Axis i of the result is axis dims[i] of x."""

def pow(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """x to the power of y."""

def prod(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """The product over axes (all without any); bool and integers are multiplied as int64."""

def reciprocal(x: Tensor) -> Tensor:
    """1 / x, element by element; integers and bool become float32."""

def relu(x: Tensor) -> Tensor:
    """x where it is positive, else 0; NaN stays. The gradient at 0 is 0."""

def remainder(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """What is left by floor_divide, with y's sign; an integer divided by 0 leaves 0."""

def reshape(x: Tensor, *shape: int | Sequence[int]) -> Tensor:
    """x's elements in row-major order under another shape; one -1 stands for what remains."""

def round(x: Tensor) -> Tensor:
    """To the nearest whole number, halves to even."""

def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x), element by element; integers and bool become float32."""

def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""

def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1; NaN gives 0. No gradient flows."""

def sin(x: Tensor) -> Tensor:
    """the sine of x radians, element by element; integers and bool become float32."""

def softmax(x: Tensor, dim: int) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis, without overflow."""

def split(x: Tensor, size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces of x along an axis: of `size` each (the last may be less), or of the sizes given."""

def sqrt(x: Tensor) -> Tensor:
    """the square root of x, element by element; integers and bool become float32."""

def square(x: Tensor) -> Tensor:
    """x * x."""

def squeeze(x: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """x without axes of size 1: all of them, or those among `dim`."""

def stack(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The parts, all of one shape, one after the other along a new axis."""

def std(
    x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, correction: Scalar = 1
) -> Tensor:
    """The square root of var."""

def sub(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """x - y. Raises TensorError for bool tensors."""

def sum(
    x: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: DType | None = None,
) -> Tensor:
    """The sum over axes (all without any); bool and integers are added as int64."""

def swapaxes(x: Tensor, dim0: int, dim1: int) -> Tensor:
    """x with two axes exchanged."""

def t(x: Tensor) -> Tensor:
    """x of at most two axes, transposed."""

def tan(x: Tensor) -> Tensor:
    """The tangent of x radians."""

def tanh(x: Tensor) -> Tensor:
    """the hyperbolic tangent of x, element by element; integers and bool become float32."""

def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    """x with two axes exchanged."""

def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """x with 0 above the diagonal of its last two axes."""

def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """x with 0 below the diagonal of its last two axes."""

def true_divide(x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """x / y, in float32 when both are integers."""

def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """x with a new axis of size 1 at `dim`."""

def var(
    x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, correction: Scalar = 1
) -> Tensor:
    """The variance over axes: squares of deviations from the mean, divided by n - correction
    (NaN at 0)."""

def where(condition: Tensor, x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """x where the condition holds, else y."""
