"""What ranks compute together. The runtime hands these operations to a group's collectives."""

from __future__ import annotations

from collections.abc import Sequence

from hal.core.errors import InvalidCall
from hal.tile.node import Node, Type
from stack.ops.operator import Attrs, NDArray, OpKind
from stack.ops.rules import KINDS, need
from stack.ops.table import NUMBERS, define


def _alone(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    """The value in a group of one rank, which is the one that an interpreter has."""
    return xs[0]


def _gradient(n: Node, d: Node) -> tuple[Node]:
    """Of the sum of the ranks' losses, as each rank's operand is in the results of all. All ranks
    compute it."""
    if n["kind"] not in ("sum", "avg"):
        what = f"all_reduce by {n['kind']} among group {n['group']!r}"
        raise InvalidCall(f"{what} has no gradient; detach() its operand, or combine by sum or avg")
    return (all_reduce(n["kind"], d, n["group"], f"gradient of {n['name'] or 'all_reduce'}"),)


def _type(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    need(attrs["kind"] in (*KINDS, "avg"), f"kind is one of {', '.join(KINDS)}, avg")
    need(type(attrs["group"]) is str and attrs["group"] != "", "the group is a name")
    need(type(attrs["name"]) is str, "what it is called is a text")
    return srcs[0]


_ALL_REDUCE = define(
    "all_reduce",
    OpKind.EXCHANGE,
    NUMBERS,
    "combined with the values of the other ranks of `group` by `kind`, in an order that all ranks "
    "share; f16 and bf16 accumulate in f32; the ranks call it `name`",
    1,
    _type,
    _alone,
    _gradient,
    attrs=frozenset({"kind", "group", "name"}),
    marks=frozenset({"turn"}),
)


def all_reduce(kind: str, x: Node, group: str, name: str = "") -> Node:
    """x combined element by element with those of the group's other ranks, by sum, prod, min, max
    or avg. All ranks of the group compute it, in the same order among all such nodes; `name` is
    what all of them call it, and ranks that combine values of two names are told so."""
    return _ALL_REDUCE(x, kind=kind, group=group, name=name)
