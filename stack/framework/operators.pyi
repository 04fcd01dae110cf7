"""Generated from the table of operators by `python -m stack.framework.stubs`."""

from collections.abc import Sequence
from typing import Any

from hal.core.dtypes import DType
from stack.framework.tensor import Tensor

Scalar = float | int | bool

class Operators:
    def abs(self) -> Tensor:
        """|x|; integers wrap, element by element."""
    def add(self, y: Tensor | Scalar) -> Tensor:
        """x + y; for bool tensors `or`."""
    def add_(self, y: Tensor | Scalar) -> Tensor:
        """x + y; for bool tensors `or`."""
    def all(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """Whether no element is 0."""
    def amax(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """The greatest element over axes (all without any); NaN where there is one."""
    def amin(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """The least element over axes (all without any); NaN where there is one."""
    def any(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """Whether some element is not 0."""
    def argmax(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """The int64 position of the first greatest element along an axis (of the flattened tensor
        without one)."""
    def argmin(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """The int64 position of the first least element along an axis (of the flattened tensor
        without one)."""
    def bitwise_and(self, y: Tensor | Scalar) -> Tensor:
        """The bits set in both of two integers or bools."""
    def bitwise_left_shift(self, y: Tensor | Scalar) -> Tensor:
        """x with its bits y places up; 0 from the width of its type on."""
    def bitwise_not(self) -> Tensor:
        """Every bit of an integer or bool inverted."""
    def bitwise_or(self, y: Tensor | Scalar) -> Tensor:
        """The bits set in either of two integers or bools."""
    def bitwise_right_shift(self, y: Tensor | Scalar) -> Tensor:
        """x with its bits y places down; an integer with a sign keeps it."""
    def bitwise_xor(self, y: Tensor | Scalar) -> Tensor:
        """The bits set in one of two integers or bools."""
    def bmm(self, y: Tensor | Scalar) -> Tensor:
        """x @ y: vectors, matrices, and batches of matrices that broadcast. Under autocast in its
        element type."""
    def ceil(self) -> Tensor:
        """The least whole number that is at least x; integers stay."""
    def chunk(self, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
        """x in at most `chunks` pieces of one size along an axis; the last may be smaller."""
    def clamp(
        self, min: Tensor | Scalar | None = None, max: Tensor | Scalar | None = None
    ) -> Tensor:
        """x limited to [min, max]; NaN where x or a limit is NaN."""
    def clamp_(
        self, min: Tensor | Scalar | None = None, max: Tensor | Scalar | None = None
    ) -> Tensor:
        """x limited to [min, max]; NaN where x or a limit is NaN."""
    def clip(
        self, min: Tensor | Scalar | None = None, max: Tensor | Scalar | None = None
    ) -> Tensor:
        """x limited to [min, max]; NaN where x or a limit is NaN."""
    def clip_(
        self, min: Tensor | Scalar | None = None, max: Tensor | Scalar | None = None
    ) -> Tensor:
        """x limited to [min, max]; NaN where x or a limit is NaN."""
    def cos(self) -> Tensor:
        """the cosine of x radians, element by element; integers and bool become float32."""
    def cumprod(self, dim: int) -> Tensor:
        """The products of all elements up to each one along an axis; bool and integers as int64."""
    def cumsum(self, dim: int) -> Tensor:
        """The sums of all elements up to each one along an axis; bool and integers as int64."""
    def div(self, y: Tensor | Scalar) -> Tensor:
        """x / y, in float32 when both are integers."""
    def div_(self, y: Tensor | Scalar) -> Tensor:
        """x / y, in float32 when both are integers."""
    def eq(self, y: Tensor | Scalar) -> Tensor:
        """x == y, as bool."""
    def erf(self) -> Tensor:
        """the error function of x, element by element; integers and bool become float32."""
    def exp(self) -> Tensor:
        """e to the x, element by element; integers and bool become float32."""
    def exp_(self) -> Tensor:
        """e to the x, element by element; integers and bool become float32."""
    def expand(self, *shape: int | Sequence[int]) -> Tensor:
        """x with axes of size 1 repeated, and new leading axes; -1 keeps an axis."""
    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """x with the axes from start_dim to end_dim made one."""
    def flip(self, *dims: int | Sequence[int]) -> Tensor:
        """x with these axes reversed."""
    def floor(self) -> Tensor:
        """The greatest whole number that is at most x; integers stay."""
    def floor_divide(self, y: Tensor | Scalar) -> Tensor:
        """x / y rounded down; an integer divided by 0 gives 0."""
    def gather(self, dim: int, index: Tensor) -> Tensor:
        """y[i][j] = x[i][index[i][j]] for dim 1, and so on: by comparison with each position, for
        short axes."""
    def ge(self, y: Tensor | Scalar) -> Tensor:
        """x >= y, as bool."""
    def gt(self, y: Tensor | Scalar) -> Tensor:
        """x > y, as bool."""
    def index_select(self, dim: int, index: Tensor) -> Tensor:
        """The slices at these positions of an axis."""
    def isfinite(self) -> Tensor:
        """Whether x is neither infinite nor NaN, as bool."""
    def isinf(self) -> Tensor:
        """Whether x is inf or -inf, as bool."""
    def isnan(self) -> Tensor:
        """Whether x is NaN, as bool."""
    def le(self, y: Tensor | Scalar) -> Tensor:
        """x <= y, as bool."""
    def log(self) -> Tensor:
        """the natural logarithm of x, element by element; integers and bool become float32."""
    def log10(self) -> Tensor:
        """The logarithm of x to the base 10."""
    def log2(self) -> Tensor:
        """The logarithm of x to the base 2."""
    def log_softmax(self, dim: int) -> Tensor:
        """The logarithm of softmax, exact where softmax underflows."""
    def logical_and(self, y: Tensor | Scalar) -> Tensor:
        """Whether neither is 0, as bool."""
    def logical_not(self) -> Tensor:
        """Whether x is 0, as bool."""
    def logical_or(self, y: Tensor | Scalar) -> Tensor:
        """Whether one is not 0, as bool."""
    def logsumexp(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """log(sum(exp(x))) over axes, without overflow; -inf where all are -inf."""
    def lt(self, y: Tensor | Scalar) -> Tensor:
        """x < y, as bool."""
    def masked_fill(self, mask: Tensor, value: Tensor | Scalar) -> Tensor:
        """value where the mask holds, else x; its element type is that of x."""
    def matmul(self, y: Tensor | Scalar) -> Tensor:
        """x @ y: vectors, matrices, and batches of matrices that broadcast. Under autocast in its
        element type."""
    def max(self, dim: Any = None, keepdim: bool = False) -> Any:
        """The greatest element; with an axis (values, indices) along it; with a tensor `maximum`."""
    def maximum(self, y: Tensor | Scalar) -> Tensor:
        """The greater of both; NaN where one is NaN."""
    def mean(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """The mean over axes (all without any). Raises TensorError for integers."""
    def min(self, dim: Any = None, keepdim: bool = False) -> Any:
        """The least element; with an axis (values, indices) along it; with a tensor `minimum`."""
    def minimum(self, y: Tensor | Scalar) -> Tensor:
        """The lesser of both; NaN where one is NaN."""
    def mm(self, y: Tensor | Scalar) -> Tensor:
        """x @ y: vectors, matrices, and batches of matrices that broadcast. Under autocast in its
        element type."""
    def mul(self, y: Tensor | Scalar) -> Tensor:
        """x * y; for bool tensors `and`."""
    def mul_(self, y: Tensor | Scalar) -> Tensor:
        """x * y; for bool tensors `and`."""
    def ne(self, y: Tensor | Scalar) -> Tensor:
        """x != y, as bool."""
    def neg(self) -> Tensor:
        """-x; integers wrap, element by element."""
    def neg_(self) -> Tensor:
        """-x; integers wrap, element by element."""
    def norm(
        self,
        p: float | str | None = 2,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
    ) -> Tensor:
        """The p-norm over axes: (sum |x|**p) ** (1/p); inf and -inf give extremes, 0 counts what
        is not 0, "fro" is 2. The derivative at 0 is 0."""
    def permute(self, *dims: int | Sequence[int]) -> Tensor:
        """Axis i of the result is axis dims[i] of x."""
    def pow(self, y: Tensor | Scalar) -> Tensor:
        """x to the power of y."""
    def prod(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """The product over axes (all without any); bool and integers are multiplied as int64."""
    def reciprocal(self) -> Tensor:
        """1 / x, element by element; integers and bool become float32."""
    def relu(self) -> Tensor:
        """x where it is positive, else 0; NaN stays. The gradient at 0 is 0."""
    def remainder(self, y: Tensor | Scalar) -> Tensor:
        """What is left by floor_divide, with y's sign; an integer divided by 0 leaves 0."""
    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """x's elements in row-major order under another shape; one -1 stands for what remains."""
    def round(self) -> Tensor:
        """To the nearest whole number, halves to even."""
    def rsqrt(self) -> Tensor:
        """1 / sqrt(x), element by element; integers and bool become float32."""
    def sigmoid(self) -> Tensor:
        """1 / (1 + exp(-x))."""
    def sign(self) -> Tensor:
        """-1, 0 or 1; NaN gives 0. No gradient flows."""
    def sin(self) -> Tensor:
        """the sine of x radians, element by element; integers and bool become float32."""
    def softmax(self, dim: int) -> Tensor:
        """exp(x) / sum(exp(x)) along an axis, without overflow."""
    def split(self, size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
        """Pieces of x along an axis: of `size` each (the last may be less), or of the sizes given."""
    def sqrt(self) -> Tensor:
        """the square root of x, element by element; integers and bool become float32."""
    def sqrt_(self) -> Tensor:
        """the square root of x, element by element; integers and bool become float32."""
    def square(self) -> Tensor:
        """x * x."""
    def squeeze(self, dim: int | Sequence[int] | None = None) -> Tensor:
        """x without axes of size 1: all of them, or those among `dim`."""
    def std(
        self, dim: int | Sequence[int] | None = None, keepdim: bool = False, correction: Scalar = 1
    ) -> Tensor:
        """The square root of var."""
    def sub(self, y: Tensor | Scalar) -> Tensor:
        """x - y. Raises TensorError for bool tensors."""
    def sub_(self, y: Tensor | Scalar) -> Tensor:
        """x - y. Raises TensorError for bool tensors."""
    def sum(
        self,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        dtype: DType | None = None,
    ) -> Tensor:
        """The sum over axes (all without any); bool and integers are added as int64."""
    def swapaxes(self, dim0: int, dim1: int) -> Tensor:
        """x with two axes exchanged."""
    def t(self) -> Tensor:
        """x of at most two axes, transposed."""
    def tan(self) -> Tensor:
        """The tangent of x radians."""
    def tanh(self) -> Tensor:
        """the hyperbolic tangent of x, element by element; integers and bool become float32."""
    def transpose(self, dim0: int, dim1: int) -> Tensor:
        """x with two axes exchanged."""
    def tril(self, diagonal: int = 0) -> Tensor:
        """x with 0 above the diagonal of its last two axes."""
    def triu(self, diagonal: int = 0) -> Tensor:
        """x with 0 below the diagonal of its last two axes."""
    def true_divide(self, y: Tensor | Scalar) -> Tensor:
        """x / y, in float32 when both are integers."""
    def true_divide_(self, y: Tensor | Scalar) -> Tensor:
        """x / y, in float32 when both are integers."""
    def unsqueeze(self, dim: int) -> Tensor:
        """x with a new axis of size 1 at `dim`."""
    def var(
        self, dim: int | Sequence[int] | None = None, keepdim: bool = False, correction: Scalar = 1
    ) -> Tensor:
        """The variance over axes: squares of deviations from the mean, divided by n - correction
        (NaN at 0)."""
    def where(self, condition: Tensor, other: Tensor | Scalar) -> Tensor:
        """x where the condition holds, else other."""
    def __add__(self, other: Tensor | Scalar) -> Tensor: ...
    def __radd__(self, other: Tensor | Scalar) -> Tensor: ...
    def __iadd__(self, other: Tensor | Scalar) -> Tensor: ...
    def __sub__(self, other: Tensor | Scalar) -> Tensor: ...
    def __rsub__(self, other: Tensor | Scalar) -> Tensor: ...
    def __isub__(self, other: Tensor | Scalar) -> Tensor: ...
    def __mul__(self, other: Tensor | Scalar) -> Tensor: ...
    def __rmul__(self, other: Tensor | Scalar) -> Tensor: ...
    def __imul__(self, other: Tensor | Scalar) -> Tensor: ...
    def __truediv__(self, other: Tensor | Scalar) -> Tensor: ...
    def __rtruediv__(self, other: Tensor | Scalar) -> Tensor: ...
    def __itruediv__(self, other: Tensor | Scalar) -> Tensor: ...
    def __floordiv__(self, other: Tensor | Scalar) -> Tensor: ...
    def __rfloordiv__(self, other: Tensor | Scalar) -> Tensor: ...
    def __mod__(self, other: Tensor | Scalar) -> Tensor: ...
    def __rmod__(self, other: Tensor | Scalar) -> Tensor: ...
    def __pow__(self, other: Tensor | Scalar) -> Tensor: ...
    def __rpow__(self, other: Tensor | Scalar) -> Tensor: ...
    def __eq__(self, other: object) -> Tensor: ...  # type: ignore[override]
    def __ne__(self, other: object) -> Tensor: ...  # type: ignore[override]
    def __lt__(self, other: Tensor | Scalar) -> Tensor: ...
    def __le__(self, other: Tensor | Scalar) -> Tensor: ...
    def __gt__(self, other: Tensor | Scalar) -> Tensor: ...
    def __ge__(self, other: Tensor | Scalar) -> Tensor: ...
    def __and__(self, other: Tensor | Scalar) -> Tensor: ...
    def __rand__(self, other: Tensor | Scalar) -> Tensor: ...
    def __or__(self, other: Tensor | Scalar) -> Tensor: ...
    def __ror__(self, other: Tensor | Scalar) -> Tensor: ...
    def __xor__(self, other: Tensor | Scalar) -> Tensor: ...
    def __rxor__(self, other: Tensor | Scalar) -> Tensor: ...
    def __invert__(self) -> Tensor: ...
    def __lshift__(self, other: Tensor | Scalar) -> Tensor: ...
    def __rlshift__(self, other: Tensor | Scalar) -> Tensor: ...
    def __rshift__(self, other: Tensor | Scalar) -> Tensor: ...
    def __rrshift__(self, other: Tensor | Scalar) -> Tensor: ...
    def __matmul__(self, other: Tensor | Scalar) -> Tensor: ...
    def __rmatmul__(self, other: Tensor | Scalar) -> Tensor: ...
    def __neg__(self) -> Tensor: ...
    def __abs__(self) -> Tensor: ...
