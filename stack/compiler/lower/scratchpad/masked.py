"""Gathers of neighbours, some of which a mask takes out, as at the edges of what is padded: one
transfer from the first that is wanted to the last."""

from __future__ import annotations

from hal.core.dtypes import DType
from hal.tile.build import add, broadcast, const, mul, sub
from hal.tile.kernel import GLOBAL, Gather
from hal.tile.node import Node
from stack.compiler.lower.scratchpad.transfer import mover
from stack.compiler.text.c import casts, memory
from stack.compiler.text.c.memory import pointer
from stack.compiler.text.c.nest import LoopNest
from stack.compiler.text.c.scope import Scope
from stack.compiler.text.c.types import register

I64 = DType.I64


def first_of(n: Node) -> Node | None:
    """The scalar that a row of indices counts up from by one; None for other indices."""
    if len(n.shape) != 1 or n.dtype is not I64:
        return None
    found = _counted(n)
    return found[0] if found is not None and found[1] == 1 else None


def _counted(n: Node) -> tuple[Node, int] | None:
    """A row's first element and what it counts up by."""
    if not n.shape:
        return n, 0
    if n.op == "arange":
        return const(0, I64), 1
    if n.op in ("broadcast", "reshape") and n.srcs[0].type.size in (1, n.type.size):
        return _counted(n.srcs[0]) if len(n.srcs[0].shape) < 2 else None
    if n.op not in ("add", "sub", "mul"):
        return None
    a, b = (_counted(s) for s in n.srcs)
    if a is None or b is None:
        return None
    if n.op == "add":
        return add(a[0], b[0]), a[1] + b[1]
    if n.op == "sub":
        return sub(a[0], b[0]), a[1] - b[1]
    if a[1] == b[1] == 0:
        return mul(a[0], b[0]), 0
    return None


def gather(scope: Scope, s: Gather, first: Node, mask: Node) -> None:
    """Write the transfer, and the elements that the mask leaves."""
    out, (count,), dtype = scope.out, s.index.shape, s.memory.dtype
    wanted, raw = scope.declare(mask.type.with_shape((count,))), out.name("v")
    where = LoopNest(scope, (count,))
    held = where.element(broadcast(mask, (count,)), where.position)
    where.do(f"{wanted.at(where.position)} = {held};", DType.BOOL)
    where.emit()
    low, high = out.name("n"), out.name("n")
    out.do(f"{register(out.dialect, dtype)} {raw}[{count}] {out.dialect.aligned};")
    out.hold(dtype.nbytes_of(count))
    out.do(f"long {low} = 0, {high} = {count};")
    out.do(f"while ({low} < {high} && !{wanted.name}[{low}]) {low}++;")
    out.do(f"while ({high} > {low} && !{wanted.name}[{high} - 1]) {high}--;")
    far = f"{pointer(s.memory)} + {memory.scalar(scope, first)} + {low}"
    nbytes = f"({high} - {low}) * {dtype.nbytes}"
    out.do(f"{mover(scope, 'get')}((char *)({raw} + {low}), (char *)({far}), {nbytes}, 1, 0);")
    target, nest = scope.declare(s.result.type), LoopNest(scope, s.index.shape)
    at = nest.position[0].text
    other = "0"
    if s.other is not None:
        other = nest.element(broadcast(s.other, s.index.shape), nest.position)
    value = casts.from_memory(f"{raw}[{at}]", s.memory.dtype)
    held = wanted.at(nest.position)
    nest.do(f"{target.at(nest.position)} = {held} ? {value} : {other};", s.memory.dtype)
    nest.emit()
    scope.arrays[s.result] = target


def neighbours(s: Gather) -> tuple[Node, Node] | None:
    """The first index and the mask of a gather of neighbours in main memory; None for another."""
    first = first_of(s.index) if s.memory.space == GLOBAL else None
    return None if first is None or s.mask is None else (first, s.mask)
