"""The reverse walk that gives derivatives of graph nodes as more nodes, by the rows' gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hal.tile.node import Node, rebuild, toposort
from stack.ops.binary import add
from stack.ops.convert import cast
from stack.ops.leaves import full_like
from stack.ops.operator import OpKind
from stack.ops.table import OPS

__all__: list[str] = []

Totals = dict[Node, Node]
"""The derivative by each node, as far as it is known."""

Leads = dict[Node, int]
"""The place in the walk of each node at or below which a wanted node lies, from 1 on; of others
0."""


def adjoints(
    outputs: Iterable[tuple[Node, Node]],
    wanted: Callable[[Node], bool],
    below: Callable[[Node], Sequence[Node]] = lambda n: n.srcs,
    visit: Callable[[Node, Totals, Leads], object] | None = None,
) -> Totals:
    """The derivatives by every wanted node, given (output, derivative by it) pairs; in the outputs'
    order. The sum's order depends on the graph alone.

    Zero for a wanted node that is only reached through operations without a derivative. `below`
    says what a node is computed from, `visit` hands the derivative by a node on to these; without
    it the rows do.
    """
    total: Totals = {}
    for n, d in outputs:
        accumulate(total, n, d)
    order = list(toposort(total, below))
    leads: Leads = {}
    for place, n in enumerate(order, 1):
        leads[n] = place if any(leads[s] for s in below(n)) or wanted(n) else 0
    for n in reversed(order):
        if n in total and leads[n]:
            (visit or flow)(n, total, leads)
    return {n: total[n] if n in total else full_like(n, 0) for n in order if wanted(n)}


def flow(n: Node, total: Totals, leads: Leads) -> list[Node]:
    """What flows to the operands that lead to a wanted node, by the node's row."""
    if OPS[n.op].gradient is None or not any(leads[s] for s in n.srcs):
        return []
    flowed = []
    for source, d in zip(n.srcs, _pulled(n, total[n]), strict=True):
        if d is not None and leads[source] and source.dtype.is_float:
            accumulate(total, source, d)
            flowed.append(d)
    return flowed


def _pulled(n: Node, d: Node) -> Sequence[Node | None]:
    """The derivatives by the operands of a node that has a gradient. Those of narrow floats that
    take several operations are computed in the type that these are computed in, and rounded once.
    """
    row = OPS[n.op]
    assert row.gradient is not None
    found: Sequence[Node | None] = row.gradient(n, d)
    known = {n, d, *n.srcs}
    if (
        not n.dtype.is_narrow
        or row.kind is not OpKind.ELEMENTWISE
        or not _rounds_twice(found, known)
    ):
        return found
    wide = n.dtype.computed_in
    srcs = tuple([cast(s, wide) if s.dtype is n.dtype else s for s in n.srcs])
    twin, by = row(*srcs, **dict(n.attrs)), cast(d, wide)
    done = {s: s for s in (*srcs, by)} | {twin: cast(n, wide)}
    found = row.gradient(twin, by)
    return [None if p is None else cast(_replaced(p, done), n.dtype) for p in found]


_EXACT = frozenset({"neg", "where", "const", "expand", "reshape", "cast"})


def _rounds_twice(found: Sequence[Node | None], known: set[Node]) -> bool:
    """Whether several operations that round lead from known nodes to one of these."""
    for f in found:
        stack, rounded = [] if f is None else [f], set[Node]()
        while stack:
            n = stack.pop()
            if n in known or n in rounded:
                continue
            if n.op not in _EXACT and n.dtype.is_narrow:
                rounded.add(n)
            stack += n.srcs
        if len(rounded) > 1:
            return True
    return False


def _replaced(n: Node, done: dict[Node, Node]) -> Node:
    """A node over others than those that are keys."""
    found = done.get(n)
    if found is None:
        found = done[n] = rebuild(n, tuple([_replaced(s, done) for s in n.srcs]))
    return found


def accumulate(total: Totals, n: Node, d: Node) -> None:
    """Add a derivative by a node to those known."""
    total[n] = add(total[n], d) if n in total else d
