"""Generated from the table of operators by `python -m stack.framework.stubs`."""

from collections.abc import Callable, Sequence
from typing import Any, overload

from hal.core.dtypes import DType
from stack.framework.random import Generator
from stack.framework.tensor import Tensor

Scalar = float | int | bool

class Operators:
    def abs(self) -> Tensor:
        """|x|; integers wrap, element by element."""
    def abs_(self) -> Tensor:
        """|x|; integers wrap, element by element."""
    def absolute(self) -> Tensor:
        """The size of x."""
    def absolute_(self) -> Tensor:
        """The size of x."""
    def acos(self) -> Tensor:
        """the angle in radians whose cosine is x, element by element; integers and bool become
        float32."""
    def acos_(self) -> Tensor:
        """the angle in radians whose cosine is x, element by element; integers and bool become
        float32."""
    def acosh(self) -> Tensor:
        """what x is the hyperbolic cosine of; NaN below 1, element by element; integers and bool
        become float32."""
    def acosh_(self) -> Tensor:
        """what x is the hyperbolic cosine of; NaN below 1, element by element; integers and bool
        become float32."""
    def add(self, other: Tensor | Scalar, alpha: Scalar = 1) -> Tensor:
        """x + alpha * y; for bool tensors `or`."""
    def add_(self, other: Tensor | Scalar, alpha: Scalar = 1) -> Tensor:
        """x + alpha * y; for bool tensors `or`."""
    def addbmm(self, batch1: Tensor, batch2: Tensor, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
        """beta * x + alpha * the sum over the batch of batch1 @ batch2."""
    def addbmm_(
        self, batch1: Tensor, batch2: Tensor, beta: Scalar = 1, alpha: Scalar = 1
    ) -> Tensor:
        """beta * x + alpha * the sum over the batch of batch1 @ batch2."""
    def addcdiv(self, tensor1: Tensor, tensor2: Tensor, value: Scalar = 1) -> Tensor:
        """x + value * tensor1 / tensor2."""
    def addcdiv_(self, tensor1: Tensor, tensor2: Tensor, value: Scalar = 1) -> Tensor:
        """x + value * tensor1 / tensor2."""
    def addcmul(self, tensor1: Tensor, tensor2: Tensor, value: Scalar = 1) -> Tensor:
        """x + value * tensor1 * tensor2."""
    def addcmul_(self, tensor1: Tensor, tensor2: Tensor, value: Scalar = 1) -> Tensor:
        """x + value * tensor1 * tensor2."""
    def addmm(self, mat1: Tensor, mat2: Tensor, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
        """beta * x + alpha * mat1 @ mat2."""
    def addmm_(self, mat1: Tensor, mat2: Tensor, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
        """beta * x + alpha * mat1 @ mat2."""
    def addmv(self, mat: Tensor, vec: Tensor, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
        """beta * x + alpha * mat @ vec."""
    def addmv_(self, mat: Tensor, vec: Tensor, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
        """beta * x + alpha * mat @ vec."""
    def addr(self, vec1: Tensor, vec2: Tensor, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
        """beta * x + alpha * outer(vec1, vec2)."""
    def addr_(self, vec1: Tensor, vec2: Tensor, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
        """beta * x + alpha * outer(vec1, vec2)."""
    def adjoint(self) -> Tensor:
        """x with its last two axes exchanged."""
    def all(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """Whether no element is 0, as bool; of uint8 as 0 or 1."""
    def allclose(
        self, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
    ) -> bool:
        """Whether isclose holds for all elements. Waits for them."""
    def amax(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """The greatest element over axes (all without any); NaN where there is one."""
    def amin(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """The least element over axes (all without any); NaN where there is one."""
    def aminmax(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """The least and the greatest element, along an axis if one is given."""
    def angle(self) -> Tensor:
        """pi where x is negative, else 0."""
    def any(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """Whether some element is not 0, as bool; of uint8 as 0 or 1."""
    def arccos(self) -> Tensor:
        """the angle in radians whose cosine is x, element by element; integers and bool become
        float32."""
    def arccos_(self) -> Tensor:
        """the angle in radians whose cosine is x, element by element; integers and bool become
        float32."""
    def arccosh(self) -> Tensor:
        """what x is the hyperbolic cosine of; NaN below 1, element by element; integers and bool
        become float32."""
    def arccosh_(self) -> Tensor:
        """what x is the hyperbolic cosine of; NaN below 1, element by element; integers and bool
        become float32."""
    def arcsin(self) -> Tensor:
        """the angle in radians whose sine is x, element by element; integers and bool become
        float32."""
    def arcsin_(self) -> Tensor:
        """the angle in radians whose sine is x, element by element; integers and bool become
        float32."""
    def arcsinh(self) -> Tensor:
        """what x is the hyperbolic sine of, element by element; integers and bool become float32."""
    def arcsinh_(self) -> Tensor:
        """what x is the hyperbolic sine of, element by element; integers and bool become float32."""
    def arctan(self) -> Tensor:
        """the angle in radians whose tangent is x, element by element; integers and bool become
        float32."""
    def arctan_(self) -> Tensor:
        """the angle in radians whose tangent is x, element by element; integers and bool become
        float32."""
    def arctan2(self, other: Tensor | float) -> Tensor:
        """the angle in radians of the point with height a at b, from -pi to pi, element by
        element; integers and bool become float32."""
    def arctan2_(self, other: Tensor | float) -> Tensor:
        """the angle in radians of the point with height a at b, from -pi to pi, element by
        element; integers and bool become float32."""
    def arctanh(self) -> Tensor:
        """what x is the hyperbolic tangent of; NaN beyond 1, element by element; integers and bool
        become float32."""
    def arctanh_(self) -> Tensor:
        """what x is the hyperbolic tangent of; NaN beyond 1, element by element; integers and bool
        become float32."""
    def argmax(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """The int64 position of the first greatest element along an axis (of the flattened tensor
        without one)."""
    def argmin(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """The int64 position of the first least element along an axis (of the flattened tensor
        without one)."""
    def argsort(self, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
        """The int64 places that put x in order along an axis; the order is always stable."""
    def argwhere(self) -> Tensor:
        """nonzero."""
    def asin(self) -> Tensor:
        """the angle in radians whose sine is x, element by element; integers and bool become
        float32."""
    def asin_(self) -> Tensor:
        """the angle in radians whose sine is x, element by element; integers and bool become
        float32."""
    def asinh(self) -> Tensor:
        """what x is the hyperbolic sine of, element by element; integers and bool become float32."""
    def asinh_(self) -> Tensor:
        """what x is the hyperbolic sine of, element by element; integers and bool become float32."""
    def atan(self) -> Tensor:
        """the angle in radians whose tangent is x, element by element; integers and bool become
        float32."""
    def atan_(self) -> Tensor:
        """the angle in radians whose tangent is x, element by element; integers and bool become
        float32."""
    def atan2(self, other: Tensor | float) -> Tensor:
        """the angle in radians of the point with height a at b, from -pi to pi, element by
        element; integers and bool become float32."""
    def atan2_(self, other: Tensor | float) -> Tensor:
        """the angle in radians of the point with height a at b, from -pi to pi, element by
        element; integers and bool become float32."""
    def atanh(self) -> Tensor:
        """what x is the hyperbolic tangent of; NaN beyond 1, element by element; integers and bool
        become float32."""
    def atanh_(self) -> Tensor:
        """what x is the hyperbolic tangent of; NaN beyond 1, element by element; integers and bool
        become float32."""
    def baddbmm(
        self, batch1: Tensor, batch2: Tensor, beta: Scalar = 1, alpha: Scalar = 1
    ) -> Tensor:
        """beta * x + alpha * batch1 @ batch2."""
    def baddbmm_(
        self, batch1: Tensor, batch2: Tensor, beta: Scalar = 1, alpha: Scalar = 1
    ) -> Tensor:
        """beta * x + alpha * batch1 @ batch2."""
    def bernoulli(self, generator: Generator | None = None) -> Tensor:
        """1 with the probability that each element gives, else 0."""
    def bernoulli_(self, p: Tensor | float = 0.5, generator: Generator | None = None) -> Tensor:
        """1 with probability p, else 0, in place."""
    def bincount(self, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
        """How often each of 0, 1, ... is in x, or the sums of their weights. Waits for the
        greatest."""
    def bitwise_and(self, other: Tensor | Scalar) -> Tensor:
        """The bits set in both of two integers or bools."""
    def bitwise_and_(self, other: Tensor | Scalar) -> Tensor:
        """The bits set in both of two integers or bools."""
    def bitwise_left_shift(self, other: Tensor | Scalar) -> Tensor:
        """x with its bits y places up; 0 from the width of its type on."""
    def bitwise_left_shift_(self, other: Tensor | Scalar) -> Tensor:
        """x with its bits y places up; 0 from the width of its type on."""
    def bitwise_not(self) -> Tensor:
        """Every bit of an integer or bool inverted."""
    def bitwise_not_(self) -> Tensor:
        """Every bit of an integer or bool inverted."""
    def bitwise_or(self, other: Tensor | Scalar) -> Tensor:
        """The bits set in either of two integers or bools."""
    def bitwise_or_(self, other: Tensor | Scalar) -> Tensor:
        """The bits set in either of two integers or bools."""
    def bitwise_right_shift(self, other: Tensor | Scalar) -> Tensor:
        """x with its bits y places down; an integer with a sign keeps it."""
    def bitwise_right_shift_(self, other: Tensor | Scalar) -> Tensor:
        """x with its bits y places down; an integer with a sign keeps it."""
    def bitwise_xor(self, other: Tensor | Scalar) -> Tensor:
        """The bits set in one of two integers or bools."""
    def bitwise_xor_(self, other: Tensor | Scalar) -> Tensor:
        """The bits set in one of two integers or bools."""
    def bmm(self, mat2: Tensor) -> Tensor:
        """The products of two batches of matrices."""
    def broadcast_to(self, size: Sequence[int]) -> Tensor:
        """x repeated to a shape by the rules of broadcasting."""
    def bucketize(self, boundaries: Tensor, out_int32: bool = False, right: bool = False) -> Tensor:
        """The number of the bucket between sorted boundaries in which each element is."""
    def cauchy_(
        self, median: float = 0.0, sigma: float = 1.0, generator: Generator | None = None
    ) -> Tensor:
        """Numbers of the Cauchy distribution, in place."""
    def cdouble(self) -> Any:
        """The values as complex128, whose imaginary parts are 0."""
    def ceil(self) -> Tensor:
        """The least whole number that is at least x; integers stay."""
    def ceil_(self) -> Tensor:
        """The least whole number that is at least x; integers stay."""
    def cfloat(self) -> Any:
        """The values as complex64, whose imaginary parts are 0."""
    def cholesky(self, upper: bool = False) -> Tensor:
        """The lower triangular L with L @ L.T = x, or its transpose."""
    def cholesky_inverse(self, upper: bool = False) -> Tensor:
        """The inverse of L @ L.T, of an upper one of L.T @ L."""
    def cholesky_solve(self, L: Tensor, upper: bool = False) -> Tensor:
        """What L @ L.T (of an upper one L.T @ L) times gives x."""
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
    def clamp_max(self, max: Tensor | Scalar) -> Tensor:
        """x, but at most max."""
    def clamp_max_(self, max: Tensor | Scalar) -> Tensor:
        """x, but at most max."""
    def clamp_min(self, min: Tensor | Scalar) -> Tensor:
        """x, but at least min."""
    def clamp_min_(self, min: Tensor | Scalar) -> Tensor:
        """x, but at least min."""
    def clip(
        self, min: Tensor | Scalar | None = None, max: Tensor | Scalar | None = None
    ) -> Tensor:
        """x limited to [min, max]; NaN where x or a limit is NaN."""
    def clip_(
        self, min: Tensor | Scalar | None = None, max: Tensor | Scalar | None = None
    ) -> Tensor:
        """x limited to [min, max]; NaN where x or a limit is NaN."""
    def conj(self) -> Tensor:
        """x: there are no complex tensors."""
    def conj_physical(self) -> Tensor:
        """x: there are no complex tensors."""
    def copysign(self, other: Tensor | Scalar) -> Tensor:
        """The size of x with the sign of y."""
    def copysign_(self, other: Tensor | Scalar) -> Tensor:
        """The size of x with the sign of y."""
    def corrcoef(self) -> Tensor:
        """The correlations of the rows."""
    def cos(self) -> Tensor:
        """the cosine of x radians, element by element; integers and bool become float32."""
    def cos_(self) -> Tensor:
        """the cosine of x radians, element by element; integers and bool become float32."""
    def cosh(self) -> Tensor:
        """the hyperbolic cosine of x, element by element; integers and bool become float32."""
    def cosh_(self) -> Tensor:
        """the hyperbolic cosine of x, element by element; integers and bool become float32."""
    def count_nonzero(self, dim: int | Sequence[int] | None = None) -> Tensor:
        """How many elements are not 0 over axes, int64."""
    def cov(
        self, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
    ) -> Tensor:
        """The covariances of the rows, whose columns are observations, which count fweights times
        and weigh aweights."""
    def cross(self, other: Tensor, dim: int | None = None) -> Tensor:
        """The cross products of vectors of three along an axis: the first one of three elements."""
    def cummax(self, dim: int) -> Any:
        """The greatest elements up to each one along an axis, and the last places where they are."""
    def cummin(self, dim: int) -> Any:
        """The least elements up to each one along an axis, and the last places where they are."""
    def cumprod(self, dim: int, dtype: DType | None = None) -> Tensor:
        """The products of all elements up to each one along an axis; bool and integers as int64."""
    def cumprod_(self, dim: int, dtype: DType | None = None) -> Tensor:
        """The products of all elements up to each one along an axis; bool and integers as int64."""
    def cumsum(self, dim: int, dtype: DType | None = None) -> Tensor:
        """The sums of all elements up to each one along an axis; bool and integers as int64."""
    def cumsum_(self, dim: int, dtype: DType | None = None) -> Tensor:
        """The sums of all elements up to each one along an axis; bool and integers as int64."""
    def cumulative_trapezoid(
        self, input: Tensor | None = None, dx: float | None = None, dim: int = -1
    ) -> Tensor:
        """The integrals of y up to each place of an axis, but the first."""
    def deg2rad(self) -> Tensor:
        """An angle of degrees in radians."""
    def deg2rad_(self) -> Tensor:
        """An angle of degrees in radians."""
    def det(self) -> Tensor:
        """The determinant."""
    def diag(self, diagonal: int = 0) -> Tensor:
        """A matrix with x on a diagonal; of a matrix its diagonal."""
    def diag_embed(self, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
        """Matrices in two new axes with x's last axis on the diagonal, zeros elsewhere."""
    def diagflat(self, offset: int = 0) -> Tensor:
        """A matrix with all elements of x on a diagonal."""
    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
        """The elements of two axes at (i, i + offset), as a new last axis."""
    def diagonal_scatter(
        self, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
    ) -> Tensor:
        """x with src as its diagonal."""
    def diff(
        self, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None
    ) -> Tensor:
        """The differences of neighbours along an axis, n times."""
    def digamma(self) -> Tensor:
        """the derivative of lgamma, element by element; integers and bool become float32."""
    def digamma_(self) -> Tensor:
        """the derivative of lgamma, element by element; integers and bool become float32."""
    def dist(self, other: Tensor, p: float = 2.0) -> Tensor:
        """The p-norm of x - other."""
    def div(self, other: Tensor | Scalar, rounding_mode: str | None = None) -> Tensor:
        """x / y, in float32 when both are integers; rounded down with "floor", to 0 with "trunc"."""
    def div_(self, other: Tensor | Scalar, rounding_mode: str | None = None) -> Tensor:
        """x / y, in float32 when both are integers; rounded down with "floor", to 0 with "trunc"."""
    def divide(self, other: Tensor | Scalar, rounding_mode: str | None = None) -> Tensor:
        """x / y, in float32 when both are integers; rounded down with "floor", to 0 with "trunc"."""
    def divide_(self, other: Tensor | Scalar, rounding_mode: str | None = None) -> Tensor:
        """x / y, in float32 when both are integers; rounded down with "floor", to 0 with "trunc"."""
    def dot(self, other: Tensor) -> Tensor:
        """The sum of the products of two vectors."""
    def dsplit(self, indices_or_sections: Any) -> tuple[Tensor, ...]:
        """tensor_split along axis 2."""
    def eq(self, other: Tensor | Scalar) -> Tensor:
        """x == y, as bool."""
    def eq_(self, other: Tensor | Scalar) -> Tensor:
        """x == y, as bool."""
    def erf(self) -> Tensor:
        """the error function of x, element by element; integers and bool become float32."""
    def erf_(self) -> Tensor:
        """the error function of x, element by element; integers and bool become float32."""
    def erfc(self) -> Tensor:
        """1 less the error function of x, exact where that is nearly 1, element by element;
        integers and bool become float32."""
    def erfc_(self) -> Tensor:
        """1 less the error function of x, exact where that is nearly 1, element by element;
        integers and bool become float32."""
    def erfinv(self) -> Tensor:
        """what x is the error function of, element by element; integers and bool become float32."""
    def erfinv_(self) -> Tensor:
        """what x is the error function of, element by element; integers and bool become float32."""
    def exp(self) -> Tensor:
        """e to the x, element by element; integers and bool become float32."""
    def exp_(self) -> Tensor:
        """e to the x, element by element; integers and bool become float32."""
    def exp2(self) -> Tensor:
        """2 to the x, element by element; integers and bool become float32."""
    def exp2_(self) -> Tensor:
        """2 to the x, element by element; integers and bool become float32."""
    def expand(self, *shape: int | Sequence[int]) -> Tensor:
        """x with axes of size 1 repeated, and new leading axes; -1 keeps an axis."""
    def expm1(self) -> Tensor:
        """e to the x, less 1, exact near 0, element by element; integers and bool become float32."""
    def expm1_(self) -> Tensor:
        """e to the x, less 1, exact near 0, element by element; integers and bool become float32."""
    def exponential_(self, lambd: float = 1.0, generator: Generator | None = None) -> Tensor:
        """Times of a process of that rate, in place."""
    def fill(self, value: Tensor | Scalar) -> Tensor:
        """value everywhere, in x's shape and element type."""
    def fix(self) -> Tensor:
        """The nearest whole number towards 0; integers stay. No gradient flows."""
    def fix_(self) -> Tensor:
        """The nearest whole number towards 0; integers stay. No gradient flows."""
    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """x with the axes from start_dim to end_dim made one."""
    def flip(self, *dims: int | Sequence[int]) -> Tensor:
        """x with these axes reversed."""
    def fliplr(self) -> Tensor:
        """x with axis 1 reversed."""
    def flipud(self) -> Tensor:
        """x with axis 0 reversed."""
    def float_power(self, exponent: Tensor | Scalar) -> Tensor:
        """x to the power of exponent, in float64."""
    def float_power_(self, exponent: Tensor | Scalar) -> Tensor:
        """x to the power of exponent, in float64."""
    def floor(self) -> Tensor:
        """The greatest whole number that is at most x; integers stay."""
    def floor_(self) -> Tensor:
        """The greatest whole number that is at most x; integers stay."""
    def floor_divide(self, other: Tensor | Scalar) -> Tensor:
        """x / y rounded down; an integer divided by 0 gives 0."""
    def floor_divide_(self, other: Tensor | Scalar) -> Tensor:
        """x / y rounded down; an integer divided by 0 gives 0."""
    def fmax(self, other: Tensor | Scalar) -> Tensor:
        """The greater of both; the other one where one is NaN."""
    def fmin(self, other: Tensor | Scalar) -> Tensor:
        """The lesser of both; the other one where one is NaN."""
    def fmod(self, other: Tensor | float) -> Tensor:
        """what is left of a by whole multiples of b, with a's sign; integers by zero give 0,
        element by element."""
    def fmod_(self, other: Tensor | float) -> Tensor:
        """what is left of a by whole multiples of b, with a's sign; integers by zero give 0,
        element by element."""
    def frac(self) -> Tensor:
        """x without its whole part."""
    def frac_(self) -> Tensor:
        """x without its whole part."""
    def gather(self, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
        """y[i][j] = x[i][index[i][j]] for dim 1, and so on."""
    def gcd(self, other: Tensor) -> Tensor:
        """The greatest common divisor, by as many of Euclid's steps as the type may need."""
    def gcd_(self, other: Tensor) -> Tensor:
        """The greatest common divisor, by as many of Euclid's steps as the type may need."""
    def ge(self, other: Tensor | Scalar) -> Tensor:
        """x >= y, as bool."""
    def ge_(self, other: Tensor | Scalar) -> Tensor:
        """x >= y, as bool."""
    def geometric_(self, p: float, generator: Generator | None = None) -> Tensor:
        """How many trials it takes until one succeeds that does so with probability p, in place."""
    def ger(self, vec2: Tensor) -> Tensor:
        """Each element of a vector times each of another."""
    def greater(self, other: Tensor | Scalar) -> Tensor:
        """x > y, as bool."""
    def greater_(self, other: Tensor | Scalar) -> Tensor:
        """x > y, as bool."""
    def greater_equal(self, other: Tensor | Scalar) -> Tensor:
        """x >= y, as bool."""
    def greater_equal_(self, other: Tensor | Scalar) -> Tensor:
        """x >= y, as bool."""
    def gt(self, other: Tensor | Scalar) -> Tensor:
        """x > y, as bool."""
    def gt_(self, other: Tensor | Scalar) -> Tensor:
        """x > y, as bool."""
    def heaviside(self, values: Tensor) -> Tensor:
        """0 below 0, values at 0, 1 above."""
    def heaviside_(self, values: Tensor) -> Tensor:
        """0 below 0, values at 0, 1 above."""
    def histc(self, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
        """How many elements lie in each of equal parts of [min, max], or of their own range if
        both are equal."""
    def hsplit(self, indices_or_sections: Any) -> tuple[Tensor, ...]:
        """tensor_split along axis 1, of one axis along it."""
    def hypot(self, other: Tensor | Scalar) -> Tensor:
        """sqrt(x * x + y * y), without overflow."""
    def hypot_(self, other: Tensor | Scalar) -> Tensor:
        """sqrt(x * x + y * y), without overflow."""
    def i0(self) -> Tensor:
        """The modified Bessel function of the first kind, of order 0."""
    def i0_(self) -> Tensor:
        """The modified Bessel function of the first kind, of order 0."""
    def index_add(self, dim: int, index: Tensor, source: Tensor, alpha: Scalar = 1) -> Tensor:
        """x with alpha * source added to its slices at index of an axis."""
    def index_add_(self, dim: int, index: Tensor, source: Tensor, alpha: Scalar = 1) -> Tensor:
        """x with alpha * source added to its slices at index of an axis."""
    def index_copy(self, dim: int, index: Tensor, source: Tensor) -> Tensor:
        """x with source as its slices at index of an axis."""
    def index_copy_(self, dim: int, index: Tensor, source: Tensor) -> Tensor:
        """x with source as its slices at index of an axis."""
    def index_fill(self, dim: int, index: Tensor, value: Tensor | float) -> Tensor:
        """x with value as its slices at index of an axis."""
    def index_fill_(self, dim: int, index: Tensor, value: Tensor | float) -> Tensor:
        """x with value as its slices at index of an axis."""
    def index_put(self, indices: Sequence[Any], values: Tensor, accumulate: bool = False) -> Tensor:
        """x with values at x[indices], added to what is there with accumulate."""
    def index_put_(
        self, indices: Sequence[Any], values: Tensor, accumulate: bool = False
    ) -> Tensor:
        """x with values at x[indices], added to what is there with accumulate."""
    def index_reduce(
        self, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True
    ) -> Tensor:
        """x with source combined by prod, mean, amin or amax with its slices at index of an axis."""
    def index_reduce_(
        self, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True
    ) -> Tensor:
        """x with source combined by prod, mean, amin or amax with its slices at index of an axis."""
    def index_select(self, dim: int, index: Tensor) -> Tensor:
        """The slices at these positions of an axis, which stays; one position may have no axis."""
    def inner(self, other: Tensor) -> Tensor:
        """The sums of products over the last axis of both."""
    def inverse(self) -> Tensor:
        """The inverse."""
    def isclose(
        self, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
    ) -> Tensor:
        """Whether |x - other| <= atol + rtol * |other|, as bool; equal infinities are close."""
    def isfinite(self) -> Tensor:
        """Whether x is neither infinite nor NaN, as bool."""
    def isin(self, test_elements: Any, assume_unique: bool = False, invert: bool = False) -> Tensor:
        """Whether each element is among others."""
    def isinf(self) -> Tensor:
        """Whether x is inf or -inf, as bool."""
    def isnan(self) -> Tensor:
        """Whether x is NaN, as bool."""
    def isneginf(self) -> Tensor:
        """Whether x is -inf, as bool."""
    def isposinf(self) -> Tensor:
        """Whether x is inf, as bool."""
    def isreal(self) -> Tensor:
        """True: there are no complex tensors."""
    def kron(self, other: Tensor) -> Tensor:
        """Each element of x times all of other, in its place."""
    def kthvalue(self, k: int, dim: int = -1, keepdim: bool = False) -> Any:
        """The k-th least element along an axis, and its place."""
    def lcm(self, other: Tensor) -> Tensor:
        """The least common multiple; 0 where one is 0."""
    def lcm_(self, other: Tensor) -> Tensor:
        """The least common multiple; 0 where one is 0."""
    def ldexp(self, other: Tensor) -> Tensor:
        """x * 2 ** other."""
    def ldexp_(self, other: Tensor) -> Tensor:
        """x * 2 ** other."""
    def le(self, other: Tensor | Scalar) -> Tensor:
        """x <= y, as bool."""
    def le_(self, other: Tensor | Scalar) -> Tensor:
        """x <= y, as bool."""
    def lerp(self, end: Tensor | Scalar, weight: Tensor | Scalar) -> Tensor:
        """x + weight * (end - x)."""
    def lerp_(self, end: Tensor | Scalar, weight: Tensor | Scalar) -> Tensor:
        """x + weight * (end - x)."""
    def less(self, other: Tensor | Scalar) -> Tensor:
        """x < y, as bool."""
    def less_(self, other: Tensor | Scalar) -> Tensor:
        """x < y, as bool."""
    def less_equal(self, other: Tensor | Scalar) -> Tensor:
        """x <= y, as bool."""
    def less_equal_(self, other: Tensor | Scalar) -> Tensor:
        """x <= y, as bool."""
    def lgamma(self) -> Tensor:
        """the logarithm of the size of the gamma function of x, element by element; integers and
        bool become float32."""
    def lgamma_(self) -> Tensor:
        """the logarithm of the size of the gamma function of x, element by element; integers and
        bool become float32."""
    def log(self) -> Tensor:
        """the natural logarithm of x, element by element; integers and bool become float32."""
    def log_(self) -> Tensor:
        """the natural logarithm of x, element by element; integers and bool become float32."""
    def log10(self) -> Tensor:
        """The logarithm of x to the base 10."""
    def log10_(self) -> Tensor:
        """The logarithm of x to the base 10."""
    def log1p(self) -> Tensor:
        """the natural logarithm of 1 + x, exact near 0, element by element; integers and bool
        become float32."""
    def log1p_(self) -> Tensor:
        """the natural logarithm of 1 + x, exact near 0, element by element; integers and bool
        become float32."""
    def log2(self) -> Tensor:
        """The logarithm of x to the base 2."""
    def log2_(self) -> Tensor:
        """The logarithm of x to the base 2."""
    def log_normal_(
        self, mean: float = 1.0, std: float = 2.0, generator: Generator | None = None
    ) -> Tensor:
        """Numbers whose logarithms are of the normal distribution, in place."""
    def log_softmax(self, dim: int, _stacklevel: int = 3, dtype: DType | None = None) -> Tensor:
        """The logarithm of softmax, exact where softmax underflows."""
    def logaddexp(self, other: Tensor | Scalar) -> Tensor:
        """log(exp(x) + exp(y)), without overflow."""
    def logaddexp2(self, other: Tensor | Scalar) -> Tensor:
        """log2(2 ** x + 2 ** y), without overflow."""
    def logcumsumexp(self, dim: int) -> Tensor:
        """The logarithms of the sums of exponentials up to each element along an axis: pairs, then
        fours, and so on."""
    def logdet(self) -> Tensor:
        """The logarithm of the determinant; NaN if it is negative."""
    def logical_and(self, other: Tensor | Scalar) -> Tensor:
        """Whether neither is 0, as bool."""
    def logical_and_(self, other: Tensor | Scalar) -> Tensor:
        """Whether neither is 0, as bool."""
    def logical_not(self) -> Tensor:
        """Whether x is 0, as bool."""
    def logical_not_(self) -> Tensor:
        """Whether x is 0, as bool."""
    def logical_or(self, other: Tensor | Scalar) -> Tensor:
        """Whether one is not 0, as bool."""
    def logical_or_(self, other: Tensor | Scalar) -> Tensor:
        """Whether one is not 0, as bool."""
    def logical_xor(self, other: Tensor | Scalar) -> Tensor:
        """Whether one of both is 0, as bool."""
    def logical_xor_(self, other: Tensor | Scalar) -> Tensor:
        """Whether one of both is 0, as bool."""
    def logit(self, eps: float | None = None) -> Tensor:
        """log(x / (1 - x)), of x held within [eps, 1 - eps]."""
    def logit_(self, eps: float | None = None) -> Tensor:
        """log(x / (1 - x)), of x held within [eps, 1 - eps]."""
    def logsumexp(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """log(sum(exp(x))) over axes, without overflow; -inf where all are -inf."""
    def lt(self, other: Tensor | Scalar) -> Tensor:
        """x < y, as bool."""
    def lt_(self, other: Tensor | Scalar) -> Tensor:
        """x < y, as bool."""
    def masked_fill(self, mask: Tensor, value: Tensor | Scalar) -> Tensor:
        """value where the mask holds, else x; its element type is that of x."""
    def masked_scatter(self, mask: Tensor, source: Tensor) -> Tensor:
        """x with the elements of source, in order, where the mask holds."""
    def masked_scatter_(self, mask: Tensor, source: Tensor) -> Tensor:
        """x with the elements of source, in order, where the mask holds."""
    def masked_select(self, mask: Tensor) -> Tensor:
        """x's elements where the mask holds, which broadcasts with it, in a row. Waits for their
        number."""
    def matmul(self, other: Tensor | Scalar) -> Tensor:
        """x @ y: vectors, matrices, and batches of matrices that broadcast. Under autocast in its
        element type."""
    def matrix_exp(self) -> Tensor:
        """The exponential of square matrices: Taylor's series of x / 2 ** 8, squared eight times."""
    def matrix_power(self, n: int) -> Tensor:
        """x times itself n times, of its inverse for a negative n."""
    def max(self, dim: Any = None, keepdim: bool = False) -> Any:
        """The greatest element; with an axis (values, indices) along it; with a tensor `maximum`."""
    def maximum(self, other: Tensor | Scalar) -> Tensor:
        """The greater of both; NaN where one is NaN."""
    def mean(
        self,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        dtype: DType | None = None,
    ) -> Tensor:
        """The mean over axes (all without any). Raises TensorError for integers."""
    def median(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """The middle element, the lower one of two, of all or along an axis with its place; NaN
        where there is one."""
    def min(self, dim: Any = None, keepdim: bool = False) -> Any:
        """The least element; with an axis (values, indices) along it; with a tensor `minimum`."""
    def minimum(self, other: Tensor | Scalar) -> Tensor:
        """The lesser of both; NaN where one is NaN."""
    def mm(self, mat2: Tensor) -> Tensor:
        """The product of two matrices."""
    def mode(self, dim: int = -1, keepdim: bool = False) -> Any:
        """The least of the most frequent elements along an axis, and the last place where it is."""
    def moveaxis(self, source: Any, destination: Any) -> Tensor:
        """x with the axes `source` at `destination`, the others in order."""
    def movedim(self, source: Any, destination: Any) -> Tensor:
        """x with the axes `source` at `destination`, the others in order."""
    def msort(self) -> Tensor:
        """x in order along axis 0."""
    def mul(self, other: Tensor | Scalar) -> Tensor:
        """x * y; for bool tensors `and`."""
    def mul_(self, other: Tensor | Scalar) -> Tensor:
        """x * y; for bool tensors `and`."""
    def multinomial(
        self, num_samples: int, replacement: bool = False, generator: Generator | None = None
    ) -> Tensor:
        """int64: num_samples places of each row, each as likely as its weight, which is not
        negative; without replacement each at most once."""
    def multiply(self, other: Tensor | Scalar) -> Tensor:
        """x * y; for bool tensors `and`."""
    def multiply_(self, other: Tensor | Scalar) -> Tensor:
        """x * y; for bool tensors `and`."""
    def mv(self, vec: Tensor) -> Tensor:
        """The product of a matrix and a vector."""
    def mvlgamma(self, p: int) -> Tensor:
        """The logarithm of the gamma function of p dimensions."""
    def mvlgamma_(self, p: int) -> Tensor:
        """The logarithm of the gamma function of p dimensions."""
    def nan_to_num(
        self, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
    ) -> Tensor:
        """x with numbers for NaN (0) and for inf and -inf (the greatest and least ones)."""
    def nan_to_num_(
        self, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
    ) -> Tensor:
        """x with numbers for NaN (0) and for inf and -inf (the greatest and least ones)."""
    def nanmean(
        self,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        dtype: DType | None = None,
    ) -> Tensor:
        """mean over what is no NaN."""
    def nanmedian(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """median of what is no NaN."""
    def nanquantile(
        self, q: Any, dim: int | None = None, keepdim: bool = False, interpolation: str = "linear"
    ) -> Tensor:
        """quantile of what is no NaN."""
    def nansum(
        self,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        dtype: DType | None = None,
    ) -> Tensor:
        """sum, in which NaN counts as 0."""
    def narrow(self, dim: int, start: int | Tensor, length: int) -> Tensor:
        """`length` slices of an axis from `start` on."""
    def ne(self, other: Tensor | Scalar) -> Tensor:
        """x != y, as bool."""
    def ne_(self, other: Tensor | Scalar) -> Tensor:
        """x != y, as bool."""
    def neg(self) -> Tensor:
        """-x; integers wrap, element by element."""
    def neg_(self) -> Tensor:
        """-x; integers wrap, element by element."""
    def negative(self) -> Tensor:
        """-x; integers wrap, element by element."""
    def negative_(self) -> Tensor:
        """-x; integers wrap, element by element."""
    def new(self, *data: Any) -> Tensor:
        """Of x's element type and device, of these sizes, or with a list's or an array's values:
        what old programs call."""
    def new_empty(self, *size: int | Sequence[int], dtype: DType | None = None) -> Tensor:
        """A tensor of this shape, of x's element type and device, whose elements are to be
        written; they are 0."""
    def new_full(
        self, size: Sequence[int], fill_value: float, dtype: DType | None = None
    ) -> Tensor:
        """A tensor of this shape, of x's element type and device, of one number."""
    def new_ones(self, *size: int | Sequence[int], dtype: DType | None = None) -> Tensor:
        """A tensor of this shape, of x's element type and device, of ones."""
    def new_tensor(
        self,
        data: Any,
        dtype: DType | None = None,
        device: str | None = None,
        requires_grad: bool = False,
    ) -> Tensor:
        """Host data as a tensor of x's element type and device."""
    def new_zeros(self, *size: int | Sequence[int], dtype: DType | None = None) -> Tensor:
        """A tensor of this shape, of x's element type and device, of zeros."""
    def nextafter(self, other: Tensor | float) -> Tensor:
        """the next float after a towards b, element by element; integers and bool become float32."""
    def nextafter_(self, other: Tensor | float) -> Tensor:
        """the next float after a towards b, element by element; integers and bool become float32."""
    def nonzero(self, as_tuple: bool = False) -> Any:
        """int64[count, axes]: where elements are not 0; as a tuple an index tensor for each axis.
        Waits for their number."""
    def norm(
        self,
        p: float | str | None = "fro",
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        dtype: DType | None = None,
    ) -> Tensor:
        """The p-norm over axes: (sum |x|**p) ** (1/p); inf and -inf give extremes, 0 counts what
        is not 0, "fro" is 2; "nuc" is that of matrices. The derivative at 0 is 0."""
    def normal_(
        self, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
    ) -> Tensor:
        """Numbers of the normal distribution, in place."""
    def not_equal(self, other: Tensor | Scalar) -> Tensor:
        """x != y, as bool."""
    def not_equal_(self, other: Tensor | Scalar) -> Tensor:
        """x != y, as bool."""
    def outer(self, vec2: Tensor) -> Tensor:
        """Each element of a vector times each of another."""
    def permute(self, *dims: int | Sequence[int]) -> Tensor:
        """Axis i of the result is axis dims[i] of x."""
    def pinverse(self, rcond: float = 1e-15) -> Tensor:
        """linalg.pinv."""
    def positive(self) -> Tensor:
        """x itself."""
    def pow(self, other: Tensor | Scalar) -> Tensor:
        """x to the power of y."""
    def pow_(self, other: Tensor | Scalar) -> Tensor:
        """x to the power of y."""
    def prelu(self, weight: Tensor) -> Tensor:
        """x where it is positive, else weight * x; weight has one value, or one for each channel,
        axis 1."""
    def prod(
        self,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        dtype: DType | None = None,
    ) -> Tensor:
        """The product over axes (all without any); bool and integers are multiplied as int64."""
    def put(self, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
        """x with source at these positions of x as one axis."""
    def put_(self, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
        """x with source at these positions of x as one axis."""
    def qr(self, some: bool = True) -> Any:
        """linalg.qr; without `some` with a square Q."""
    def quantile(
        self, q: Any, dim: int | None = None, keepdim: bool = False, interpolation: str = "linear"
    ) -> Tensor:
        """What the share q, or each of shares, of the elements is at most, between two neighbours
        by interpolation; NaN where there is one."""
    def rad2deg(self) -> Tensor:
        """An angle of radians in degrees."""
    def rad2deg_(self) -> Tensor:
        """An angle of radians in degrees."""
    def random_(
        self, from_: int = 0, to: int | None = None, generator: Generator | None = None
    ) -> Tensor:
        """Whole numbers from `from_` to `to` - 1, in place; of one number those below it, of none
        those that the element type holds exactly, and at most 2**32 of them."""
    def ravel(self) -> Tensor:
        """x as one axis."""
    def reciprocal(self) -> Tensor:
        """1 / x, element by element; integers and bool become float32."""
    def reciprocal_(self) -> Tensor:
        """1 / x, element by element; integers and bool become float32."""
    def relu(self, inplace: bool = False) -> Tensor:
        """x where it is positive, else 0; NaN stays. The gradient at 0 is 0."""
    def relu_(self, inplace: bool = False) -> Tensor:
        """x where it is positive, else 0; NaN stays. The gradient at 0 is 0."""
    def remainder(self, other: Tensor | Scalar) -> Tensor:
        """What is left by floor_divide, with y's sign; an integer divided by 0 leaves 0."""
    def remainder_(self, other: Tensor | Scalar) -> Tensor:
        """What is left by floor_divide, with y's sign; an integer divided by 0 leaves 0."""
    def renorm(self, p: float, dim: int, maxnorm: float) -> Tensor:
        """x with each slice of an axis scaled to a p-norm of at most maxnorm."""
    def renorm_(self, p: float, dim: int, maxnorm: float) -> Tensor:
        """x with each slice of an axis scaled to a p-norm of at most maxnorm."""
    def repeat(self, *repeats: int | Sequence[int]) -> Tensor:
        """x as often along each axis; more numbers than axes add leading ones."""
    def repeat_interleave(
        self, repeats: int | Tensor, dim: int | None = None, output_size: int | None = None
    ) -> Tensor:
        """x with each slice of an axis so often in a row. Waits for the sum of a tensor of
        numbers, which output_size says beforehand."""
    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """x's elements in row-major order under another shape; one -1 stands for what remains."""
    def resolve_conj(self) -> Tensor:
        """x: there are no complex tensors."""
    def resolve_neg(self) -> Tensor:
        """x: there are no complex tensors."""
    def roll(self, shifts: Any, dims: Any = None) -> Tensor:
        """x with its elements `shifts` places on along axes, the last ones first again."""
    def rot90(self, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
        """x turned k times by 90 degrees in the plane of two axes, from the first to the second."""
    def round(self, decimals: int = 0) -> Tensor:
        """To the nearest whole number, or multiple of 10 ** -decimals, halves to even."""
    def round_(self, decimals: int = 0) -> Tensor:
        """To the nearest whole number, or multiple of 10 ** -decimals, halves to even."""
    def rsqrt(self) -> Tensor:
        """1 / sqrt(x), element by element; integers and bool become float32."""
    def rsqrt_(self) -> Tensor:
        """1 / sqrt(x), element by element; integers and bool become float32."""
    def rsub(self, other: Tensor | Scalar, alpha: Scalar = 1) -> Tensor:
        """y - alpha * x."""
    def scatter(
        self, dim: int, index: Tensor, src: Any = None, reduce: str | None = None, value: Any = None
    ) -> Tensor:
        """x with src at the places of index along an axis, the later ones of equal places; with
        reduce "add" or "multiply" combined with what is there."""
    def scatter_(
        self, dim: int, index: Tensor, src: Any = None, reduce: str | None = None, value: Any = None
    ) -> Tensor:
        """x with src at the places of index along an axis, the later ones of equal places; with
        reduce "add" or "multiply" combined with what is there."""
    def scatter_add(self, dim: int, index: Tensor, src: Tensor) -> Tensor:
        """x with src added at the places of index along an axis."""
    def scatter_add_(self, dim: int, index: Tensor, src: Tensor) -> Tensor:
        """x with src added at the places of index along an axis."""
    def scatter_reduce(
        self, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True
    ) -> Tensor:
        """x with src combined by sum, prod, mean, amin or amax at the places of index along an
        axis, with what was there or, without include_self, in its place."""
    def scatter_reduce_(
        self, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True
    ) -> Tensor:
        """x with src combined by sum, prod, mean, amin or amax at the places of index along an
        axis, with what was there or, without include_self, in its place."""
    def select(self, dim: int, index: int) -> Tensor:
        """One slice of an axis, without it."""
    def select_scatter(self, src: Tensor, dim: int, index: int) -> Tensor:
        """x with src as one slice of an axis."""
    def sgn(self) -> Tensor:
        """-1, 0 or 1; NaN gives 0. No gradient flows."""
    def sgn_(self) -> Tensor:
        """-1, 0 or 1; NaN gives 0. No gradient flows."""
    def sigmoid(self, inplace: bool = False) -> Tensor:
        """1 / (1 + exp(-x))."""
    def sigmoid_(self, inplace: bool = False) -> Tensor:
        """1 / (1 + exp(-x))."""
    def sign(self) -> Tensor:
        """-1, 0 or 1; NaN gives 0. No gradient flows."""
    def sign_(self) -> Tensor:
        """-1, 0 or 1; NaN gives 0. No gradient flows."""
    def signbit(self) -> Tensor:
        """Whether x is negative or -0.0, as bool."""
    def sin(self) -> Tensor:
        """the sine of x radians, element by element; integers and bool become float32."""
    def sin_(self) -> Tensor:
        """the sine of x radians, element by element; integers and bool become float32."""
    def sinc(self) -> Tensor:
        """sin(pi x) / (pi x), 1 at 0."""
    def sinc_(self) -> Tensor:
        """sin(pi x) / (pi x), 1 at 0."""
    def sinh(self) -> Tensor:
        """the hyperbolic sine of x, element by element; integers and bool become float32."""
    def sinh_(self) -> Tensor:
        """the hyperbolic sine of x, element by element; integers and bool become float32."""
    def slice_scatter(
        self,
        src: Tensor,
        dim: int = 0,
        start: int | None = None,
        end: int | None = None,
        step: int = 1,
    ) -> Tensor:
        """x with src as the slice start:end:step of an axis."""
    def slogdet(self) -> Any:
        """The sign of the determinant, and the logarithm of its size."""
    def softmax(self, dim: int, _stacklevel: int = 3, dtype: DType | None = None) -> Tensor:
        """exp(x) / sum(exp(x)) along an axis, without overflow."""
    def sort(self, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
        """x in order along an axis, and the places where its elements were; NaN counts as greatest
        and the order is always stable."""
    def split(self, size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
        """Pieces of x along an axis: of `size` each (the last may be less), or of the sizes given."""
    def split_with_sizes(self, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
        """Pieces of these sizes along an axis."""
    def sqrt(self) -> Tensor:
        """the square root of x, element by element; integers and bool become float32."""
    def sqrt_(self) -> Tensor:
        """the square root of x, element by element; integers and bool become float32."""
    def square(self) -> Tensor:
        """x * x; of a bool an int64."""
    def square_(self) -> Tensor:
        """x * x; of a bool an int64."""
    def squeeze(self, dim: int | Sequence[int] | None = None) -> Tensor:
        """x without axes of size 1: all of them, or those among `dim`."""
    def std(
        self,
        dim: Any = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        correction: Scalar | None = 1,
    ) -> Tensor:
        """The square root of var, whose gradient is 0 where it is 0."""
    def std_mean(
        self,
        dim: Any = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        correction: Scalar | None = 1,
    ) -> Any:
        """std, and mean."""
    def sub(self, other: Tensor | Scalar, alpha: Scalar = 1) -> Tensor:
        """x - alpha * y. Raises TensorError for bool tensors."""
    def sub_(self, other: Tensor | Scalar, alpha: Scalar = 1) -> Tensor:
        """x - alpha * y. Raises TensorError for bool tensors."""
    def subtract(self, other: Tensor | Scalar, alpha: Scalar = 1) -> Tensor:
        """x - alpha * y. Raises TensorError for bool tensors."""
    def subtract_(self, other: Tensor | Scalar, alpha: Scalar = 1) -> Tensor:
        """x - alpha * y. Raises TensorError for bool tensors."""
    def sum(
        self,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        dtype: DType | None = None,
    ) -> Tensor:
        """The sum over axes (all without any); bool and integers are added as int64."""
    def sum_to_size(self, *size: int | Sequence[int]) -> Tensor:
        """x summed over the axes along which `size` broadcasts to its shape."""
    def svd(self, some: bool = True, compute_uv: bool = True) -> Any:
        """linalg.svd with V in the place of Vh; with some not completed to square matrices."""
    def swapaxes(self, dim0: int, dim1: int) -> Tensor:
        """x with two axes exchanged."""
    def swapdims(self, dim0: int, dim1: int) -> Tensor:
        """x with two axes exchanged."""
    def t(self) -> Tensor:
        """x of at most two axes, transposed."""
    def take(self, index: Tensor) -> Tensor:
        """The elements at these positions of x as one axis."""
    def take_along_dim(self, indices: Tensor, dim: int | None = None) -> Tensor:
        """gather with an index that broadcasts; without a dim of all elements in a row."""
    def tan(self) -> Tensor:
        """The tangent of x radians."""
    def tan_(self) -> Tensor:
        """The tangent of x radians."""
    def tanh(self, inplace: bool = False) -> Tensor:
        """the hyperbolic tangent of x, element by element; integers and bool become float32."""
    def tanh_(self, inplace: bool = False) -> Tensor:
        """the hyperbolic tangent of x, element by element; integers and bool become float32."""
    def tensor_split(
        self, indices_or_sections: int | Sequence[int] | Tensor, dim: int = 0
    ) -> tuple[Tensor, ...]:
        """x in so many pieces along an axis, the first ones longer by one, or cut at these places.
        Waits for those of a tensor."""
    def tile(self, *dims: int | Sequence[int]) -> Tensor:
        """x as often along each of its last axes."""
    def topk(self, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
        """The k greatest (or least) elements along an axis, in order, and their places."""
    def trace(self) -> Tensor:
        """The sum of a matrix's diagonal."""
    def transpose(self, dim0: int, dim1: int) -> Tensor:
        """x with two axes exchanged."""
    def trapezoid(
        self, input: Tensor | None = None, dx: float | None = None, dim: int = -1
    ) -> Tensor:
        """The integral of y along an axis by trapezoids, over places x or steps dx."""
    def trapz(self, input: Tensor | None = None, dx: float | None = None, dim: int = -1) -> Tensor:
        """The integral of y along an axis by trapezoids, over places x or steps dx."""
    def triangular_solve(
        self, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
    ) -> Any:
        """(X with A @ X = b, A)."""
    def tril(self, diagonal: int = 0) -> Tensor:
        """x with 0 above the diagonal of its last two axes."""
    def tril_(self, diagonal: int = 0) -> Tensor:
        """x with 0 above the diagonal of its last two axes."""
    def triu(self, diagonal: int = 0) -> Tensor:
        """x with 0 below the diagonal of its last two axes."""
    def triu_(self, diagonal: int = 0) -> Tensor:
        """x with 0 below the diagonal of its last two axes."""
    def true_divide(self, other: Tensor | Scalar, rounding_mode: str | None = None) -> Tensor:
        """x / y, in float32 when both are integers; rounded down with "floor", to 0 with "trunc"."""
    def true_divide_(self, other: Tensor | Scalar, rounding_mode: str | None = None) -> Tensor:
        """x / y, in float32 when both are integers; rounded down with "floor", to 0 with "trunc"."""
    def trunc(self) -> Tensor:
        """The nearest whole number towards 0; integers stay. No gradient flows."""
    def trunc_(self) -> Tensor:
        """The nearest whole number towards 0; integers stay. No gradient flows."""
    def unbind(self, dim: int = 0) -> tuple[Tensor, ...]:
        """The slices along an axis, without it."""
    def unflatten(self, dim: int, sizes: Sequence[int]) -> Tensor:
        """x with an axis as several ones; one -1 stands for what remains."""
    def unfold(self, dimension: int, size: int, step: int) -> Tensor:
        """The windows of an axis, `step` apart, as a new last axis of `size`."""
    def uniform_(
        self, from_: float = 0.0, to: float = 1.0, generator: Generator | None = None, **named: Any
    ) -> Tensor:
        """Numbers in [from, to), all equally likely, in place."""
    def unique(
        self,
        sorted: bool = True,
        return_inverse: bool = False,
        return_counts: bool = False,
        dim: int | None = None,
    ) -> Any:
        """The different elements in order, the place among them of each element, and how often
        each is there; with dim the different slices along it, in the order of their elements.
        Waits for their number."""
    def unique_consecutive(
        self, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
    ) -> Any:
        """The elements, or slices along dim, that differ from the one before, with places and
        numbers as in unique."""
    def unsafe_chunk(self, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
        """x in at most `chunks` pieces of one size along an axis; the last may be smaller."""
    def unsafe_split(self, size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
        """Pieces of x along an axis: of `size` each (the last may be less), or of the sizes given."""
    def unsafe_split_with_sizes(
        self, size: int | Sequence[int], dim: int = 0
    ) -> tuple[Tensor, ...]:
        """Pieces of x along an axis: of `size` each (the last may be less), or of the sizes given."""
    def unsqueeze(self, dim: int) -> Tensor:
        """x with a new axis of size 1 at `dim`."""
    def var(
        self,
        dim: Any = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        correction: Scalar | None = 1,
    ) -> Tensor:
        """The variance over axes: squares of deviations from the mean, divided by n - correction
        (NaN at 0); the correction of `unbiased` is 1, of its opposite 0."""
    def var_mean(
        self,
        dim: Any = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        correction: Scalar | None = 1,
    ) -> Any:
        """var, and mean."""
    def vdot(self, other: Tensor) -> Tensor:
        """dot."""
    def vsplit(self, indices_or_sections: Any) -> tuple[Tensor, ...]:
        """tensor_split along axis 0."""
    def where(self, condition: Tensor, other: Tensor | Scalar) -> Tensor:
        """x where the condition holds, else other."""
    def xlogy(self, other: Tensor | Scalar) -> Tensor:
        """x * log(y), but 0 where x is 0 and y is no NaN."""
    def xlogy_(self, other: Tensor | Scalar) -> Tensor:
        """x * log(y), but 0 where x is 0 and y is no NaN."""
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
    def __ifloordiv__(self, other: Tensor | Scalar) -> Tensor: ...
    def __mod__(self, other: Tensor | Scalar) -> Tensor: ...
    def __rmod__(self, other: Tensor | Scalar) -> Tensor: ...
    def __imod__(self, other: Tensor | Scalar) -> Tensor: ...
    def __pow__(self, other: Tensor | Scalar) -> Tensor: ...
    def __rpow__(self, other: Tensor | Scalar) -> Tensor: ...
    def __ipow__(self, other: Tensor | Scalar) -> Tensor: ...
    def __eq__(self, other: object) -> Tensor: ...  # type: ignore[override]
    def __ne__(self, other: object) -> Tensor: ...  # type: ignore[override]
    def __lt__(self, other: Tensor | Scalar) -> Tensor: ...
    def __le__(self, other: Tensor | Scalar) -> Tensor: ...
    def __gt__(self, other: Tensor | Scalar) -> Tensor: ...
    def __ge__(self, other: Tensor | Scalar) -> Tensor: ...
    def __and__(self, other: Tensor | Scalar) -> Tensor: ...
    def __rand__(self, other: Tensor | Scalar) -> Tensor: ...
    def __iand__(self, other: Tensor | Scalar) -> Tensor: ...
    def __or__(self, other: Tensor | Scalar) -> Tensor: ...
    def __ror__(self, other: Tensor | Scalar) -> Tensor: ...
    def __ior__(self, other: Tensor | Scalar) -> Tensor: ...
    def __xor__(self, other: Tensor | Scalar) -> Tensor: ...
    def __rxor__(self, other: Tensor | Scalar) -> Tensor: ...
    def __ixor__(self, other: Tensor | Scalar) -> Tensor: ...
    def __invert__(self) -> Tensor: ...
    def __lshift__(self, other: Tensor | Scalar) -> Tensor: ...
    def __rlshift__(self, other: Tensor | Scalar) -> Tensor: ...
    def __ilshift__(self, other: Tensor | Scalar) -> Tensor: ...
    def __rshift__(self, other: Tensor | Scalar) -> Tensor: ...
    def __rrshift__(self, other: Tensor | Scalar) -> Tensor: ...
    def __irshift__(self, other: Tensor | Scalar) -> Tensor: ...
    def __matmul__(self, other: Tensor | Scalar) -> Tensor: ...
    def __rmatmul__(self, other: Tensor | Scalar) -> Tensor: ...
    def __neg__(self) -> Tensor: ...
    def __abs__(self) -> Tensor: ...
