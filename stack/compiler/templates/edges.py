"""Tiles at the edge of a matrix: how much of them is inside, and code for those that are not."""

from __future__ import annotations

from collections.abc import Callable

from hal.tile.build import Builder, Operand, add, binary, index, sub, unary
from hal.tile.node import Node
from hal.tile.size import divides

Limits = tuple[Node | None, Node | None]
"""How many rows and columns from a tile's first on are inside the matrix; None: all of the tile."""

NO_LIMITS: Limits = (None, None)


def whole_or_by_rows(
    b: Builder,
    shape: tuple[int, int],
    limits: Limits,
    emit: Callable[[Node, tuple[int, int], Limits], None],
    some: int = 1,
) -> None:
    """emit(row, shape, limits) for the tile at once where it is inside, else for `some` rows after
    others: that is less code for what is rare."""
    if limits == NO_LIMITS:
        emit(index(0), shape, NO_LIMITS)
        return
    rows, columns = limits
    within = inside(shape, limits)
    with b.when(within):
        emit(index(0), shape, NO_LIMITS)
    with b.when(unary("not", within)):
        one = (some, shape[1])
        b.loop(
            0,
            shape[0],
            some,
            lambda r: emit(r, one, (None if rows is None else sub(rows, r), columns)),
        )


def inside(shape: tuple[int, int], limits: Limits) -> Node:
    """Whether a tile ends before its limits, of which there is one at least."""
    met = [
        binary("le", size, limit)
        for size, limit in zip(shape, limits, strict=True)
        if limit is not None
    ]
    return met[0] if len(met) == 1 else binary("and", *met)


def left_of(size: int, start: Node, step: int) -> Node | None:
    """What is left of an axis from `start` on; None if steps divide the axis."""
    return None if divides(step, size) else sub(size, start)


def at_most(limit: Node | None, most: Node | None) -> Node | None:
    """The lesser of two limits, where there are both."""
    return limit if most is None else most if limit is None else binary("min", limit, most)


def least(size: int, left: Node, exact: bool) -> Operand:
    """min(size, left), where `exact` says that it is size."""
    return size if exact else binary("min", size, left)


def round_up_to(size: Operand, step: int) -> Operand:
    """The least multiple of step that is at least size; a plain number is one already."""
    if not isinstance(size, Node) or step == 1:
        return size
    up = add(size, step - 1)
    return sub(up, binary("rem", up, step))
