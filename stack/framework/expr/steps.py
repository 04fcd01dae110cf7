"""Steps over the columns of matrices: written out where they are few, a loop where they are many.

Few steps of small matrices become few kernels. A graph of many takes minutes to compile, while a
loop is compiled once whatever their number (docs/decisions/0042). Of many columns a step of a loop
takes a panel, and what the panel does to the others is a product of matrices.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.expr import elementwise as e
from stack.framework.reverse import Rule, rules
from stack.framework.store import barrier
from stack.ops import LoopBody

STEPS_WRITTEN_OUT = 16
"""Steps at most that are written out."""

PANEL = 16
"""Columns of a panel. On Zen 3 32 take as long, in factors and inverses of 256 and 512 columns."""

BLOCK = 128
"""Columns that are factored by panels of all of them, if there are not too many blocks. 256 in
blocks of 64 take a third less time, but twice as long to compile."""

BLOCKS = 16
"""Blocks of a matrix at most: the graph grows with their number."""

Place = int | Node
"""The number of a step: of a loop's it is data, an i64."""


def block_of(n: int) -> int:
    """The columns of a block of a matrix of n of them."""
    return BLOCK * -(-n // (BLOCK * BLOCKS))


def half_of(n: int, block: int) -> int:
    """The columns of the first half of more than one block. Halves are of few sizes: what they take
    is compiled once for each."""
    return block << ((n - 1) // block).bit_length() - 1


def in_steps(
    count: int,
    step: Callable[..., Sequence[Node]],
    consts: Sequence[Node],
    carried: Sequence[Node],
) -> list[Node]:
    """The carried values after `count` steps, of which there is at least one, then what each step
    gives, stacked along a first axis. `step(number, *consts, *carried)` makes of them the next
    carried values and what it gives; it reads nothing else that was computed."""
    if count > STEPS_WRITTEN_OUT:
        return in_loop(count, step, consts, carried)
    values, stacks = list(carried), list[list[Node]]()
    for j in range(count):
        made = step(j, *consts, *values)
        values = list(made[: len(carried)])
        stacks.append([g.reshape(x, (1, *x.shape)) for x in made[len(carried) :]])
    return [*values, *(g.concat(list(each), 0) for each in zip(*stacks, strict=True))]


def in_loop(
    count: int,
    step: Callable[..., Sequence[Node]],
    consts: Sequence[Node],
    carried: Sequence[Node],
) -> list[Node]:
    """As `in_steps`, a loop whatever the number."""
    number = g.arange(count)
    types = [n.type for n in (*consts, *carried)] + [number.type.with_shape(())]
    *given, place = (g.input(i, t) for i, t in enumerate(types))
    body = LoopBody((*given, place), tuple(step(place, *given)))
    return list(g.loop(body, count, consts, carried, [number]))


def columns_of(stack: Node) -> Node:
    """[..., n, steps] of the columns [..., n, 1] of steps that are stacked."""
    rank = len(stack.shape)
    return g.permute(g.reshape(stack, stack.shape[:-1]), [*range(1, rank - 1), 0])


def rows_of(stack: Node) -> Node:
    """[..., steps, n] of the rows [..., 1, n] of steps that are stacked."""
    return g.transpose(columns_of(g.transpose(stack)))


def _slice(x: Node, axis: int, at: Place) -> Node:
    if isinstance(at, int):
        return g.slice_axis(x, axis, at, at + 1)
    return g.gather(x, g.reshape(at, (1,)), len(x.shape) + axis)


def panel_of(x: Node, axis: int, at: Node) -> Node:
    """`PANEL` slices of the axis -1 or -2 from `at` on; 0 beyond the end."""
    return g.gather(x, e.add(g.arange(PANEL), at), len(x.shape) + axis)


def one_below_another(stack: Node) -> Node:
    """[..., panels * PANEL, n] of the rows [..., PANEL, n] of panels that are stacked."""
    count, *lead, width, n = stack.shape
    rank = len(stack.shape)
    order = [*range(1, rank - 2), 0, rank - 2, rank - 1]
    return g.reshape(g.permute(stack, order), (*lead, count * width, n))


def column_of(x: Node, j: Place) -> Node:
    return _slice(x, -1, j)


def row_of(x: Node, i: Place) -> Node:
    return _slice(x, -2, i)


def element_of(x: Node, i: Place, j: Place) -> Node:
    return column_of(row_of(x, i), j)


def rows_below(n: int, j: Place, dtype: DType) -> Node:
    """[n, 1]: 1 for rows below j."""
    return g.reshape(g.cast(e.lt(j, g.arange(n)), dtype), (n, 1))


def unit_column(n: int, j: Place, dtype: DType) -> Node:
    """[n, 1]: 1 at row j."""
    return g.reshape(g.cast(e.eq(g.arange(n), j), dtype), (n, 1))


def ruled(
    value: Node, sources: Sequence[Node], slope: Callable[[Node, Node], Sequence[Node | None]]
) -> Node:
    """The value, with the gradients by the sources that `slope` gives for it and that by it."""
    leaf = barrier(value)
    me = weakref.ref(leaf)  # the rule must not keep the leaf that it belongs to

    def pull(d: Node, lead: Sequence[bool]) -> Sequence[Node | None]:
        whole = me()
        assert whole is not None, "a gradient comes from what is computed from it"
        return slope(whole, d)

    rules[leaf] = Rule(tuple(sources), pull)
    return leaf
