"""Where a pure expression is computed: once, just before its first use, in the innermost block that
holds all of its uses."""

from __future__ import annotations

from collections.abc import Iterator

from hal.tile.kernel import For, Kernel
from hal.tile.node import Node, toposort
from hal.tile.walk import Block, blocks, reads

Position = tuple[int, ...]
"""The index of a statement, then (block of it, index in that block) as often as needed. The index
behind the last statement of a loop's body is where its `next` values are computed."""

INLINE = frozenset({"const", "var", "scalar"})
"""Leaves that need no computation."""


def place(kernel: Kernel) -> dict[Position, list[Node]]:
    """The expressions to compute at each position, sources first."""
    found: dict[Node, Position] = {}
    uses = list(_uses(kernel.body, ()))
    for root, position in uses:
        _meet(found, root, position)
    order = list(toposort(root for root, _ in uses))
    for node in reversed(order):
        for source in node.srcs:
            _meet(found, source, found[node])
    placed: dict[Position, list[Node]] = {}
    for node in order:
        if node.op not in INLINE:
            placed.setdefault(found[node], []).append(node)
    return placed


def _uses(block: Block, prefix: Position) -> Iterator[tuple[Node, Position]]:
    for i, statement in enumerate(block):
        here = (*prefix, i)
        for root in reads(statement):
            yield root, here
        for b, inner in enumerate(blocks(statement)):
            yield from _uses(inner, (*here, b))
        if isinstance(statement, For):
            for c in statement.carried:
                yield c.next, (*here, 0, len(statement.body))


def _meet(found: dict[Node, Position], node: Node, position: Position) -> None:
    found[node] = _first_common(found.get(node, position), position)


def _first_common(a: Position, b: Position) -> Position:
    """The earlier statement in the innermost block that holds both."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return (*a[:i], min(x, y)) if i % 2 == 0 else a[:i]
    return min(a, b, key=len)
