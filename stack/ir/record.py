"""What the stack knows about one operation: the record that compiler, autograd and tests read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from hal.core.dtypes import DType
from hal.tile.node import Node

NDArray = np.ndarray[Any, Any]
Reference = Callable[[Node, tuple[NDArray, ...]], NDArray]
"""The node's value for its operands' values, by numpy, as the text of the meaning says."""

Gradient = Callable[[Node, Node], "tuple[Node | None, ...]"]
"""(the node, the loss's derivative by it) to the loss's derivatives by its operands, as graph nodes
of the operands' types; None for an operand that nothing flows to."""

Lower = Callable[[Node, tuple[Node, ...]], Node]
"""(the graph node, its operands as tiles) to the result as a tile expression. Operands of f16 and
bf16 come as f32 tiles and the result is f32 again; operands may have any shapes that broadcast."""


class OpKind(Enum):
    """How the compiler treats an operation."""

    LEAF = "leaf"
    ELEMENTWISE = "elementwise"
    MOVEMENT = "movement"
    REDUCE = "reduce"
    CONTRACT = "contract"
    INDEX = "index"
    SCAN = "scan"
    EXCHANGE = "exchange"


@dataclass(frozen=True, slots=True)
class OpRecord:
    """`dtypes` are the element types that it claims for its data operands; `meaning` says what it
    computes; `lower` is None for operations that the compiler's loop nest lowers by name;
    `gradient` is None where no derivative flows."""

    name: str
    kind: OpKind
    dtypes: frozenset[DType]
    meaning: str
    reference: Reference = field(repr=False)
    gradient: Gradient | None = field(default=None, repr=False)
    lower: Lower | None = field(default=None, repr=False)
