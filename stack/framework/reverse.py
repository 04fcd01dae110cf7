"""Gradients: a reverse walk over graph nodes in which each operation's record gives more nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from weakref import WeakKeyDictionary

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from hal.tile.node import Node
from stack.framework import store
from stack.framework.cell import Cell, Hook, hooked, owners
from stack.ops import is_exchange, is_message
from stack.ops.adjoint import Leads, Totals, accumulate, adjoints, flow


@dataclass(frozen=True, slots=True)
class Rule:
    """How the gradient of a leaf goes on: `pull` gives from it that of each of `sources`, or None.
    For functions whose gradient the user writes."""

    sources: tuple[Node, ...]
    pull: Callable[[Node], Sequence[Node | None]]


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

    def visit(n: Node, total: Totals, leads: Leads) -> None:
        for hook in _hooks(n):
            total[n] = hook(total[n])
        flowed = _flow(n, total, leads)
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
        for source, d in zip(rule.sources, rule.pull(total[n]), strict=True):
            if d is not None:
                accumulate(total, source, d)
        return []
    return flow(n, total, leads)


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
