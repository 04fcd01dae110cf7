"""Linear algebra. Factorisations go over columns, whose steps are products of whole matrices, so
they are meant for small matrices. Gradients follow from the steps where these are written out. For
those of a loop all steps would be kept: there Cholesky's factor and solutions have rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr import reduce as r
from stack.framework.expr.contract import matmul
from stack.framework.expr.movement import diagonal, stack, tril, triu
from stack.framework.expr.operand import Dims, as_float, axis, broadcast_shape, meet, text
from stack.framework.expr.public import linalg, operator
from stack.framework.expr.steps import (
    WRITTEN_OUT,
    Place,
    column_of,
    columns_of,
    element_of,
    in_steps,
    row_of,
    rows_below,
    rows_of,
    ruled,
    unit_column,
)
from stack.framework.store import barrier


def _square(x: Node) -> int:
    if len(x.shape) < 2 or x.shape[-1] != x.shape[-2]:
        raise TensorError(f"needs square matrices, got {text(x)}")
    return x.shape[-1]


def _eye(n: int, like: Node) -> Node:
    rows = g.reshape(g.arange(n), (n, 1))
    one = g.cast(e.eq(rows, g.arange(n)), like.dtype)
    return g.broadcast(one, (*like.shape[:-2], n, n))


def _check_right(A: Node, b: Node) -> None:
    """Whether there is a row of b for each of A."""
    if len(b.shape) < 2 or b.shape[-2] != A.shape[-2]:
        raise TensorError(f"{text(A)} and {text(b)}: the right side has as many rows as the matrix")


# factorisations


@operator("cholesky", aten="cholesky")
def _cholesky_method(x: Node, upper: bool = False) -> Node:
    """The lower triangular L with L @ L.T = x, or its transpose."""
    return cholesky(x, upper=upper)


@linalg(aten="linalg_cholesky")
def cholesky(A: Node, *, upper: bool = False) -> Node:
    """The lower triangular L with L @ L.T = A of a positive definite A, or its transpose."""
    n = _square(A)
    if not n:
        return A
    if n > WRITTEN_OUT:
        found = ruled(_cholesky(barrier(A)), [A], _cholesky_slope)
    else:
        found = _cholesky(e.mul(e.add(A, g.transpose(A)), 0.5))  # the gradient is symmetric
    return g.transpose(found) if upper else found


def _cholesky(A: Node) -> Node:
    n = A.shape[-1]

    def step(j: Place, rest: Node) -> list[Node]:
        pivot = g.sqrt(element_of(rest, j, j))
        from_j = e.add(rows_below(n, j, A.dtype), unit_column(n, j, A.dtype))
        column = e.div(e.mul(column_of(rest, j), from_j), pivot)
        return [e.sub(rest, matmul(column, g.transpose(column))), column]

    return columns_of(in_steps(n, step, [], [A])[1])


def _cholesky_slope(low: Node, d: Node) -> list[Node]:
    """Murray, https://arxiv.org/abs/1602.07527, equation 10."""
    inside = tril(matmul(g.transpose(low), d))
    inside = e.sub(inside, e.mul(_eye(low.shape[-1], low), e.mul(inside, 0.5)))
    half = solve_triangular(g.transpose(low), inside, upper=True)
    whole = solve_triangular(low, half, upper=False, left=False)
    return [e.mul(e.add(whole, g.transpose(whole)), 0.5)]


@operator(aten="cholesky_solve")
def cholesky_solve(x: Node, L: Node, upper: bool = False) -> Node:
    """What L @ L.T (of an upper one L.T @ L) times gives x."""
    low = g.transpose(L) if upper else L
    return solve_triangular(g.transpose(low), solve_triangular(low, x, upper=False), upper=True)


@operator(aten="cholesky_inverse")
def cholesky_inverse(L: Node, upper: bool = False) -> Node:
    """The inverse of L @ L.T, of an upper one of L.T @ L."""
    return cholesky_solve(_eye(_square(L), L), L, upper)


@linalg(aten="linalg_solve_triangular")
def solve_triangular(
    A: Node, B: Node, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Node:
    """X with A @ X = B, or X @ A = B, of a triangular A."""
    if not left:
        turned = solve_triangular(
            g.transpose(A), g.transpose(B), upper=not upper, unitriangular=unitriangular
        )
        return g.transpose(turned)
    n = _square(A)
    _check_right(A, B)
    batch = broadcast_shape([A.shape[:-2], B.shape[:-2]])
    a, b = (g.broadcast(v, (*batch, *v.shape[-2:])) for v in (A, B))
    if not n:
        return b
    if n <= WRITTEN_OUT:
        return _solve_triangular(a, b, upper, unitriangular)

    def slope(x: Node, d: Node) -> list[Node]:
        by_b = solve_triangular(g.transpose(a), d, upper=not upper, unitriangular=unitriangular)
        by_a = g.neg(matmul(by_b, g.transpose(x)))
        return [triu(by_a, int(unitriangular)) if upper else tril(by_a, -int(unitriangular)), by_b]

    return ruled(_solve_triangular(barrier(a), barrier(b), upper, unitriangular), [a, b], slope)


def _solve_triangular(a: Node, b: Node, upper: bool, unitriangular: bool) -> Node:
    n = a.shape[-1]

    def step(k: Place, a: Node, rest: Node) -> list[Node]:
        i = e.sub(n - 1, k) if upper else k
        one = row_of(rest, i)
        one = one if unitriangular else e.div(one, element_of(a, i, i))
        left = e.lt(g.arange(n), i) if upper else e.lt(i, g.arange(n))
        factor = e.mul(column_of(a, i), g.reshape(g.cast(left, a.dtype), (n, 1)))
        return [e.sub(rest, matmul(factor, one)), one]

    rows = rows_of(in_steps(n, step, [a], [b])[1])
    return g.flip(rows, [len(rows.shape) - 2]) if upper else rows


@operator(function=True, method=True, aten="triangular_solve")
def triangular_solve(
    b: Node, A: Node, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:
    """(X with A @ X = b, A)."""
    a = g.transpose(A) if transpose else A
    up = upper != transpose
    return [solve_triangular(a, b, upper=up, unitriangular=unitriangular), A]


class LU(NamedTuple):
    """P @ L @ U is the matrix."""

    P: Any
    L: Any
    U: Any


class Factors(NamedTuple):
    """L without its diagonal and U in one matrix, and the rows exchanged, counted from 1."""

    LU: Any
    pivots: Any


def factored(A: Node, pivot: bool = True) -> tuple[Node, Node, Node]:
    """(L and U in one, the rows as they were, i64 the row exchanged in each step)."""
    rows, columns = A.shape[-2:]
    order = g.broadcast(g.arange(rows), A.shape[:-1])
    lead = A.shape[:-2]

    def step(j: Place, x: Node, order: Node) -> list[Node]:
        size = g.abs(g.reshape(column_of(g.detached(x), j), (*lead, rows)))
        here = e.where(e.lt(g.arange(rows), j), -1.0, size)
        number = g.arange(rows)
        best = g.broadcast(e.add(g.full((1,), 0, DType.I64), j), (*lead, 1))
        if pivot:
            best = g.argmax(here, -1)
            place = e.where(e.eq(number, best), j, e.where(e.eq(number, j), best, number))
            x = g.gather(x, place, len(lead), batch=True)
            order = g.gather(order, place, len(lead), batch=True)
        below = rows_below(rows, j, A.dtype)
        divisor = element_of(x, j, j)
        if pivot:  # where the greatest is 0, so is all below it: of a singular matrix
            divisor = e.where(e.eq(divisor, 0.0), 1.0, divisor)
        factor = e.mul(e.div(column_of(x, j), divisor), below)
        after = g.cast(e.lt(j, g.arange(columns)), A.dtype)
        x = e.sub(x, matmul(factor, e.mul(row_of(x, j), after)))
        at_j = g.cast(e.eq(g.arange(columns), j), A.dtype)
        old = e.mul(column_of(x, j), below)
        return [e.add(x, e.mul(e.sub(factor, old), at_j)), order, best]

    steps = min(rows, columns)
    if not steps:
        return A, order, g.full((*lead, 0), 0, DType.I64)
    x, order, best = in_steps(steps, step, [], [A, order])
    return x, order, g.reshape(columns_of(g.reshape(best, (*best.shape, 1))), (*lead, steps))


def triangles(packed: Node) -> tuple[Node, Node]:
    """L and U."""
    rows, columns = packed.shape[-2:]
    k = min(rows, columns)
    low = tril(g.slice_axis(packed, -1, 0, k), -1)
    unit = g.cast(e.eq(g.reshape(g.arange(rows), (rows, 1)), g.arange(k)), packed.dtype)
    return e.add(low, unit), triu(g.slice_axis(packed, -2, 0, k))


@linalg(aten="linalg_lu")
def lu(A: Node, *, pivot: bool = True) -> Any:
    """P @ L @ U = A: rows exchanged, lower with a unit diagonal, upper."""
    packed, order, _ = factored(A, pivot)
    rows = A.shape[-2]
    column = g.reshape(order, (*order.shape[:-1], 1, rows))
    exchanged = g.cast(e.eq(g.reshape(g.arange(rows), (rows, 1)), column), A.dtype)
    low, up = triangles(packed)
    return LU(exchanged, low, up)


def pivots_of(swaps: Node) -> Node:
    """The rows exchanged, i32, counted from 1."""
    return g.cast(e.add(swaps, 1), DType.I32)


@linalg(aten="linalg_lu_factor")
def lu_factor(A: Node, *, pivot: bool = True) -> Any:
    """lu in one matrix, and the rows that were exchanged, counted from 1."""
    packed, _, swaps = factored(A, pivot)
    return Factors(packed, pivots_of(swaps))


@operator(linalg=True, aten="linalg_det")
def det(A: Node) -> Node:
    """The determinant."""
    _square(A)
    packed, _, swaps = factored(A)
    return g.reshape(e.mul(_sign(A, swaps), r.prod(diagonal(packed, 0, -2, -1), -1)), A.shape[:-2])


def _sign(A: Node, swaps: Node) -> Node:
    """-1 to the number of exchanges."""
    moved = e.ne(swaps, g.arange(swaps.shape[-1]))
    return r.prod(e.where(moved, -1.0, g.full(swaps.shape, 1, A.dtype)), -1)


class SignLog(NamedTuple):
    sign: Any
    logabsdet: Any


@operator(linalg=True, aten="linalg_slogdet")
def slogdet(A: Node) -> Any:
    """The sign of the determinant, and the logarithm of its size."""
    if _square(A) > WRITTEN_OUT:
        sign, size = _sign_and_log(barrier(A))
        whole = ruled(
            size,
            [A],
            lambda _, d: [e.mul(g.reshape(d, (*d.shape, 1, 1)), g.transpose(inv(A)))],
        )
        return SignLog(barrier(sign), whole)
    sign, size = _sign_and_log(A)
    return SignLog(barrier(sign), size)


def _sign_and_log(A: Node) -> tuple[Node, Node]:
    packed, _, swaps = factored(A)
    on = diagonal(packed, 0, -2, -1)
    sign = e.mul(_sign(A, swaps), r.prod(e.sign(on), -1))
    return sign, r.sum(g.log(g.abs(on)), -1)


@operator(aten="logdet")
def logdet(x: Node) -> Node:
    """The logarithm of the determinant; NaN if it is negative."""
    sign, size = slogdet(x)
    return e.where(e.lt(sign, 0), math.nan, size)


@linalg(aten="linalg_solve")
def solve(A: Node, B: Node, *, left: bool = True) -> Node:
    """X with A @ X = B, or X @ A = B; B may hold vectors."""
    if not left:
        return g.transpose(solve(g.transpose(A), g.transpose(B)))
    n = _square(A)
    is_vector = len(B.shape) == 1 or (len(B.shape) + 1 == len(A.shape) and B.shape == A.shape[:-1])
    b = g.reshape(B, (*B.shape, 1)) if is_vector else B
    _check_right(A, b)
    batch = broadcast_shape([A.shape[:-2], b.shape[:-2]])
    a, b = (g.broadcast(v, (*batch, *v.shape[-2:])) for v in (A, b))
    if n > WRITTEN_OUT:

        def slope(x: Node, d: Node) -> list[Node]:
            by_b = solve(g.transpose(a), d)
            return [g.neg(matmul(by_b, g.transpose(x))), by_b]

        x = ruled(_solve(barrier(a), barrier(b)), [a, b], slope)
    else:
        x = _solve(a, b)
    return g.reshape(x, x.shape[:-1]) if is_vector else x


def _solve(a: Node, b: Node) -> Node:
    packed, order, _ = factored(a)
    low, up = triangles(packed)
    moved = g.gather(b, order, len(b.shape) - 2, batch=True) if b.type.size else b
    half = solve_triangular(low, moved, upper=False, unitriangular=True)
    return solve_triangular(up, half, upper=True)


@linalg(aten="linalg_inv")
def inv(A: Node) -> Node:
    """The inverse."""
    return solve(A, _eye(_square(A), A))


@operator(aten="inverse")
def inverse(x: Node) -> Node:
    """The inverse."""
    return inv(x)


class Checked(NamedTuple):
    """A result, and int32: 0, or 1 where a matrix has none, whose elements are NaN or infinite."""

    result: Any
    info: Any


def _checked(x: Node, A: Node, check_errors: bool) -> Checked:
    if check_errors:
        raise TensorError(
            "check_errors=True would wait for the values; leave it out, and read `info`"
        )
    rows = math.prod(x.shape[len(A.shape) - 2 :])
    flat = g.reshape(x, (*A.shape[:-2], rows))
    return Checked(x, g.cast(e.logical_not(r.all_(e.isfinite(flat), -1)), DType.I32))


@linalg(aten="linalg_inv_ex")
def inv_ex(A: Node, *, check_errors: bool = False) -> Any:
    """inv, and 0 where it exists."""
    return _checked(inv(A), A, check_errors)


@linalg(aten="linalg_cholesky_ex")
def cholesky_ex(A: Node, *, upper: bool = False, check_errors: bool = False) -> Any:
    """cholesky, and 0 where it exists."""
    return _checked(cholesky(A, upper=upper), A, check_errors)


@linalg(aten="linalg_solve_ex")
def solve_ex(A: Node, B: Node, *, left: bool = True, check_errors: bool = False) -> Any:
    """solve, and 0 where it exists."""
    return _checked(solve(A, B, left=left), A, check_errors)


@linalg(aten="linalg_tensorinv")
def tensorinv(A: Node, ind: int = 2) -> Node:
    """The inverse of A as a matrix whose rows are its first `ind` axes."""
    n = math.prod(A.shape[:ind])
    found = inv(g.reshape(A, (n, A.type.size // max(1, n))))
    return g.reshape(found, (*A.shape[ind:], *A.shape[:ind]))


@linalg(aten="linalg_tensorsolve")
def tensorsolve(A: Node, B: Node, dims: Sequence[int] | None = None) -> Node:
    """X with tensordot(A, X) = B, with the axes `dims` of A moved behind the others first."""
    if dims is not None:
        last = [axis(d, len(A.shape)) for d in dims]
        A = g.permute(A, [*(i for i in range(len(A.shape)) if i not in last), *last])
    n = B.type.size
    shape = A.shape[len(B.shape) :]
    return g.reshape(solve(g.reshape(A, (n, n)), g.reshape(B, (n,))), shape)


class QR(NamedTuple):
    Q: Any
    R: Any


@linalg(aten="linalg_qr")
def qr(A: Node, mode: str = "reduced") -> Any:
    """Q @ R = A by Householder's reflections: orthogonal columns, upper triangular. Mode "complete"
    gives a square Q, "r" none."""
    if mode not in ("reduced", "complete", "r"):
        raise TensorError(f'mode is "reduced", "complete" or "r", got {mode!r}')
    if len(A.shape) < 2:
        raise TensorError(f"needs matrices, got {text(A)}")
    rows, columns = A.shape[-2:]
    k = min(rows, columns)

    def step(j: Place, x: Node, q: Node) -> list[Node]:
        one = unit_column(rows, j, A.dtype)
        v = e.mul(column_of(x, j), e.add(rows_below(rows, j, A.dtype), one))
        size = g.sqrt(r.sum(e.square(v), -2, keepdim=True))
        pivot = element_of(x, j, j)
        v = e.add(v, e.mul(one, e.where(e.lt(pivot, 0), g.neg(size), size)))
        total = r.sum(e.square(v), -2, keepdim=True)
        scale = e.div(2.0, e.where(e.eq(total, 0), 1.0, total))  # of zeros it reflects nothing
        x = e.sub(x, e.mul(scale, matmul(v, matmul(g.transpose(v), x))))
        return [x, e.sub(q, e.mul(scale, matmul(matmul(q, v), g.transpose(v))))]

    steps = min(k, rows - 1)
    x, q = A, _eye(rows, A)
    if steps > 0:
        x, q = in_steps(steps, step, [], [x, q])
    if mode != "complete":
        x, q = g.slice_axis(x, -2, 0, k), g.slice_axis(q, -1, 0, k)
    return QR(g.full((0,), 0, A.dtype) if mode == "r" else q, triu(x))


@operator("qr", function=True, method=True, aten="qr")
def _qr_function(x: Node, some: bool = True) -> Any:
    """linalg.qr; without `some` with a square Q."""
    return qr(x, "reduced" if some else "complete")


# norms and products


@linalg(aten="linalg_vector_norm")
def vector_norm(
    x: Node, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Node:
    """The norm of order ord over axes."""
    return r.norm(x if dtype is None else g.cast(x, dtype), ord, dim, keepdim)


@linalg(aten="linalg_vecdot")
def vecdot(x: Node, y: Node, *, dim: int = -1) -> Node:
    """The sums of products along an axis."""
    a, b = meet(x, y)
    return r.sum(g.mul(a, b), dim, dtype=a.dtype)


@linalg("cross", aten="linalg_cross")
def cross_last(input: Node, other: Node, *, dim: int = -1) -> Node:
    """The cross products of vectors of three along an axis."""
    return cross(input, other, dim)


@operator(aten="cross")
def cross(x: Node, other: Node, dim: int | None = None) -> Node:
    """The cross products of vectors of three along an axis: the first one of three elements."""
    a, b = meet(x, other)
    at = a.shape.index(3) if dim is None else axis(dim, len(a.shape))
    if a.shape[at] != 3:
        raise TensorError(f"dim {dim} of {text(a)} has no three elements")

    def turned(v: Node, by: int) -> Node:
        pieces = [g.slice_axis(v, at, by, 3), g.slice_axis(v, at, 0, by)]
        return g.concat(pieces, at)

    return g.sub(g.mul(turned(a, 1), turned(b, 2)), g.mul(turned(a, 2), turned(b, 1)))


@linalg("diagonal", aten="linalg_diagonal")
def diagonal_last(A: Node, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Node:
    """The diagonals of the last two axes."""
    return diagonal(A, offset, dim1, dim2)


@linalg("matmul", aten="linalg_matmul")
def _matmul(input: Node, other: Node) -> Node:
    """input @ other."""
    return matmul(input, other)


@linalg("matrix_transpose", aten="mT")
def _matrix_transpose(input: Node) -> Node:
    """The last two axes exchanged."""
    return g.transpose(input)


@linalg(aten="linalg_multi_dot")
def multi_dot(tensors: Sequence[Node]) -> Node:
    """The product of matrices, from the left; the first and last may be vectors."""
    product = tensors[0]
    for x in tensors[1:]:
        product = matmul(product, x)
    return product


@linalg("matrix_power", aten="linalg_matrix_power")
def _matrix_power(A: Node, n: int) -> Node:
    """A times itself n times, of its inverse for a negative n."""
    return matrix_power(A, n)


@operator(aten="matrix_power")
def matrix_power(x: Node, n: int) -> Node:
    """x times itself n times, of its inverse for a negative n."""
    size = _square(x)
    if n < 0:
        return matrix_power(inv(x), -n)
    if n == 0:
        return _eye(size, x)
    half = matrix_power(x, n // 2) if n > 1 else x
    square = matmul(half, half) if n > 1 else x
    return matmul(square, x) if n > 1 and n % 2 else square


@linalg(aten="linalg_vander")
def vander(x: Node, *, N: int | None = None) -> Node:
    """The powers 0 to N - 1 of each element along a new last axis."""
    x = x if x.shape else g.reshape(x, (1,))
    n = x.shape[-1] if N is None else N
    powers = [g.full_like(x, 1)]
    for _ in range(n - 1):
        powers.append(e.mul(powers[-1], x))
    return stack(powers[:n], -1)


@operator("vander", method=False, aten="vander")
def _vander(x: Node, N: int | None = None, increasing: bool = False) -> Node:
    """The powers N - 1 to 0 of each element of a vector as rows, or 0 to N - 1."""
    rows = vander(x, N=N)
    return rows if increasing else g.flip(rows, [len(rows.shape) - 1])


@operator(linalg=True, aten="linalg_matrix_exp")
def matrix_exp(x: Node) -> Node:
    """The exponential of square matrices: Taylor's series of x / 2 ** 8, squared eight times."""
    n = _square(x)
    small = e.mul(as_float(x), 2.0**-8)
    total = term = _eye(n, small)
    for k in range(1, 9):
        term = e.mul(matmul(term, small), 1 / k)
        total = e.add(total, term)
    for _ in range(8):
        total = matmul(total, total)
    return total
