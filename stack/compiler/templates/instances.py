"""What a program instance works on, from its number."""

from __future__ import annotations

from collections.abc import Sequence

from hal.core.dtypes import DType
from hal.tile.build import binary, const, program_id
from hal.tile.node import Node
from hal.tile.size import is_one
from stack.compiler.graph.access import Axis


def instance(chunks: int, rows: int) -> tuple[Node, Node]:
    """(row, chunk of the row) of this program instance. All of a grid is along its first axis,
    because devices limit the others more."""
    number, zero = program_id(0), const(0, DType.I64)
    if is_one(chunks):
        return number, zero
    if is_one(rows):  # so that programs of any number of chunks are one
        return zero, number
    return binary("div", number, chunks), binary("rem", number, chunks)


def instance_by_rows(chunks: int, rows: int) -> tuple[Node, Node]:
    """As `instance`; neighbouring instances have the same chunk of neighbouring rows."""
    if is_one(chunks) or is_one(rows):
        return instance(chunks, rows)
    number = program_id(0)
    return binary("rem", number, rows), binary("div", number, rows)


def decompose(number: Node, axes: Sequence[Axis]) -> dict[Axis, Node]:
    """Row-major positions along the axes of a linear number."""
    values: dict[Axis, Node] = {}
    rest = number
    for axis in reversed(axes[1:]):
        values[axis] = binary("rem", rest, axis.size)
        rest = binary("div", rest, axis.size)
    if axes:
        values[axes[0]] = rest
    return values
