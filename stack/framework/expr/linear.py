"""Linear algebra. Factorisations go over columns, of which a panel at a time is factored by steps,
and then taken from the others by a product of matrices. Gradients follow from the steps where these
are written out. For those of a loop all steps would be kept: there factors and solutions have
rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr import reduce as r
from stack.framework.expr.contract import matmul
from stack.framework.expr.movement import diagonal, lower, movedim, stack, tril, triu
from stack.framework.expr.operand import Dims, as_float, axis, broadcast_shape, meet, text
from stack.framework.expr.public import linalg, operator
from stack.framework.expr.steps import (
    PANEL,
    STEPS_WRITTEN_OUT,
    Place,
    block_of,
    column_of,
    columns_of,
    element_of,
    half_of,
    in_loop,
    in_steps,
    one_below_another,
    panel_of,
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
    """The lower triangular L with L @ L.T = A of a positive definite A, whose lower triangle alone
    is read, or its transpose."""
    n = _square(A)
    if not n:
        return A
    found = ruled(_cholesky(barrier(A)), [A], _cholesky_slope)
    return g.transpose(found) if upper else found


def _cholesky(A: Node) -> Node:
    """The factor, of the lower triangle alone."""
    n = A.shape[-1]
    A = e.where(lower(n, n), A, g.transpose(A))
    if n <= STEPS_WRITTEN_OUT:
        return g.transpose(triu(_cholesky_panel(A, 0, in_steps)))
    return g.transpose(_cholesky_by_halves(A, block_of(n), n > block_of(n)).whole)


class _Upper(NamedTuple):
    """An upper triangular matrix: its halves, with what is beside the first one, or the inverse of
    its transpose."""

    whole: Node
    halves: tuple[_Upper, Node, _Upper] | None
    inverse: Node | None


def _cholesky_by_halves(A: Node, block: int, inverted: bool) -> _Upper:
    """The upper factor of a symmetric matrix, for which blocks at most are factored by panels: all
    else is products of what is left."""
    n = A.shape[-1]
    if n <= block:
        return _cholesky_by_panels(A, inverted)
    at = half_of(n, block)
    first = _cholesky_by_halves(_part(A, (0, at), (0, at)), block, inverted)
    beside = _solved_below(first, _part(A, (0, at), (at, n)))
    rest = e.sub(_part(A, (at, n), (at, n)), matmul(g.transpose(beside), beside))
    second = _cholesky_by_halves(rest, block, inverted)
    rows = g.concat([first.whole, beside], -1 + len(A.shape))
    zeros = g.full((*A.shape[:-2], n - at, at), 0, A.dtype)
    below = g.concat([zeros, second.whole], -1 + len(A.shape))
    return _Upper(g.concat([rows, below], len(A.shape) - 2), (first, beside, second), None)


def _solved_below(up: _Upper, b: Node) -> Node:
    """x with up.T @ x = b."""
    if up.halves is None:
        assert up.inverse is not None, "it is asked for where something is solved by it"
        return matmul(up.inverse, b)
    first, beside, second = up.halves
    at, n = beside.shape[-2], b.shape[-2]
    above = _solved_below(first, g.slice_axis(b, -2, 0, at))
    rest = e.sub(g.slice_axis(b, -2, at, n), matmul(g.transpose(beside), above))
    return g.concat([above, _solved_below(second, rest)], len(b.shape) - 2)


def _cholesky_by_panels(A: Node, inverted: bool) -> _Upper:
    """With `inverted` the steps are made on a unit matrix beside A, too."""
    n = A.shape[-1]
    count = -(-n // PANEL)
    size = count * PANEL
    A = _filled(A, size)
    beside = [_eye(size, A)] if inverted else []

    def step(p: Node, rest: Node) -> list[Node]:
        first = e.mul(p, PANEL)
        found = _cholesky_panel(panel_of(rest, -2, first), first, in_loop)
        place = g.reshape(e.add(g.arange(PANEL), first), (PANEL, 1))
        found = e.where(e.le(place, g.arange(rest.shape[-1])), found, g.const(0, A.dtype))
        above = g.slice_axis(found, -1, 0, size)
        return [e.sub(rest, matmul(g.transpose(above), found)), found]

    _, panels = in_loop(count, step, [], [g.concat([A, *beside], len(A.shape) - 1)])
    rows = one_below_another(panels)
    inverse = _part(rows, (0, n), (size, size + n)) if inverted else None
    return _Upper(_corner(rows, n, n), None, inverse)


def _cholesky_panel(panel: Node, first: Place, steps: Callable[..., list[Node]]) -> Node:
    """The upper factor's rows from `first` on, of those of the symmetric matrix that is left to
    factor. What is before the diagonal is anything."""
    width = panel.shape[-2]

    def step(k: Place, *given: Node) -> list[Node]:
        *begin, rest = given
        column = column_of(rest, e.add(k, begin[0]) if begin else k)
        pivot = g.sqrt(row_of(column, k))
        row = e.div(row_of(rest, k), pivot)
        return [e.sub(rest, e.mul(e.div(column, pivot), row)), row]

    return rows_of(steps(width, step, [first] if isinstance(first, Node) else [], [panel])[1])


def _is_diagonal(n: int) -> Node:
    return e.eq(g.arange(n), g.reshape(g.arange(n), (n, 1)))


def _filled(A: Node, n: int) -> Node:
    """Square matrices of n columns: A, and below and beside it those of the unit matrix."""
    size = A.shape[-1]
    lead = (0,) * (len(A.shape) - 2)
    added = e.logical_and(_is_diagonal(n), e.le(size, g.arange(n)))
    whole = g.pad(A, (*lead, 0, 0), (*lead, n - size, n - size))
    return e.add(whole, g.cast(added, A.dtype)) if n > size else A


def _corner(x: Node, rows: int, columns: int) -> Node:
    return _part(x, (0, rows), (0, columns))


def _part(x: Node, rows: tuple[int, int], columns: tuple[int, int]) -> Node:
    return g.slice_axis(g.slice_axis(x, -2, *rows), -1, *columns)


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
    if n <= STEPS_WRITTEN_OUT:
        return _solve_by_rows(a, b, upper, unitriangular)

    def slope(x: Node, d: Node) -> list[Node]:
        by_b = solve_triangular(g.transpose(a), d, upper=not upper, unitriangular=unitriangular)
        by_a = g.neg(matmul(by_b, g.transpose(x)))
        return [triu(by_a, int(unitriangular)) if upper else tril(by_a, -int(unitriangular)), by_b]

    return ruled(_solve_by_halves(barrier(a), barrier(b), upper, unitriangular), [a, b], slope)


def _solve_by_rows(
    a: Node,
    b: Node,
    upper: bool,
    unitriangular: bool,
    steps: Callable[..., list[Node]] = in_steps,
) -> Node:
    n = a.shape[-1]

    def step(k: Place, a: Node, rest: Node) -> list[Node]:
        i = e.sub(n - 1, k) if upper else k
        one = row_of(rest, i)
        one = one if unitriangular else e.div(one, element_of(a, i, i))
        left = e.lt(g.arange(n), i) if upper else e.lt(i, g.arange(n))
        factor = e.mul(column_of(a, i), g.reshape(g.cast(left, a.dtype), (n, 1)))
        return [e.sub(rest, e.mul(factor, one)), one]

    rows = rows_of(steps(n, step, [a], [b])[1])
    return g.flip(rows, [len(rows.shape) - 2]) if upper else rows


def _solve_by_halves(a: Node, b: Node, upper: bool, unitriangular: bool) -> Node:
    """By the inverses of the squares on the diagonal, which are found all at once."""
    *lead, n, right = b.shape
    count = -(-n // PANEL)
    size = count * PANEL
    a = _filled(a, size)
    b = g.pad(b, (0,) * len(b.shape), (*(0 for _ in lead), size - n, 0)) if size > n else b
    squares = diagonal(g.reshape(a, (*lead, count, PANEL, count, PANEL)), 0, -4, -2)
    squares = movedim(squares, -1, -3)
    inverses = _solve_by_rows(squares, _eye(PANEL, squares), upper, unitriangular, in_loop)
    block = block_of(size)

    def solved(begin: int, end: int, b: Node) -> Node:
        """By the square from `begin` to `end` of the matrix."""
        if end - begin <= block:
            own = g.slice_axis(inverses, -3, begin // PANEL, end // PANEL)
            return _solve_by_panels(_part(a, (begin, end), (begin, end)), own, b, upper)
        at = begin + half_of(end - begin, block)
        parts = (begin, at), (at, end)
        known, other = reversed(parts) if upper else parts
        whole = [g.slice_axis(b, -2, i - begin, j - begin) for i, j in (known, other)]
        x = solved(*known, whole[0])
        y = solved(*other, e.sub(whole[1], matmul(_part(a, other, known), x)))
        return g.concat([y, x] if upper else [x, y], len(b.shape) - 2)

    return _corner(solved(0, size, b), n, right)


def _solve_by_panels(a: Node, inverses: Node, b: Node, upper: bool) -> Node:
    *lead, size, _ = b.shape
    count = size // PANEL
    if count == 1:
        return matmul(g.reshape(inverses, (*lead, PANEL, PANEL)), b)

    def step(p: Node, a: Node, inverses: Node, rest: Node) -> list[Node]:
        number = e.sub(count - 1, p) if upper else p
        first = e.mul(number, PANEL)
        inverse = g.gather(inverses, number, len(lead))
        found = matmul(inverse, panel_of(rest, -2, first))
        place = g.reshape(g.arange(size), (size, 1))
        left = e.lt(place, first) if upper else e.le(e.add(first, PANEL), place)
        factor = e.where(left, panel_of(a, -1, first), g.const(0, a.dtype))
        return [e.sub(rest, matmul(factor, found)), found]

    _, rows = in_loop(count, step, [a, inverses], [b])
    return one_below_another(g.flip(rows, [0]) if upper else rows)


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
    if min(rows, columns) > STEPS_WRITTEN_OUT:
        x, order, best = _factored_by_panels(barrier(A), order, pivot)
        order, best = barrier(order), barrier(best)
        return ruled(x, [A], lambda x, d: [_factored_slope(x, order, d)]), order, best

    def step(j: Place, x: Node, order: Node) -> list[Node]:
        best = _best_row(g.detached(column_of(x, j)), j, pivot)
        if pivot:
            place = _exchange(rows, j, best)
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


def _best_row(column: Node, j: Place, pivot: bool) -> Node:
    """i64[..., 1]: the row from j on that has the greatest of a column [..., n, 1]; j if none is
    sought."""
    *lead, rows, _ = column.shape
    if not pivot:
        return g.broadcast(e.add(g.full((1,), 0, DType.I64), j), (*lead, 1))
    size = g.abs(g.reshape(column, (*lead, rows)))
    return g.argmax(e.where(e.lt(g.arange(rows), j), -1.0, size), -1)


def _exchange(n: int, i: Place, j: Node) -> Node:
    """i64[..., n]: the places of n rows of which i and j [..., 1] change theirs."""
    number = g.arange(n)
    return e.where(e.eq(number, j), i, e.where(e.eq(number, i), j, number))


def _factored_by_panels(A: Node, order: Node, pivot: bool) -> tuple[Node, Node, Node]:
    """As `factored`. Beside a panel stands what its steps add to each row of the whole matrix: of
    the rows that they take for pivots, as these were before, so much."""
    *lead, rows, columns = A.shape
    steps = min(rows, columns)
    number, side = g.arange(rows), g.arange(2 * PANEL)
    at = len(lead)

    def panel_step(k: Node, first: Node, both: Node, moved: Node) -> list[Node]:
        j = e.add(first, k)
        is_step = e.lt(j, steps)
        best = _best_row(column_of(both, k), j, pivot)
        best = e.where(is_step, best, j)
        if pivot:
            place = _exchange(rows, j, best)
            both = g.gather(both, place, at, batch=True)
            moved = g.gather(moved, place, at, batch=True)
        column, row = column_of(both, k), row_of(both, j)
        divisor = element_of(row, 0, k)
        if pivot:  # where the greatest is 0, so is all below it: of a singular matrix
            divisor = e.where(e.eq(divisor, 0.0), 1.0, divisor)
        below = g.reshape(e.logical_and(e.lt(j, number), is_step), (rows, 1))
        factor = e.where(below, e.div(column, divisor), g.const(0, A.dtype))
        row = e.where(e.lt(k, side), row, g.const(0, A.dtype))
        row = e.add(row, g.cast(e.eq(side, e.add(k, PANEL)), A.dtype))
        after = e.sub(both, e.mul(factor, row))
        is_own = e.logical_and(e.eq(side, k), below)
        return [e.where(is_own, factor, after), moved, best]

    def step(p: Node, x: Node, order: Node) -> list[Node]:
        first = e.mul(p, PANEL)
        panel = panel_of(x, -1, first)
        both = g.concat([panel, g.full_like(panel, 0)], at + 1)
        start = g.broadcast(number, (*lead, rows))
        both, place, best = in_loop(PANEL, panel_step, [first], [both, start])
        if pivot:
            x = g.gather(x, place, at, batch=True)
            order = g.gather(order, place, at, batch=True)
        panel, added = (g.slice_axis(both, -1, i, i + PANEL) for i in (0, PANEL))
        pivots = panel_of(x, -2, first)
        line = g.arange(columns)
        inside = e.sub(line, first)
        later = e.le(PANEL, inside)
        after = e.add(x, matmul(added, e.where(later, pivots, g.const(0, A.dtype))))
        own = g.gather(panel, inside, at + 1)
        is_own = e.logical_and(e.le(0, inside), e.logical_not(later))
        return [e.where(is_own, own, after), order, best]

    count = -(-steps // PANEL)
    x, order, best = in_loop(count, step, [], [A, order])
    best = g.reshape(best, (count * PANEL, *lead, 1))
    best = g.reshape(columns_of(g.reshape(best, (*best.shape, 1))), (*lead, count * PANEL))
    return x, order, g.slice_axis(best, -1, 0, steps)


def _factored_slope(packed: Node, order: Node, d: Node) -> Node:
    """The gradient by a matrix of that by its factors L and U in one. Of what is beyond the square
    in which both are, either is found by the other: L below as A @ inv(U), U beside as inv(L) @ A.
    """
    rows, columns = packed.shape[-2:]
    k = min(rows, columns)
    low, up = triangles(packed)
    by_low, by_up = tril(_corner(d, rows, k), -1), triu(_corner(d, k, columns))
    if rows > k:
        low, rest = (g.slice_axis(low, -2, *part) for part in ((0, k), (k, rows)))
        by_low, by_rest = (g.slice_axis(by_low, -2, *part) for part in ((0, k), (k, rows)))
        beyond = solve_triangular(g.transpose(up), by_rest, upper=False, left=False)
        by_up = e.sub(by_up, matmul(g.transpose(rest), beyond))
    if columns > k:
        up, rest = (g.slice_axis(up, -1, *part) for part in ((0, k), (k, columns)))
        by_up, by_rest = (g.slice_axis(by_up, -1, *part) for part in ((0, k), (k, columns)))
        beyond = solve_triangular(g.transpose(low), by_rest, upper=True, unitriangular=True)
        by_low = e.sub(by_low, matmul(beyond, g.transpose(rest)))
    inner = e.add(tril(matmul(g.transpose(low), by_low), -1), triu(matmul(by_up, g.transpose(up))))
    half = solve_triangular(g.transpose(low), inner, upper=True, unitriangular=True)
    whole = solve_triangular(g.transpose(up), half, upper=False, left=False)
    if rows != columns:
        whole = g.concat([whole, beyond], len(whole.shape) - (2 if rows > k else 1))
    at = len(packed.shape) - 2
    return g.gather(whole, g.argsort(order, at), at, batch=True)


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
    n = _square(A)
    packed, order, swaps = factored(A)
    value = e.mul(_sign(A, swaps), r.prod(diagonal(packed, 0, -2, -1), -1))
    value = g.reshape(value, A.shape[:-2])
    if n <= STEPS_WRITTEN_OUT:
        return value
    packed, order, sign = (barrier(x) for x in (packed, order, _sign(A, swaps)))
    return ruled(barrier(value), [A], lambda _, d: [_det_slope(packed, order, sign, d)])


def _det_slope(packed: Node, order: Node, sign: Node, d: Node) -> Node:
    """By the inverse, in which a pivot that is 0 is next to 0: what is lost of a determinant of 0
    comes back with it."""
    low, up = triangles(packed)
    n = low.shape[-1]
    on = diagonal(up, 0, -2, -1)
    small = 2.0**-23 if packed.dtype is not DType.F64 else 2.0**-52
    on = e.where(e.eq(on, 0), small, on)
    up = e.where(_is_diagonal(n), g.reshape(on, (*on.shape, 1)), up)
    size = e.mul(e.mul(d, g.reshape(sign, d.shape)), g.reshape(r.prod(on, -1), d.shape))
    half = solve_triangular(g.transpose(up), _eye(n, up), upper=False)
    whole = solve_triangular(g.transpose(low), half, upper=True, unitriangular=True)
    at = len(packed.shape) - 2
    whole = g.gather(whole, g.argsort(order, at), at, batch=True)
    return e.mul(whole, g.reshape(size, (*size.shape, 1, 1)))


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
    if _square(A) > STEPS_WRITTEN_OUT:
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
    if n > STEPS_WRITTEN_OUT:

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

    steps = min(k, rows - 1)
    if steps > STEPS_WRITTEN_OUT and (mode != "complete" or rows == k):
        flat = ruled(_by_reflections(barrier(A), steps, k), [A], lambda x, d: _qr_slope(x, d, A))
        q, r = _q_and_r(flat, rows, columns)
    else:
        flat = _by_reflections(A, steps, rows if mode == "complete" else k)
        q, r = _q_and_r(flat, rows, columns)
    return QR(g.full((0,), 0, A.dtype) if mode == "r" else q, r)


def _q_and_r(flat: Node, rows: int, columns: int) -> tuple[Node, Node]:
    """Both factors, whose elements are in one vector."""
    k = flat.shape[-1] // max(1, rows + columns)
    shapes = (rows, k), (k, columns)
    parts = g.slice_axis(flat, -1, 0, rows * k), g.slice_axis(flat, -1, rows * k, flat.shape[-1])
    q, up = (g.reshape(x, (*x.shape[:-1], *s)) for x, s in zip(parts, shapes, strict=True))
    return q, up


def _by_reflections(A: Node, steps: int, k: int) -> Node:
    """Q of k columns and R of k rows, in one vector, by so many reflections."""
    rows = A.shape[-2]
    x, q = A, _eye(rows, A)

    def step(j: Place, x: Node, q: Node) -> list[Node]:
        v = _reflection(column_of(x, j), j)
        x = e.sub(x, matmul(v, matmul(g.transpose(v), x)))
        return [x, e.sub(q, matmul(matmul(q, v), g.transpose(v)))]

    def panel_step(i: Node, first: Node, panel: Node) -> list[Node]:
        j = e.add(first, i)
        v = _reflection(column_of(panel, i), j)
        v = e.where(e.lt(j, steps), v, g.const(0, A.dtype))
        return [e.sub(panel, e.mul(v, matmul(g.transpose(v), panel))), v]

    def by_panel(p: Node, x: Node, q: Node) -> list[Node]:
        """All reflections of a panel are I - V @ T @ V.T, with the inverse of a triangular T in
        V.T @ V (Puglisi, https://doi.org/10.1137/0913042)."""
        first = e.mul(p, PANEL)
        _, found = in_loop(PANEL, panel_step, [first], [panel_of(x, -1, first)])
        v = columns_of(found)
        turned = g.transpose(v)
        above = matmul(turned, v)
        w = _solve_by_rows(above, turned, True, True, in_loop)
        x = e.sub(x, matmul(g.transpose(w), matmul(turned, x)))
        return [x, e.sub(q, matmul(matmul(q, v), w))]

    if steps > STEPS_WRITTEN_OUT:
        x, q = in_loop(-(-steps // PANEL), by_panel, [], [x, q])
    elif steps > 0:
        x, q = in_steps(steps, step, [], [x, q])
    both = g.slice_axis(q, -1, 0, k), triu(g.slice_axis(x, -2, 0, k))
    return g.concat(
        [g.reshape(v, (*A.shape[:-2], v.shape[-2] * v.shape[-1])) for v in both],
        len(A.shape) - 2,
    )


def _reflection(column: Node, j: Place) -> Node:
    """v with (I - v @ v.T) @ column = 0 below row j; 0 where it is so already."""
    rows = column.shape[-2]
    one = unit_column(rows, j, column.dtype)
    v = e.mul(column, e.add(rows_below(rows, j, column.dtype), one))
    size = g.sqrt(r.sum(e.square(v), -2, keepdim=True))
    v = e.add(v, e.mul(one, e.where(e.lt(row_of(column, j), 0), g.neg(size), size)))
    total = r.sum(e.square(v), -2, keepdim=True)
    return e.mul(v, g.sqrt(e.div(2.0, e.where(e.eq(total, 0), 1.0, total))))


def _qr_slope(flat: Node, d: Node, A: Node) -> list[Node]:
    """Walter and Lehmann, https://arxiv.org/abs/1009.6112; columns beyond the square that has a
    factor are Q @ R there."""
    rows, columns = A.shape[-2:]
    k = min(rows, columns)
    (q, up), (by_q, by_up) = (_q_and_r(x, rows, columns) for x in (flat, d))
    beyond = list[Node]()
    if columns > k:
        by_rest, rest = (g.slice_axis(x, -1, k, columns) for x in (by_up, A))
        up, by_up = (g.slice_axis(x, -1, 0, k) for x in (up, by_up))
        by_q = e.add(by_q, matmul(rest, g.transpose(by_rest)))
        beyond = [matmul(q, by_rest)]
    inner = e.sub(matmul(up, g.transpose(by_up)), matmul(g.transpose(by_q), q))
    both = e.add(tril(inner), g.transpose(tril(inner, -1)))
    by_a = e.add(by_q, matmul(q, both))
    by_a = solve_triangular(g.transpose(up), by_a, upper=False, left=False)
    return [g.concat([by_a, *beyond], len(A.shape) - 1)] if beyond else [by_a]


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
