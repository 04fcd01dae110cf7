"""Operations without operands."""

from __future__ import annotations

import numpy as np

from hal.tile.node import Node
from hal.tile.numeric import NUMPY
from stack.ir.record import NDArray, OpKind, OpRecord
from stack.ops.table import record, rounded


def _input(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    return xs[0]


def _const(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    return np.array(n["value"], NUMPY[n.dtype])


def _arange(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    return rounded(np.arange(n.shape[0], dtype=np.int64), n.dtype)


LEAVES: tuple[OpRecord, ...] = (
    record("input", OpKind.LEAF, "argument number `slot` of the graph", _input),
    record("const", OpKind.LEAF, "the scalar `value`", _const),
    record("arange", OpKind.LEAF, "0, 1, ..., n-1 as i64, cast to the element type", _arange),
)
