"""Which blocks of a memory have no element in common, and which lanes reach which of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from hal.tile.kernel import Access, For, Load, Memory, Store
from hal.tile.node import Node, toposort
from hal.tile.walk import accesses, defines, statements
from stack.compiler.lower.simt.layout import Layout, bits


def pattern(access: Access, layout: Layout, lanes: int) -> Hashable | None:
    """What is equal for two accesses of a memory only if each lane reaches the same elements in
    both; None if more than one lane may reach an element."""
    alone = bits(layout) == lanes - 1 and _extent(access, [s.size for s in layout]) is not None
    return (access.offset, access.strides, layout) if alone else None


def _extent(access: Access, shape: Sequence[int]) -> int | None:
    """The elements from a block's first to its last, if they are known and all different."""
    reach = 1
    if any(s.op != "const" for s in access.strides):
        return None
    pairs = ((s["value"], d) for s, d in zip(access.strides, shape, strict=True) if d > 1)
    for stride, size in sorted(pairs):
        if stride < reach:
            return None
        reach += stride * (size - 1)
    return reach


def steps_apart(s: For, memory: Memory) -> bool:
    """Whether the body reaches a memory at one block alone, and each step at another one."""
    touching = [x for x in statements(s.body) if any(m == memory for m, _, _ in accesses(x))]
    found = {(x.source, x.result.shape) for x in touching if isinstance(x, Load)}
    found |= {(x.target, x.value.shape) for x in touching if isinstance(x, Store)}
    places = {(a.offset, a.strides, shape) for a, shape in found}
    if len(places) != 1 or not all(isinstance(x, Load | Store) for x in touching):
        return False
    (access, shape), *_ = found
    extent, by = _extent(access, shape), _coefficient(access.offset, s.index, changed_by(s))
    if extent is None or by is None or s.step.op != "const":
        return False
    return abs(by) * int(s.step["value"]) >= extent


def _coefficient(n: Node, index: Node, changing: frozenset[Node]) -> int | None:
    """By how much an offset grows with a loop's index; None where it does not grow evenly."""
    if n is index:
        return 1
    if changing.isdisjoint(toposort([n])):
        return 0
    if n.op in ("add", "sub"):
        a, b = (_coefficient(x, index, changing) for x in n.srcs)
        return None if a is None or b is None else a + b if n.op == "add" else a - b
    factors = [x["value"] for x in n.srcs if x.op == "const"]
    if n.op != "mul" or not factors:
        return None
    a = _coefficient(next(x for x in n.srcs if x.op != "const"), index, changing)
    return None if a is None else a * int(factors[0])


def changed_by(s: For) -> frozenset[Node]:
    """What is not the same in all steps of a loop."""
    found = {s.index, *(c.var for c in s.carried)}
    for inner in statements(s.body):
        found.update(defines(inner))
        if isinstance(inner, For):
            found.update((inner.index, *(c.var for c in inner.carried)))
    return frozenset(found)
