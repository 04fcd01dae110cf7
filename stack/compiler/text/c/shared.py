"""Tiles that are computed once into an array: what several statements of a block use, and what a
loop would compute again in each iteration, if that costs more than to read it back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from hal.core.dtypes import DType
from hal.tile.kernel import For, Statement
from hal.tile.node import Node, toposort
from hal.tile.ops import ELEMENTWISE
from hal.tile.walk import defines, reads
from stack.compiler.text.math import FUNCTIONS

_WORTH = 8
"""The least cost of what is kept, in operations for each element."""
_COSTS = {"div": 5, "rem": 5, "recip": 5, "sqrt": 5, "rsqrt": 5, "sin": 15, "cos": 15, "pow": 15}
_FUNCTION = 15

Owner = Node | tuple[int, bool]
"""What needs a tile: another one that is kept, or a statement, once or more than once."""


def before(
    block: Sequence[Statement], after: Sequence[Node], loops: Collection[str]
) -> Mapping[int, Sequence[Node]]:
    """The tiles to compute before each statement of a block, those that others need first.

    `after` is what is used after the last statement, `loops` the operations that are always worth
    it.
    """
    owners, inside = _roots(block, after)
    order = list(toposort(owners))
    moving: set[Node] = set()  # what has another value in each iteration of a loop
    for n in order:
        if n in inside or not moving.isdisjoint(n.srcs):
            moving.add(n)
    costs = _costs(order, loops)
    places: dict[Node, int] = {}
    for n in reversed(order):
        mine = owners[n]
        worth = n.op in loops or (n.op in ELEMENTWISE and costs[n] >= _WORTH)
        if worth and len(mine) > 1 and n not in moving:
            places[n] = min(places[x] if isinstance(x, Node) else x[0] for x in mine)
            mine = {n}
        for s in n.srcs:
            owners[s] |= mine
    found: dict[int, list[Node]] = defaultdict(list)
    for n in reversed(places):
        found[places[n]].append(n)
    return found


def _roots(
    block: Sequence[Statement], after: Sequence[Node]
) -> tuple[dict[Node, set[Owner]], set[Node]]:
    """What the statements use, by whom, and the variables that are known inside loops only."""
    owners: dict[Node, set[Owner]] = defaultdict(set)
    inside: set[Node] = set()
    for number, s in enumerate(block):
        for n in reads(s):
            owners[n].add((number, False))
        if isinstance(s, For):
            for n in _repeated(s, inside):
                owners[n] |= {(number, False), (number, True)}
    for n in after:
        owners[n].add((len(block), False))
    return owners, inside


def _repeated(s: For, inside: set[Node]) -> Iterator[Node]:
    """What a loop uses in each iteration: not what it uses on a condition."""
    inside |= {s.index, *(c.var for c in s.carried)}
    yield from (c.next for c in s.carried)
    for x in s.body:
        inside |= set(defines(x))
        yield from reads(x)
        if isinstance(x, For):
            yield from _repeated(x, inside)


def _costs(order: Sequence[Node], loops: Collection[str]) -> Mapping[Node, int]:
    """The operations on the longest way to each node from what is kept anyway, as scalars are."""
    found: dict[Node, int] = {}
    for n in order:
        below = max((found[s] for s in n.srcs), default=0)
        kept = n.op in loops or not n.shape
        found[n] = 0 if kept else below + _cost(n) * (n.op in ELEMENTWISE)
    return found


def _cost(n: Node) -> int:
    if n.op in FUNCTIONS and n.dtype is not DType.F64:
        return _FUNCTION
    return 4 if n.op == "cast" and n.dtype.is_narrow else _COSTS.get(n.op, 1)


def is_pointwise(n: Node, x: Node, arrays: Collection[Node]) -> bool:
    """Whether an element of `n` needs no other element of `x` than its own; `arrays` are kept."""
    stack, seen = [n], {n}
    while stack:
        m = stack.pop()
        if m is x or m in arrays:
            continue
        if m.op not in ELEMENTWISE and uses(m, x, arrays):
            return False
        fresh = [s for s in m.srcs if s not in seen and m.op in ELEMENTWISE]
        seen.update(fresh)
        stack += fresh
    return True


def uses(n: Node, x: Node, arrays: Collection[Node]) -> bool:
    """Whether `n` is computed from `x`; `arrays` are kept."""
    stack, seen = [n], {n}
    while stack:
        m = stack.pop()
        if m is x:
            return True
        if m in arrays:
            continue
        fresh = [s for s in m.srcs if s not in seen]
        seen.update(fresh)
        stack += fresh
    return False
