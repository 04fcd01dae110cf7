"""Gradients: a reverse walk over graph nodes in which each operation's record gives more nodes.

What is a function of one node, element by element and by several ways, as activations are, hands
its gradient on at once: times its derivative. That is made of values of the forward pass alone, so
that it can be computed there, and kept in their place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from weakref import WeakKeyDictionary

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from hal.tile.node import Node
from stack.framework import store
from stack.framework.cell import Cell, Hook, hooked, owners
from stack.ops import OPS, full_like, is_exchange, is_message, mul
from stack.ops.adjoint import Leads, Totals, accumulate, adjoints, flow
from stack.ops.operator import OpKind

MOST_BETWEEN = 32
"""Nodes between a function and its argument, up to which that is looked for."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How the gradient of a leaf goes on: `pull` gives from it, and from which of `sources` lead to
    what is wanted, that of each of them, or None. For functions whose gradient the user writes."""

    sources: tuple[Node, ...]
    pull: Callable[[Node, Sequence[bool]], Sequence[Node | None]]


rules: WeakKeyDictionary[Node, Rule] = WeakKeyDictionary()
"""The rules of leaves, while these live."""


def gradients(
    outputs: Iterable[tuple[Node, Node]],
    wanted: Callable[[Node], bool],
    exchanges: list[Node] | None = None,
) -> dict[Node, Node]:
    """The derivatives by every wanted node, given (output, derivative by it) pairs; in the outputs'
    order.

    Zero for a wanted node that is only reached through operations without a derivative. Nothing
    flows through leaves, so detached values end the walk. The sum's order depends on the
    graph alone. `exchanges` gets what is computed with other ranks, in the order of the walk.
    """

    users: Counter[Node] = Counter()

    def is_inner(inner: Sequence[Node], leads: Leads) -> bool:
        """Whether nobody but each other uses these nodes, nor asks for their gradients."""
        if not users:
            through = (n for n in leads if leads[n] and n.dtype.is_float)
            users.update(s for n in through for s in _leading(n, leads))
        own = Counter(s for n in inner for s in _leading(n, leads))
        return all(own[m] == users[m] and not wanted(m) and not _hooks(m) for m in inner[1:])

    def visit(n: Node, total: Totals, leads: Leads) -> None:
        for hook in _hooks(n):
            total[n] = hook(total[n])
        flowed = _flow_at_once(n, total, leads, is_inner) or _flow(n, total, leads)
        if exchanges is not None and is_exchange(n):
            exchanges.extend(flowed)

    return adjoints(outputs, wanted, _below, visit)


def _hooks(n: Node) -> list[Hook]:
    """What looks at the gradient of a node before it goes on."""
    if n in hooked:
        return list(hooked[n].values())
    leaf = gradient_leaf(n)
    return [] if leaf is None else list(leaf.hooks.values())


def _below(n: Node) -> tuple[Node, ...]:
    if n.op == "input" and n in rules:
        return rules[n].sources
    history = store.histories.get(n)
    return n.srcs if history is None else (history,)


def check_told_apart(exchanges: Iterable[Node]) -> None:
    """Of exchanges that one plan begins, messages between the same ranks have names of their own.

    Each rank begins them in an order that follows from its own graph, so only names tell the ranks
    which is which. Raises InvalidCall.
    """
    messages = Counter((n["group"], n["pairs"], n["name"]) for n in exchanges if is_message(n))
    for (group, pairs, name), number in messages.items():
        if number > 1:
            raise InvalidCall(
                f"{number} messages {pairs} among {group!r} are called {name!r} in one captured "
                "function or backward pass, and could come for each other; give each a `name` of "
                "its own, on both ranks"
            )


def _flow(n: Node, total: Totals, leads: Leads) -> list[Node]:
    """What flows to the operands."""
    if n in store.histories:
        accumulate(total, store.histories[n], total[n])
        return []
    if n.op == "input" and n in rules:
        rule = rules[n]
        lead = [bool(leads[s]) for s in rule.sources]
        for source, d in zip(rule.sources, rule.pull(total[n], lead), strict=True):
            if d is not None:
                accumulate(total, source, d)
        return []
    return flow(n, total, leads)


def _flow_at_once(
    n: Node, total: Totals, leads: Leads, is_inner: Callable[[Sequence[Node], Leads], bool]
) -> list[Node]:
    """What flows to the one node that n is a function of, if there is one, by several ways, and
    nothing else has to do with what is between them."""
    *inner, source = _way(n, leads) or (n,)
    if source is n or not is_inner([n, *inner], leads):
        return []
    by: Totals = {n: full_like(n, 1)}
    for m in (n, *inner):
        if m in by:
            _flow(m, by, leads)
    if source not in by:
        return []
    accumulate(total, source, d := mul(total[n], by[source]))
    return [d]


def _way(n: Node, leads: Leads) -> Sequence[Node]:
    """What is between a node and the next one of which it is a function alone, from behind, and
    that one; empty where there is none, or one way only leads to it."""
    if n.dtype.is_narrow or not n.dtype.is_float or len(_leading(n, leads)) < 2:
        return ()
    front, way, m = set[Node](), list[Node](), n
    while len(way) < MOST_BETWEEN:
        row = OPS[m.op]
        by_elements = row.kind is OpKind.ELEMENTWISE and row.gradient is not None
        if m.dtype is not n.dtype or not (by_elements or m in store.histories):
            return ()
        front.update(_leading(m, leads))
        front.discard(m)
        m = max(front, key=leads.__getitem__)
        way.append(m)
        if len(front) == 1:
            return way
    return ()


def _leading(n: Node, leads: Leads) -> list[Node]:
    """The operands that a gradient flows to, each as often as it is one."""
    return [s for s in _below(n) if leads[s] and s.dtype.is_float]


def gradient_leaf(n: Node) -> Cell | None:
    """The cell that gathers a gradient for this node: a parameter, or another leaf that requires
    one."""
    found = owners.get(n)
    cell = None if found is None else found()
    return cell if cell is not None and cell.requires_grad and cell.owns else None


def leads_to_leaf(root: Node) -> bool:
    """Whether a gradient by the node reaches a cell that gathers one."""
    stack, seen = [root], set[Node]()
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if gradient_leaf(n) is not None:
            return True
        stack += _below(n)
    return False
