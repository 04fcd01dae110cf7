"""What ranks compute together. The runtime hands these operations to a group's collectives."""

from __future__ import annotations

from hal.core.errors import InvalidCall
from hal.tile.node import Node
from stack.ir import build as g
from stack.ir.record import NDArray, OpKind, OpRecord
from stack.ops.table import record


def _alone(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    """The value in a group of one rank, which is the one that an interpreter has."""
    return xs[0]


def _gradient(n: Node, d: Node) -> tuple[Node]:
    """Of the sum of the ranks' losses, as each rank's operand is in the results of all. All ranks
    compute it."""
    if n["kind"] not in ("sum", "avg"):
        what = f"all_reduce by {n['kind']} among group {n['group']!r}"
        raise InvalidCall(f"{what} has no gradient; detach() its operand, or combine by sum or avg")
    return (g.all_reduce(n["kind"], d, n["group"], f"gradient of {n['name'] or 'all_reduce'}"),)


EXCHANGE: tuple[OpRecord, ...] = (
    record(
        "all_reduce",
        OpKind.EXCHANGE,
        "combined with the values of the other ranks of `group` by `kind`, in an order that all "
        "ranks share; f16 and bf16 accumulate in f32; the ranks call it `name`",
        _alone,
        _gradient,
    ),
)
