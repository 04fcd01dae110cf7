"""Eigenvalues of symmetric matrices and singular values, by Jacobi's rotations.

All pairs of a round are disjoint, so that a round is a few elementwise kernels whatever the size,
and the pairs of the next round come from a tournament's order (Brent and Luk, 1985), in which after
a sweep of all pairs each column is back at its place. A number of sweeps that follows from size and
element type is made: the rounds of a plan do not depend on values. It is meant for small matrices.
"""

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
from stack.framework.expr.linear import inv, qr
from stack.framework.expr.movement import diag_embed, diagonal
from stack.framework.expr.operand import Dims, as_float, axis, meet, text
from stack.framework.expr.public import linalg, operator
from stack.framework.expr.steps import Place, in_steps, ruled
from stack.framework.store import barrier


class Eigh(NamedTuple):
    """Eigenvalues in ascending order, and eigenvectors as columns."""

    eigenvalues: Any
    eigenvectors: Any


class SVD(NamedTuple):
    """U @ diag(S) @ Vh is the matrix; S is in descending order."""

    U: Any
    S: Any
    Vh: Any


class Thin(NamedTuple):
    """U @ diag(S) @ V.T is the matrix."""

    U: Any
    S: Any
    V: Any


def _sweeps(n: int, dtype: DType) -> int:
    """Convergence is quadratic after about log2(n) sweeps: each then doubles the digits."""
    return (4 if dtype is DType.F32 else 6) + (n - 1).bit_length()


def _next(n: int) -> Node:
    """Which column comes to each place for the next round: the first one stays, the others go
    around the pairs (0, 1), (2, 3), ..."""
    place = g.arange(n)
    if n == 2:
        return place
    even = e.where(e.eq(place, 2), 1, e.sub(place, 2))
    odd = e.where(e.eq(place, n - 1), n - 2, e.add(place, 2))
    return e.where(e.eq(place, 0), 0, e.where(e.eq(e.remainder(place, 2), 0), even, odd))


def _partner(x: Node, a: int) -> Node:
    """Each place of an axis gets what its pair's other one has."""
    shape = x.shape
    pairs = g.reshape(x, (*shape[:a], shape[a] // 2, 2, *shape[a + 1 :]))
    return g.reshape(g.flip(pairs, (a + 1,)), shape)


def _turn(own: Node, other: Node, product: Node) -> tuple[Node, Node]:
    """Cosines and signed sines of the rotations that make `product` of each pair 0, given it and
    the squares (or diagonal elements) of both, at every place [..., n]."""
    n = own.shape[-1]
    is_even = e.eq(e.remainder(g.arange(n), 2), 0)
    apart = e.where(is_even, e.sub(other, own), e.sub(own, other))
    ratio = e.div(apart, e.mul(product, 2.0))
    tangent = e.div(e.where(e.lt(ratio, 0), -1.0, g.full_like(ratio, 1)),
                    e.add(g.abs(ratio), g.sqrt(e.add(e.mul(ratio, ratio), 1.0))))  # fmt: skip
    tangent = e.where(e.eq(product, 0), 0.0, tangent)
    cosine = g.rsqrt(e.add(e.mul(tangent, tangent), 1.0))
    sine = e.mul(tangent, cosine)
    return g.contiguous(cosine), g.contiguous(e.where(is_even, g.neg(sine), sine))


def _line(x: Node, a: int) -> Node:
    """Numbers of columns (axis -1) or rows (axis -2) beside a matrix."""
    return g.reshape(x, (*x.shape[:-1], 1, x.shape[-1]) if a == -1 else (*x.shape, 1))


def _rotated(x: Node, cosine: Node, sine: Node, a: int) -> Node:
    at = len(x.shape) + a
    return e.add(e.mul(x, _line(cosine, a)), e.mul(_partner(x, at), _line(sine, a)))


def _even(x: Node, a: int) -> Node:
    """x with a column (or row) of zeros where their number is odd."""
    at = len(x.shape) + a
    rest = tuple(1 if i == at else n for i, n in enumerate(x.shape))
    return g.concat([x, g.full(rest, 0, x.dtype)], at) if x.shape[at] % 2 else x


def _moved(x: Node, order: Node, a: int) -> Node:
    return g.contiguous(g.gather(x, order, len(x.shape) + a))


def _columns(x: Node, order: Node) -> Node:
    """The columns of matrices, each in an order of its own [..., n]."""
    rank = len(x.shape)
    turned = g.gather(g.transpose(x), order, rank - 2, batch=True)
    return g.transpose(turned)


def _identity(x: Node, n: int) -> Node:
    rows = g.reshape(g.arange(n), (n, 1))
    one = g.cast(e.eq(rows, g.arange(n)), x.dtype)
    return g.broadcast(one, (*x.shape[:-2], n, n))


def _eigen(a: Node) -> Node:
    """[..., n + 1, n]: eigenvalues, and below them the eigenvectors."""
    n = a.shape[-1]
    x = _even(_even(a, -1), -2)
    m = x.shape[-1]
    v = _identity(x, m)

    def step(_: Place, x: Node, v: Node) -> list[Node]:
        order, main = _next(m), diagonal(x, 0, -2, -1)
        last = len(main.shape) - 1
        beside = diagonal(_partner(x, len(x.shape) - 1), 0, -2, -1)
        c, s = _turn(main, _partner(main, last), beside)
        x = _moved(_moved(_rotated(_rotated(x, c, s, -1), c, s, -2), order, -1), order, -2)
        return [x, _moved(_rotated(v, c, s, -1), order, -1)]

    if n > 1:
        x, v = in_steps(_sweeps(m, a.dtype) * (m - 1), step, [], [x, v])
    values = g.slice_axis(diagonal(x, 0, -2, -1), -1, 0, n)
    vectors = g.slice_axis(g.slice_axis(v, -1, 0, n), -2, 0, n)
    places = g.argsort(values, len(values.shape) - 1, False)
    found = g.gather(values, places, len(values.shape) - 1, batch=True)
    return g.concat([_line(found, -1), _columns(vectors, places)], len(a.shape) - 2)


def _split(x: Node, sizes: list[int]) -> list[Node]:
    """Rows of these numbers."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [g.slice_axis(x, -2, at, at + n) for at, n in zip(starts, sizes, strict=True)]


def _gap(x: Node) -> Node:
    """x[j] - x[i] of rows [..., 1, n], 1 on the diagonal."""
    n = x.shape[-1]
    apart = e.sub(x, g.transpose(x))
    return e.where(e.eq(g.reshape(g.arange(n), (n, 1)), g.arange(n)), 1.0, apart)


def _by_gap(x: Node, gap: Node) -> Node:
    """x / gap without its diagonal; nothing flows where x is 0, also between equal values."""
    n = x.shape[-1]
    on = e.eq(g.reshape(g.arange(n), (n, 1)), g.arange(n))
    return e.where(g.or_(*meet(on, e.eq(x, 0))), 0.0, e.div(x, gap))


def _eigen_slope(found: Node, d: Node) -> list[Node]:
    n = found.shape[-1]
    (w, v), (dw, dv) = (_split(x, [1, n]) for x in (found, d))
    inside = _by_gap(matmul(g.transpose(v), dv), _gap(w))
    own = diag_embed(g.reshape(dw, (*dw.shape[:-2], n)))
    return [_evened(matmul(matmul(v, e.add(inside, own)), g.transpose(v)))]


def _evened(x: Node) -> Node:
    """The symmetric part, as PyTorch gives the gradient by a symmetric matrix."""
    return e.mul(e.add(x, g.transpose(x)), 0.5)


def _matrices(x: Node, square: bool) -> Node:
    if len(x.shape) < 2 or (square and x.shape[-1] != x.shape[-2]):
        raise TensorError(f"needs {'square ' * square}matrices, got {text(x)}")
    return as_float(x)


def _symmetric(a: Node, UPLO: str) -> Node:
    """The matrix of which this is the lower (or upper) triangle; its gradient is symmetric."""
    n = a.shape[-1]
    rows, columns = g.reshape(g.arange(n), (n, 1)), g.arange(n)
    kept = e.le(columns, rows) if UPLO == "L" else e.le(rows, columns)
    fixed = barrier(a)
    return ruled(e.where(kept, fixed, g.transpose(fixed)), [a], lambda whole, d: [_evened(d)])


@linalg(aten="linalg_eigh")
def eigh(A: Node, UPLO: str = "L") -> Any:
    """The eigenvalues, ascending, and eigenvectors, as columns of either sign, of symmetric
    matrices, of which the lower (or upper) triangle is read. For small ones: O(n log n) rounds of
    rotations."""
    a = _matrices(A, square=True)
    if UPLO not in ("L", "U"):
        raise TensorError(f'UPLO is "L" or "U", got {UPLO!r}')
    n = a.shape[-1]
    if not a.type.size:
        return Eigh(g.full(a.shape[:-1], 0, a.dtype), a)
    found = ruled(_eigen(barrier(_symmetric(a, UPLO))), [a], _eigen_slope)
    values, vectors = _split(found, [1, n])
    return Eigh(g.reshape(values, (*a.shape[:-2], n)), vectors)


@linalg(aten="linalg_eigvalsh")
def eigvalsh(A: Node, UPLO: str = "L") -> Node:
    """The eigenvalues of symmetric matrices, ascending."""
    values: Node = eigh(A, UPLO).eigenvalues
    return values


def _singular(a: Node) -> Node:
    """[..., m + 1 + n, n] of [..., m, n] with m >= n: U, below it S, below that V: columns of A are
    rotated until they are orthogonal (Hestenes, 1958)."""
    n = a.shape[-1]
    x = _even(a, -1)
    width = x.shape[-1]
    v = _identity(x, width)

    def step(_: Place, x: Node, v: Node) -> list[Node]:
        order, last = _next(width), len(x.shape) - 1
        squares = r.sum(e.square(x), -2)
        product = r.sum(e.mul(x, _partner(x, last)), -2)
        c, s = _turn(squares, _partner(squares, last - 1), product)
        return [_moved(_rotated(y, c, s, -1), order, -1) for y in (x, v)]

    if n > 1:
        x, v = in_steps(_sweeps(width, a.dtype) * (width - 1), step, [], [x, v])
    x = g.slice_axis(x, -1, 0, n)
    v = g.slice_axis(g.slice_axis(v, -1, 0, n), -2, 0, n)
    sizes = g.sqrt(r.sum(e.square(x), -2))
    places = g.argsort(sizes, len(sizes.shape) - 1, True)
    sizes = g.gather(sizes, places, len(sizes.shape) - 1, batch=True)
    x, v = _columns(x, places), _columns(v, places)
    q, upper = qr(barrier(x))  # orthonormal also where singular values are 0
    sign = e.where(e.lt(diagonal(upper, 0, -2, -1), 0), -1.0, g.full_like(sizes, 1))
    return g.concat([e.mul(q, _line(sign, -1)), _line(sizes, -1), v], len(a.shape) - 2)


def _singular_slope(m: int, found: Node, d: Node) -> Node:
    n = found.shape[-1]
    (u, s, v), (du, ds, dv) = (_split(x, [m, 1, n]) for x in (found, d))
    gap = _gap(e.square(s))
    skew_u = matmul(g.transpose(u), du)
    skew_v = matmul(g.transpose(v), dv)

    def skew(x: Node) -> Node:
        return _by_gap(e.sub(x, g.transpose(x)), gap)

    inside = e.add(e.mul(skew(skew_u), s), e.mul(g.transpose(s), skew(skew_v)))
    inside = e.add(inside, diag_embed(g.reshape(ds, (*ds.shape[:-2], n))))
    total = matmul(u, inside)
    if m > n:
        scaled = e.div(du, s)
        total = e.add(total, e.sub(scaled, matmul(u, matmul(g.transpose(u), scaled))))
    return matmul(total, g.transpose(v))


def _thin(A: Node) -> tuple[Node, Node, Node]:
    """U, S and V of min(m, n) columns."""
    a = _matrices(A, square=False)
    if a.shape[-2] < a.shape[-1]:
        v, s, u = _thin(g.transpose(a))
        return u, s, v
    m, n = a.shape[-2:]
    if not a.type.size:
        lead = a.shape[:-2]
        return a, g.full((*lead, n), 0, a.dtype), g.full((*lead, n, n), 0, a.dtype)
    found = ruled(_singular(barrier(a)), [a], lambda x, d: [_singular_slope(m, x, d)])
    u, s, v = _split(found, [m, 1, n])
    return u, g.reshape(s, (*a.shape[:-2], n)), v


def _completed(x: Node) -> Node:
    """Orthonormal columns and the others that make a square matrix of them."""
    m, n = x.shape[-2:]
    if m == n:
        return x
    whole = qr(barrier(x), "complete").Q
    return g.concat([x, g.slice_axis(whole, -1, n, m)], len(x.shape) - 1)


@linalg("svd", aten="linalg_svd")
def svd(A: Node, full_matrices: bool = True, *, driver: str | None = None) -> Any:
    """U @ diag(S) @ Vh = A with orthonormal columns of U and rows of Vh, of either sign, and S
    descending; with full_matrices square ones. For small matrices: O(n log n) rounds of
    rotations. No gradient flows by the columns that only make them square."""
    u, s, v = _thin(A)
    if full_matrices:
        u, v = _completed(u), _completed(v)
    return SVD(u, s, g.transpose(v))


@operator("svd", aten="svd")
def _old_svd(x: Node, some: bool = True, compute_uv: bool = True) -> Any:
    """linalg.svd with V in the place of Vh; with some not completed to square matrices."""
    u, s, v = _thin(x)
    if not compute_uv:
        u, v = e.mul(u, 0.0), e.mul(v, 0.0)
    if not some:
        u, v = _completed(u), _completed(v)
    return Thin(u, s, v)


@linalg(aten="linalg_svdvals")
def svdvals(A: Node, *, driver: str | None = None) -> Node:
    """The singular values, descending."""
    return _thin(A)[1]


def _cut(s: Node, shape: tuple[int, ...], atol: Any, rtol: Any) -> Node:
    """The size [..., 1] from which singular values count as 0."""
    top = g.slice_axis(s, -1, 0, 1)
    if rtol is None:
        eps = 2.0**-s.dtype.mantissa * max(shape[-2:])
        rtol = 0.0 if atol is not None and not isinstance(atol, Node) and atol > 0 else eps
    by = e.mul(top, rtol if not isinstance(rtol, Node) else g.reshape(rtol, (*rtol.shape, 1)))
    if atol is None:
        return by
    least = g.reshape(atol, (*atol.shape, 1)) if isinstance(atol, Node) else atol
    return e.maximum(by, least)


@linalg(aten="linalg_pinv")
def pinv(
    A: Node, rcond: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None
) -> Node:
    """The pseudo-inverse (Moore and Penrose): singular values of at most max(atol, rtol times the
    greatest) count as 0."""
    u, s, v = _thin(_symmetric(A, "L") if hermitian else A)
    if not u.type.size or not v.type.size:
        return g.full((*A.shape[:-2], A.shape[-1], A.shape[-2]), 0, u.dtype)
    kept = e.lt(_cut(s, A.shape, atol, rcond if rtol is None else rtol), s)
    inverse = e.where(kept, g.recip(e.where(kept, s, 1.0)), 0.0)
    return matmul(e.mul(v, _line(inverse, -1)), g.transpose(u))


@operator("pinverse", aten="pinverse")
def pinverse(x: Node, rcond: float = 1e-15) -> Node:
    """linalg.pinv."""
    return pinv(x, rcond)


@linalg(aten="linalg_matrix_rank")
def matrix_rank(
    A: Node, tol: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None
) -> Node:
    """int64: how many singular values are above max(atol, rtol times the greatest)."""
    s = _thin(_symmetric(A, "L") if hermitian else A)[1]
    if not s.type.size:
        return g.full(A.shape[:-2], 0, DType.I64)
    if tol is not None:
        limit = g.reshape(tol, (*tol.shape, 1)) if isinstance(tol, Node) else tol
    else:
        limit = _cut(s, A.shape, atol, rtol)
    return r.sum(g.cast(e.lt(limit, s), DType.I64), -1)


class Squares(NamedTuple):
    solution: Any
    residuals: Any
    rank: Any
    singular_values: Any


@linalg(aten="linalg_lstsq")
def lstsq(A: Node, B: Node, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """The least X for which the squares of A @ X - B sum to the least. Singular values of at most
    rcond times the greatest count as 0. The rank is not given by "gels"; singular values by "gelsd"
    and "gelss" alone. The sums are those of columns where A has more rows and full rank, else NaN;
    "gelsy", which is taken where none is named, gives none."""
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise TensorError(f"driver {driver!r}: gels, gelsy, gelsd or gelss")
    rows, columns = A.shape[-2:]
    is_vector = len(B.shape) == 1 or (len(B.shape) + 1 == len(A.shape) and B.shape == A.shape[:-1])
    b = g.reshape(B, (*B.shape, 1)) if is_vector else B
    x = matmul(pinv(A, rcond=rcond), b)
    none = g.full((0,), 0, A.dtype)
    rank = g.full((0,), 0, DType.I64) if driver == "gels" else matrix_rank(A, rtol=rcond)
    rest = none
    if rows > columns and driver in ("gels", "gelsd", "gelss"):
        rest = r.sum(e.square(e.sub(matmul(A, x), b)), -2)
        if driver != "gels":
            full = g.reshape(e.eq(rank, columns), (*rank.shape, 1))
            rest = e.where(full, rest, math.nan)
    values = svdvals(A) if driver in ("gelsd", "gelss") else none
    return Squares(g.reshape(x, x.shape[:-1]) if is_vector else x, rest, rank, values)


@linalg(aten="linalg_matrix_norm")
def matrix_norm(
    A: Node,
    ord: Any = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Node:
    """The norm of matrices: "fro", the greatest (least) sum of sizes of columns for 1 (-1), of rows
    for inf (-inf); of singular values the sum for "nuc", the greatest (least) for 2 (-2)."""
    x = A if dtype is None else g.cast(A, dtype)
    rows, columns = (axis(d, len(x.shape)) for d in dim)
    if ord == "fro":
        return r.norm(x, 2, (rows, columns), keepdim)
    if ord in ("nuc", 2, -2):
        rank = len(x.shape)
        order = [*(i for i in range(rank) if i not in (rows, columns)), rows, columns]
        s = svdvals(g.permute(x, order))
        over_values = r.sum if ord == "nuc" else r.amax if ord == 2 else r.amin
        found = over_values(s, -1)
        kept = [1 if i in (rows, columns) else n for i, n in enumerate(x.shape)]
        return g.reshape(found, kept) if keepdim else found
    if ord not in (1, -1, math.inf, -math.inf):
        raise TensorError(f'ord is "fro", "nuc", 1, 2, inf or the negative of one, got {ord!r}')
    along, over = (rows, columns) if abs(ord) == 1 else (columns, rows)
    sums = r.sum(g.abs(x), along, keepdim=True)
    found = (r.amax if ord > 0 else r.amin)(sums, over, keepdim=True)
    gone = sorted((rows, columns))
    shape = [n for i, n in enumerate(x.shape) if i not in gone]
    return found if keepdim else g.reshape(found, shape)


@operator("norm", aten="norm", onnx="ReduceL2")
def _old_norm(
    x: Node,
    p: float | str | None = "fro",
    dim: Dims = None,
    keepdim: bool = False,
    dtype: DType | None = None,
) -> Node:
    """The p-norm over axes: (sum |x|**p) ** (1/p); inf and -inf give extremes, 0 counts what is not
    0, "fro" is 2; "nuc" is that of matrices. The derivative at 0 is 0."""
    v = x if dtype is None else g.cast(x, dtype)
    if p == "nuc":
        both = (-2, -1) if dim is None or isinstance(dim, int) else dim
        return matrix_norm(v, p, both, keepdim)
    return r.norm(v, p, dim, keepdim)


@linalg("norm", aten="linalg_norm")
def _any_norm(
    A: Node,
    ord: Any = None,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Node:
    """vector_norm along one axis or of all elements, else matrix_norm."""
    x = A if dtype is None else g.cast(A, dtype)
    if ord is None:
        return r.norm(x, 2, dim, keepdim)
    is_matrix = len(x.shape) == 2 if dim is None else not isinstance(dim, int) and len(dim) == 2
    if is_matrix:
        both = (-2, -1) if dim is None or isinstance(dim, int) else dim
        return matrix_norm(x, ord, both, keepdim)
    return r.norm(x, ord, dim, keepdim)


@linalg(aten="linalg_cond")
def cond(A: Node, p: Any = None) -> Node:
    """The norm of order p of A times that of its inverse: by singular values for None, 2 and -2."""
    if p in (None, 2, -2):
        s = svdvals(A)
        n = s.shape[-1]
        first, last = (g.reshape(g.slice_axis(s, -1, i, i + 1), s.shape[:-1]) for i in (0, n - 1))
        return e.div(last, first) if p == -2 else e.div(first, last)
    return e.mul(matrix_norm(A, p), matrix_norm(inv(A), p))
