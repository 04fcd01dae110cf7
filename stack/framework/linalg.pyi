"""Generated from the table of operators by `python -m stack.framework.stubs`."""

from collections.abc import Callable, Sequence
from typing import Any, overload

from hal.core.dtypes import DType
from stack.framework.random import Generator
from stack.framework.tensor import Tensor

Scalar = float | int | bool
__all__ = [
    "cholesky",
    "cholesky_ex",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "ger",
    "inv",
    "inv_ex",
    "lstsq",
    "lu",
    "lu_factor",
    "matmul",
    "matrix_exp",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_ex",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensordot",
    "tensorinv",
    "tensorsolve",
    "trace",
    "vander",
    "vecdot",
    "vector_norm",
]

def cholesky(A: Tensor, upper: bool = False) -> Tensor:
    """The lower triangular L with L @ L.T = A of a positive definite A, whose lower triangle
    alone is read, or its transpose."""

def cholesky_ex(A: Tensor, upper: bool = False, check_errors: bool = False) -> Any:
    """cholesky, and 0 where it exists."""

def cond(A: Tensor, p: Any = None) -> Tensor:
    """The norm of order p of A times that of its inverse: by singular values for None, 2 and
    -2."""

def cross(input: Tensor, other: Tensor, dim: int = -1) -> Tensor:
    """The cross products of vectors of three along an axis."""

def det(A: Tensor) -> Tensor:
    """The determinant."""

def diagonal(A: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The diagonals of the last two axes."""

def eigh(A: Tensor, UPLO: str = "L") -> Any:
    """The eigenvalues, ascending, and eigenvectors, as columns of either sign, of symmetric
    matrices, of which the lower (or upper) triangle is read. For small ones: O(n log n)
    rounds of rotations."""

def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of symmetric matrices, ascending."""

def ger(input: Tensor, vec2: Tensor) -> Tensor:
    """Each element of a vector times each of another."""

def inv(A: Tensor) -> Tensor:
    """The inverse."""

def inv_ex(A: Tensor, check_errors: bool = False) -> Any:
    """inv, and 0 where it exists."""

def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, driver: str | None = None) -> Any:
    """The least X for which the squares of A @ X - B sum to the least. Singular values of at
    most rcond times the greatest count as 0. The rank is not given by "gels"; singular
    values by "gelsd" and "gelss" alone. The sums are those of columns where A has more rows
    and full rank, else NaN; "gelsy", which is taken where none is named, gives none."""

def lu(A: Tensor, pivot: bool = True) -> Any:
    """P @ L @ U = A: rows exchanged, lower with a unit diagonal, upper."""

def lu_factor(A: Tensor, pivot: bool = True) -> Any:
    """lu in one matrix, and the rows that were exchanged, counted from 1."""

def matmul(input: Tensor, other: Tensor) -> Tensor:
    """input @ other."""

def matrix_exp(input: Tensor) -> Tensor:
    """The exponential of square matrices: Taylor's series of x / 2 ** 8, squared eight times."""

def matrix_norm(
    A: Tensor,
    ord: Any = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    dtype: DType | None = None,
) -> Tensor:
    """The norm of matrices: "fro", the greatest (least) sum of sizes of columns for 1 (-1), of
    rows for inf (-inf); of singular values the sum for "nuc", the greatest (least) for 2
    (-2)."""

def matrix_power(A: Tensor, n: int) -> Tensor:
    """A times itself n times, of its inverse for a negative n."""

def matrix_rank(
    A: Tensor, tol: Any = None, hermitian: bool = False, atol: Any = None, rtol: Any = None
) -> Tensor:
    """int64: how many singular values are above max(atol, rtol times the greatest)."""

def matrix_transpose(input: Tensor) -> Tensor:
    """The last two axes exchanged."""

def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of matrices, from the left; the first and last may be vectors."""

def norm(
    A: Tensor,
    ord: Any = None,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: DType | None = None,
) -> Tensor:
    """vector_norm along one axis or of all elements, else matrix_norm."""

def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """Each element of a vector times each of another."""

def pinv(
    A: Tensor, rcond: Any = None, hermitian: bool = False, atol: Any = None, rtol: Any = None
) -> Tensor:
    """The pseudo-inverse (Moore and Penrose): singular values of at most max(atol, rtol times
    the greatest) count as 0."""

def qr(A: Tensor, mode: str = "reduced") -> Any:
    """Q @ R = A by Householder's reflections: orthogonal columns, upper triangular. Mode
    "complete" gives a square Q, "r" none."""

def slogdet(A: Tensor) -> Any:
    """The sign of the determinant, and the logarithm of its size."""

def solve(A: Tensor, B: Tensor, left: bool = True) -> Tensor:
    """X with A @ X = B, or X @ A = B; B may hold vectors."""

def solve_ex(A: Tensor, B: Tensor, left: bool = True, check_errors: bool = False) -> Any:
    """solve, and 0 where it exists."""

def solve_triangular(
    A: Tensor, B: Tensor, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """X with A @ X = B, or X @ A = B, of a triangular A."""

def svd(A: Tensor, full_matrices: bool = True, driver: str | None = None) -> Any:
    """U @ diag(S) @ Vh = A with orthonormal columns of U and rows of Vh, of either sign, and S
    descending; with full_matrices square ones. For small matrices: O(n log n) rounds of
    rotations. No gradient flows by the columns that only make them square."""

def svdvals(A: Tensor, driver: str | None = None) -> Tensor:
    """The singular values, descending."""

def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """The sums of products over axes of both: the last of a and first of b, or two lists."""

def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse of A as a matrix whose rows are its first `ind` axes."""

def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """X with tensordot(A, X) = B, with the axes `dims` of A moved behind the others first."""

def trace(input: Tensor) -> Tensor:
    """The sum of a matrix's diagonal."""

def vander(input: Tensor, N: int | None = None) -> Tensor:
    """The powers 0 to N - 1 of each element along a new last axis."""

def vecdot(input: Tensor, other: Tensor, dim: int = -1) -> Tensor:
    """The sums of products along an axis."""

def vector_norm(
    input: Tensor,
    ord: float = 2,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: DType | None = None,
) -> Tensor:
    """The norm of order ord over axes."""
