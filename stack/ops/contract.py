"""Matrix products. The compiler's tables lower them."""

from __future__ import annotations

import numpy as np

from hal.tile.node import Node
from stack.ir import build as g
from stack.ir.record import NDArray, OpKind, OpRecord
from stack.ops.table import doubled, record, rounded


def _matmul(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    a, b = xs
    with np.errstate(all="ignore"):
        return rounded(np.matmul(doubled(a), doubled(b)), n.dtype)


def _gradient(n: Node, d: Node) -> tuple[Node, Node]:
    """Both products run in the operands' element type, as the forward one did."""
    a, b = n.srcs
    narrow = g.cast(d, a.dtype)
    return g.matmul(narrow, g.transpose(b)), g.matmul(g.transpose(a), narrow)


CONTRACT: tuple[OpRecord, ...] = (
    record(
        "matmul",
        OpKind.CONTRACT,
        "a[*B,M,K] @ b[*B,K,N]; f16 and bf16 accumulate in f32, rounded once to the result's type",
        _matmul,
        _gradient,
    ),
)
