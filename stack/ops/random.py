"""The counter-based random generator Philox4x32-10 (Salmon et al., 2011), one word an element."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hal.core.dtypes import DType
from hal.tile import build as tile
from hal.tile.node import Node
from stack.ops.operator import NDArray, Operator, OpKind
from stack.ops.rules import alike
from stack.ops.sharding import elementwise
from stack.ops.table import define

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
LOW = 0xFFFFFFFF

Block = tuple[Node, Node, Node, Node]


def _low(x: Node) -> Node:
    return tile.binary("and", x, LOW)


def _high(x: Node) -> Node:
    return tile.binary("shr", x, 32)


def _lower(n: Node, xs: tuple[Node, ...]) -> Node:
    counter, key = xs
    position, zero = tile.binary("shr", counter, 2), tile.const(0, DType.U64)
    block: Block = (_low(position), _high(position), zero, zero)
    keys = (_low(key), _high(key))
    for _ in range(ROUNDS):
        # One round on 32-bit words held in u64 tiles, where a product is a single multiplication.
        first, second = tile.mul(block[0], MULTIPLIERS[0]), tile.mul(block[2], MULTIPLIERS[1])
        even = tile.binary("xor", tile.binary("xor", _high(second), block[1]), keys[0])
        odd = tile.binary("xor", tile.binary("xor", _high(first), block[3]), keys[1])
        block = even, _low(second), odd, _low(first)
        keys = (_low(tile.add(keys[0], WEYL[0])), _low(tile.add(keys[1], WEYL[1])))
    number = tile.binary("and", counter, 3)
    odd = tile.binary("eq", tile.binary("and", number, 1), 1)
    upper = tile.binary("le", tile.const(2, DType.U64), number)
    a, b, c, d = (tile.cast(word, DType.U32) for word in block)
    return tile.where(upper, tile.where(odd, d, c), tile.where(odd, b, a))


def _reference(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    """All four words of each element's block, of which it is one."""
    counters, keys = xs
    position, zero = counters >> 2, np.zeros_like(counters)
    words = block((position & LOW, position >> 32, zero, zero), (keys & LOW, keys >> 32))
    chosen = np.choose((counters & 3).astype(np.intp), words)
    return np.asarray(chosen, np.uint32)


def block(counter: Sequence[NDArray], key: Sequence[NDArray]) -> list[NDArray]:
    """The four words of blocks, from the four of their counters and the two of their keys, the
    lowest first; each word in an array of u64."""
    c, k = list(counter), list(key)
    for _ in range(ROUNDS):
        first, second = c[0] * MULTIPLIERS[0], c[2] * MULTIPLIERS[1]
        c = [second >> 32 ^ c[1] ^ k[0], second & LOW, first >> 32 ^ c[3] ^ k[1], first & LOW]
        k = [(word + step) & LOW for word, step in zip(k, WEYL, strict=True)]
    return c


philox: Operator = define(
    "philox",
    OpKind.ELEMENTWISE,
    frozenset({DType.U64}),
    "word (counter & 3) of Philox4x32-10 block (counter >> 2) under the 64-bit key",
    2,
    lambda srcs, attrs, asked: alike(srcs, attrs, asked).with_dtype(DType.U32),
    _reference,
    lower=_lower,
    expensive=True,
    sharding=elementwise(),
)
