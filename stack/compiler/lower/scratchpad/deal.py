"""Instances as the steps of a loop: each core has a run of them, which it takes in windows."""

from __future__ import annotations

from collections.abc import Sequence

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.build import add, binary, const, program_id
from hal.tile.kernel import For, Statement
from hal.tile.node import Node, Type, node, substitute, toposort
from hal.tile.walk import map_nodes

I64 = DType.I64
FIRST = node("scalar", Type((), I64), name="window first")
COUNT = node("scalar", Type((), I64), name="window count")
"""The first instance of a window along the grid's first axis, and how many it has."""


@dataclass(frozen=True, slots=True)
class Dealt:
    """The loop over the instances of a window, none of which may contain a multiple of a number of
    `bounds` but as its first instance."""

    loop: For
    bounds: tuple[int, ...]


def deal(body: Sequence[Statement]) -> Dealt:
    """A kernel's body as a loop over the instances of a window.

    Within a window quotients of the instance's number do not change, and remainders count up, as
    do those of the remainder by a multiple.
    """
    used: dict[Node, None] = {}
    map_nodes(tuple(body), lambda n: used.setdefault(n) or n)
    number, step = program_id(0), node("var", Type((), I64), id="instance")
    # What counts up with the instances: its value for the first, and where it begins again.
    counters: dict[Node, tuple[Node, int]] = {number: (FIRST, 0)}
    places = {number: add(FIRST, step)}
    for n in toposort(used):
        by = _divisor(n)
        if by <= 0 or n.srcs[0] not in counters:
            continue
        first, size = counters[n.srcs[0]]
        if size % by:
            continue
        fixed = binary(n.op, first, by)
        places[n] = fixed if n.op == "div" else add(fixed, step)
        if n.op == "rem":
            counters[n] = (fixed, by)
    changed = dict(zip(used, substitute(used, places), strict=True))
    inner = map_nodes(tuple(body), changed.__getitem__)
    one = const(1, I64)
    bounds = {_divisor(n) for n in places} - {0}
    return Dealt(For(step, const(0, I64), COUNT, one, (), inner), tuple(sorted(bounds)))


def _divisor(n: Node) -> int:
    """What a quotient or remainder divides by, where it is a constant; else 0."""
    if n.op not in ("div", "rem") or n.srcs[1].op != "const":
        return 0
    return int(n.srcs[1]["value"])
