"""Functions that hardware lacks, as expressions over operations that it has."""

from __future__ import annotations

from hal.core.dtypes import DType
from hal.tile.build import cast, unary
from hal.tile.node import Node, node


def expand(n: Node) -> Node:
    """The same value by simpler operations."""
    if n.dtype in (DType.F16, DType.BF16):
        wide = tuple(cast(s, DType.F32) for s in n.srcs)
        return cast(node(n.op, n.type.with_dtype(DType.F32), wide), n.dtype)
    if n.op == "rsqrt":
        return unary("recip", unary("sqrt", n.srcs[0]))
    raise NotImplementedError(n.op)
