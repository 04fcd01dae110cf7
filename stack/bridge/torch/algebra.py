"""Rows of linear algebra: what torch's functions of matrices and their gradients call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.bridge.torch.kernels import call
from stack.bridge.torch.rows import ROWS, pulled, row
from stack.framework.expr import contract, linear, movement, spectral, steps
from stack.framework.expr import elementwise as e
from stack.framework.expr import reduce as r
from stack.framework.expr.operand import broadcast_shape


def _info(A: Node) -> Node:
    """0: what does not exist is NaN."""
    return g.full(A.shape[:-2], 0, DType.I32)


@row("linalg_lu_factor_ex")
def _lu_factor(A: Node, *, pivot: bool = True, check_errors: bool = False) -> list[Node]:
    packed, _, swaps = linear.factored(A, pivot)
    return [packed, linear.pivots_of(swaps), _first_zero(packed)]


def _first_zero(packed: Node) -> Node:
    """i32: which element of U's diagonal is the first that is 0, counted from 1; 0 without any."""
    if not packed.type.size:
        return _info(packed)
    is_zero = e.eq(movement.diagonal(packed, 0, -2, -1), 0.0)
    places = g.add(g.arange(is_zero.shape[-1]), g.full((is_zero.shape[-1],), 1, DType.I64))
    last = is_zero.shape[-1] + 1
    first = r.amin(e.where(is_zero, places, last), -1)
    return g.cast(e.where(e.eq(first, last), 0, first), DType.I32)


@row("linalg_lu")
def _lu(A: Node, *, pivot: bool = True) -> list[Node]:
    return list(linear.lu(A, pivot=pivot))


def _kept(A: Node, turned: bool) -> list[Node]:
    """The factors that torch keeps for its formulas of gradients: for determinants those of the
    transpose where A is row-major."""
    if not A.type.size:
        return [A, g.full(A.shape[:-1], 0, DType.I32)]
    kept = g.transpose(A) if turned else A
    packed, _, swaps = linear.factored(kept)
    return [packed, linear.pivots_of(swaps)]


@row("_linalg_det")
def _det(A: Node, turned: bool = False) -> list[Node]:
    value = linear.det(A) if A.type.size else g.full(A.shape[:-2], 1, A.dtype)
    return [value, *_kept(A, turned)]


@row("_linalg_slogdet")
def _slogdet(A: Node, turned: bool = False) -> list[Node]:
    if not A.type.size:
        sign = g.full(A.shape[:-2], 1, A.dtype)
        return [sign, g.full_like(sign, 0), *_kept(A, turned)]
    return [*linear.slogdet(A), *_kept(A, turned)]


def _order(pivots: Node, rows: int) -> Node:
    """Where each row of L @ U was: the exchanges, one after the other."""
    start = g.broadcast(g.arange(rows), (*pivots.shape[:-1], rows))

    def step(j: steps.Place, pivots: Node, order: Node) -> list[Node]:
        number = g.arange(rows)
        best = g.cast(e.sub(steps.column_of(pivots, j), 1), DType.I64)
        place = e.where(e.eq(number, best), j, e.where(e.eq(number, j), best, number))
        return [g.gather(order, place, len(order.shape) - 1, batch=True)]

    count = pivots.shape[-1]
    return steps.in_steps(count, step, [pivots], [start])[0] if count else start


@row("lu_unpack")
def _lu_unpack(
    packed: Node, pivots: Node, unpack_data: bool = True, unpack_pivots: bool = True
) -> list[Node]:
    rows, none = packed.shape[-2], g.full((0,), 0, packed.dtype)
    exchanged, low, up = none, none, none
    if unpack_pivots:
        order = _order(pivots, rows)
        column = g.reshape(order, (*order.shape[:-1], 1, rows))
        exchanged = g.cast(e.eq(g.reshape(g.arange(rows), (rows, 1)), column), packed.dtype)
    if unpack_data:
        low, up = linear.triangles(packed)
    return [exchanged, low, up]


def _back(packed: Node, pivots: Node, B: Node) -> Node:
    """X with P @ L @ U @ X = B."""
    low, up = linear.triangles(packed)
    rows = packed.shape[-1]
    lead = broadcast_shape([packed.shape[:-2], B.shape[:-2]])
    order = g.broadcast(_order(pivots, rows), (*lead, rows))
    wide = g.broadcast(B, (*lead, *B.shape[-2:]))
    moved = g.gather(wide, order, len(lead), batch=True)
    half = linear.solve_triangular(low, moved, upper=False, unitriangular=True)
    return linear.solve_triangular(up, half, upper=True)


def _back_transposed(packed: Node, pivots: Node, B: Node) -> Node:
    """X with (P @ L @ U).T @ X = B."""
    low, up = linear.triangles(packed)
    rows = packed.shape[-1]
    lead = broadcast_shape([packed.shape[:-2], B.shape[:-2]])
    wide = g.broadcast(B, (*lead, *B.shape[-2:]))
    half = linear.solve_triangular(g.transpose(up), wide, upper=False)
    x = linear.solve_triangular(g.transpose(low), half, upper=True, unitriangular=True)
    order = g.broadcast(_order(pivots, rows), (*lead, rows))
    return g.gather(x, g.argsort(order, len(lead)), len(lead), batch=True)


@row("linalg_lu_solve")
def _lu_solve(LU: Node, pivots: Node, B: Node, *, left: bool = True, adjoint: bool = False) -> Node:
    if not left:  # X @ A = B is A.T @ X.T = B.T
        turned = _lu_solve(LU, pivots, g.transpose(B), adjoint=not adjoint)
        return g.transpose(turned)
    return (_back_transposed if adjoint else _back)(LU, pivots, B)


@row("_linalg_solve_ex")
def _solve(A: Node, B: Node, *, left: bool = True, check_errors: bool = False) -> list[Node]:
    return [linear.solve(A, B, left=left), *_kept(A, turned=False), _info(A)]


@row("_linalg_svd")
def _svd(
    A: Node, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> list[Node]:
    if not compute_uv:
        none = g.full((0,), 0, A.dtype)
        return [none, spectral.svdvals(A), none]
    return list(spectral.svd(A, full_matrices))


@row("_linalg_eigh")
def _eigh(A: Node, UPLO: str = "L", compute_v: bool = True) -> list[Node]:
    values, vectors = spectral.eigh(A, UPLO)
    return [values, vectors if compute_v else g.full((0,), 0, A.dtype)]


@row("eye.m_out")
def _eye(n: int, m: int, *, out: Node) -> Node:
    hit = e.eq(g.reshape(g.arange(n), (n, 1)), g.arange(m))
    return g.cast(hit, out.dtype)


# Reflections: I - tau v v.T, of which v is in a column of A below its place, where it has a 1


def _reflected(A: Node, tau: Node, j: steps.Place, x: Node) -> Node:
    """The j-th reflection of x."""
    rows, dtype = A.shape[-2], A.dtype
    v = e.mul(steps.column_of(A, j), steps.rows_below(rows, j, dtype))
    v = e.add(v, steps.unit_column(rows, j, dtype))
    along = contract.matmul(g.transpose(v), x)
    number = g.reshape(steps.column_of(tau, j), (*tau.shape[:-1], 1, 1))
    return e.sub(x, e.mul(number, contract.matmul(v, along)))


@row("geqrf")
def _geqrf(A: Node) -> list[Node]:
    """R on and above the diagonal, the reflections below it, and their factors (LAPACK's)."""
    rows, columns = A.shape[-2:]

    def step(j: steps.Place, A: Node) -> list[Node]:
        place = g.arange(columns)
        below = e.mul(steps.column_of(A, j), steps.rows_below(rows, j, A.dtype))
        pivot = steps.element_of(A, j, j)
        tail = r.sum(e.square(below), -2, keepdim=True)
        size = g.sqrt(e.add(e.square(pivot), tail))
        is_done = e.eq(tail, 0)
        turned = e.where(is_done, pivot, e.where(e.lt(pivot, 0), size, g.neg(size)))
        tau = e.where(is_done, 0.0, e.div(e.sub(turned, pivot), e.where(is_done, 1.0, turned)))
        v = e.div(below, e.where(is_done, 1.0, e.sub(pivot, turned)))
        one = steps.unit_column(rows, j, A.dtype)
        whole = e.add(v, one)
        rest = e.sub(A, e.mul(e.mul(tau, whole), contract.matmul(g.transpose(whole), A)))
        others = e.sub(1.0, e.add(steps.rows_below(rows, j, A.dtype), one))
        own = e.add(e.add(e.mul(steps.column_of(A, j), others), e.mul(one, turned)), v)
        return [e.where(e.gt(place, j), rest, e.where(e.eq(place, j), own, A)), tau]

    count = min(rows, columns)
    if not count:
        return [A, g.full((*A.shape[:-2], 0), 0, A.dtype)]
    found, taus = steps.in_steps(count, step, [], [A])
    return [found, g.reshape(steps.columns_of(taus), (*A.shape[:-2], count))]


@row("linalg_householder_product")
def _householder_product(A: Node, tau: Node) -> Node:
    """The first columns of the product of all reflections."""
    rows, columns = A.shape[-2:]
    hit = e.eq(g.reshape(g.arange(rows), (rows, 1)), g.arange(columns))
    x = g.broadcast(g.cast(hit, A.dtype), A.shape)
    return _all_reflected(A, tau, x, last_first=True)


def _all_reflected(A: Node, tau: Node, x: Node, last_first: bool) -> Node:
    """x after each reflection."""
    count = tau.shape[-1]

    def step(j: steps.Place, A: Node, tau: Node, x: Node) -> list[Node]:
        return [_reflected(A, tau, e.sub(count - 1, j) if last_first else j, x)]

    return steps.in_steps(count, step, [A, tau], [x])[0] if count else x


@row("ormqr")
def _ormqr(A: Node, tau: Node, x: Node, left: bool = True, transpose: bool = False) -> Node:
    """The product of all reflections, or its transpose, times x, or x times it."""
    if not left:
        return g.transpose(_ormqr(A, tau, g.transpose(x), True, not transpose))
    return _all_reflected(A, tau, x, last_first=not transpose)


@row("cholesky_solve")
def _cholesky_solve(x: Node, factor: Node, upper: bool = False) -> Node:
    return linear.cholesky_solve(x, factor, upper)


def _factored(name: str) -> Callable[..., Any]:
    """The kernel of an operator that keeps factors."""

    def kernel(A: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        return tuple(call(ROWS[name], (A, *args), {**kwargs, "turned": A.is_contiguous()}))

    return kernel


KERNELS: dict[str, Callable[..., Any]] = {
    name: _factored(name) for name in ("_linalg_det", "_linalg_slogdet")
}
"""By operator."""


# Distances


@row("_cdist_forward")
def _cdist(x: Node, y: Node, p: float, mode: int | None = None) -> Node:
    return contract.cdist(x, y, p, None if mode is None else contract.CDIST_MODES[mode])


@row("_cdist_backward")
def _cdist_backward(d: Node, x: Node, y: Node, p: float, distance: Node) -> Node | None:
    return pulled(lambda v: contract.cdist(v, y, p), [x], d)[0]


@row("_pdist_forward")
def _pdist(x: Node, p: float = 2.0) -> Node:
    return contract.pdist(x, p)


@row("_pdist_backward")
def _pdist_backward(d: Node, x: Node, p: float, distance: Node) -> Node | None:
    return pulled(lambda v: contract.pdist(v, p), [x], d)[0]


@row("block_diag")
def _block_diag(parts: Any) -> Node:
    made: Node = movement.block_diag(*parts)
    return made
