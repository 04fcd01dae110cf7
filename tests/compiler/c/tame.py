"""Random kernels changed so that they can run and have one right result.

Indices stay inside the memories, loops are short and scratch memory starts at zero. What the tile
language leaves free is taken out: copies of a memory into itself, last places of functions, the
order of sums, bits of NaN, signs of zeros.
"""

from __future__ import annotations

from dataclasses import replace

from hal.core.dtypes import DType
from hal.tile.build import add, binary, bitcast, const, dot, mul, unary, where
from hal.tile.kernel import (
    Access,
    Alloc,
    Atomic,
    Copy,
    For,
    Gather,
    If,
    Kernel,
    Load,
    Memory,
    Scatter,
    Statement,
    Store,
)
from hal.tile.node import Node, rebuild, toposort
from hal.tile.ops import TRANSCENDENTAL
from hal.tile.walk import map_nodes

SIZE = 64
"""Elements of every memory."""

I64 = DType.I64


def tamed(kernel: Kernel) -> Kernel:
    """The kernel that can run, on buffers of SIZE elements."""
    calm = map_nodes(kernel, _calm)
    return Kernel(kernel.name, kernel.params, tuple(x for s in calm.body for x in _statement(s)))


def _within(index: Node, most: int) -> Node:
    return binary("and", index, const(most, index.dtype, index.shape))


def _access(a: Access) -> Access:
    """Blocks of at most 2 x 3 x 4 elements: 15 + 7 * (1 + 2 + 3) is inside."""
    memory, strides = _memory(a.memory), tuple(_within(s, 7) for s in a.strides)
    return Access(memory, _within(a.offset, 15), strides, a.limits)


def _memory(m: Memory) -> Memory:
    return m if m.space == "global" else replace(m, size=SIZE)


def _statement(s: Statement) -> tuple[Statement, ...]:
    match s:
        case Load():
            return (replace(s, source=_access(s.source)),)
        case Store():
            return (replace(s, target=_access(s.target)),)
        case Copy() if s.target.memory.name == s.source.memory.name:
            return ()
        case Copy():
            return (replace(s, target=_access(s.target), source=_access(s.source)),)
        case Gather() | Scatter() | Atomic():
            index = _within(s.index, SIZE - 1)
            return (replace(s, memory=_memory(s.memory), index=index),)
        case Alloc():
            memory = _memory(s.memory)
            zeros = const(0, memory.dtype, (SIZE,))
            whole = Access(memory, const(0, I64), (const(1, I64),), (None,))
            return (Alloc(memory), Store(whole, zeros))
        case For():
            return (_for(s),)
        case If():
            return (replace(s, then=_block(s.then), orelse=_block(s.orelse)),)
    return (s,)


def _block(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
    return tuple(x for s in statements for x in _statement(s))


def _for(s: For) -> For:
    """At most eight iterations."""
    start, step = _within(s.start, 7), add(_within(s.step, 3), 1)
    return replace(s, start=start, stop=_within(s.stop, 7), step=step, body=_block(s.body))


# expressions


def _calm(root: Node) -> Node:
    known: dict[Node, Node] = {}
    for n in toposort([root]):
        known[n] = _changed(rebuild(n, tuple(known[s] for s in n.srcs)))
    return known[root]


def _changed(n: Node) -> Node:
    if n.op in TRANSCENDENTAL:
        return unary("abs", n.srcs[0])
    if n.op == "pow":
        return mul(*n.srcs)
    if n.op == "dot" and n.dtype.is_float:
        return dot(*(small(s) for s in n.srcs))
    if n.op in ("min", "max", "reduce", "scan") and n.dtype.is_float:
        return add(n, 0.0)
    if n.op == "bitcast" and n.srcs[0].dtype.is_float:
        (x,) = n.srcs
        plain = where(binary("eq", x, x), x, 1.0)
        return bitcast(add(plain, 0.0), n.dtype)
    return n


def small(x: Node) -> Node:
    """Integers whose products and sums are exact in every type."""
    inside = binary("lt", unary("abs", x), 8.0)
    return unary("round", where(inside, x, 1.0))
