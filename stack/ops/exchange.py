"""What ranks compute together. The runtime hands these operations to a group's collectives."""

from __future__ import annotations

from hal.tile.node import Node
from stack.ir.record import NDArray, OpKind, OpRecord
from stack.ops.table import record


def _alone(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    """The value in a group of one rank, which is the one that an interpreter has."""
    return xs[0]


EXCHANGE: tuple[OpRecord, ...] = (
    record(
        "all_reduce",
        OpKind.EXCHANGE,
        "combined with the values of the other ranks of `group` by `kind`, in an order that all "
        "ranks share; f16 and bf16 accumulate in f32; the ranks call it `name`",
        _alone,
    ),
)
