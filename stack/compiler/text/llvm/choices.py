"""Choices between four words of blocks, each repeated for all of its block: the words in order."""

from __future__ import annotations

from functools import lru_cache

from hal.core.dtypes import DType
from hal.tile.evaluate import evaluate
from hal.tile.node import Node, toposort

BLOCK = 4
"""The words of a block."""


@lru_cache(1 << 10)
def words_of(n: Node) -> tuple[Node, ...] | None:
    """The tiles of each block's first, second, third and fourth word, in the lower halves of u64,
    that a node puts in order; None where it is anything else."""
    if n.op != "where" or n.dtype is not DType.U32 or not n.shape or n.shape[-1] % BLOCK:
        return None
    upper, *halves = n.srcs
    found: list[Node] = []
    for half in reversed(halves):
        if half.op != "where" or not _is_periodic(half.srcs[0], (0, 1, 0, 1)):
            return None
        for word in (half.srcs[2], half.srcs[1]):
            one = _repeated(word)
            if one is None:
                return None
            found.append(one)
    return tuple(found) if _is_periodic(upper, (0, 0, 1, 1)) else None


def _repeated(n: Node) -> Node | None:
    """The tile of u64 whose lower halves a tile of u32 repeats for each block."""
    for op in ("reshape", "broadcast", "reshape", "cast"):
        if n.op != op:
            return None
        below, n = n, n.srcs[0]
        if op == "broadcast" and below.shape != (*n.shape[:-1], BLOCK):
            return None
    return n if n.dtype is DType.U64 else None


def _is_periodic(mask: Node, pattern: tuple[int, ...]) -> bool:
    """Whether a mask has these values in every block, whatever the instance."""
    known = {"const", "arange", "broadcast", "reshape", "and", "shr", "eq", "ne", "le", "lt"}
    known |= {"add", "mul", "cast", "or", "xor"}
    if any(n.op not in known for n in toposort([mask])):
        return False
    values = evaluate(mask).reshape(-1, len(pattern))
    return bool((values == pattern).all())
