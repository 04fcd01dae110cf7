"""Every graph operation's record: element types, meaning, numpy reference, gradient, lowering."""

from __future__ import annotations

from collections.abc import Mapping

from stack.ir.record import OpRecord
from stack.ops.binary import ARITHMETIC, BITWISE, CHOICE
from stack.ops.contract import CONTRACT
from stack.ops.convert import CONVERT
from stack.ops.division import DIVISION
from stack.ops.exchange import EXCHANGE
from stack.ops.index import INDEX
from stack.ops.leaves import LEAVES
from stack.ops.movement import MOVEMENT
from stack.ops.philox import PHILOX
from stack.ops.reduce import REDUCE
from stack.ops.scan import SCAN
from stack.ops.unary import UNARY

_RECORDS = (
    *LEAVES,
    *(*UNARY, *ARITHMETIC, *DIVISION, *BITWISE, *CHOICE, *CONVERT, *PHILOX),
    *(*MOVEMENT, *REDUCE, *SCAN, *CONTRACT, *INDEX, *EXCHANGE),
)

OPS: Mapping[str, OpRecord] = {r.name: r for r in _RECORDS}
"""The records by operation name."""
