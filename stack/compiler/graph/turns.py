"""Which exchange between ranks comes first: told by the graph alone, before anything depends on the
device that it is compiled for. Ranks with devices of several kinds begin them in one order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hal.tile.node import Node, node, rebuild, toposort
from stack.ops import is_exchange


def numbered(outputs: tuple[Node, ...]) -> tuple[Node, ...]:
    """The outputs with the attribute `turn` on each exchange below them: its number among them.

    Exchanges are numbered by the longest way to them, so that what can be sent early is: in a
    backward pass the gradients of the last layers. So each comes after those that it depends on.
    They are numbered before anything is simplified: a number of a rank's own that is 0 or 1 would
    shorten the way on that rank alone, or make one of two exchanges.

    Exchanges that have the attribute already keep the order that it gives them among each other:
    the way to one leads through the one before it, too.
    """
    order, before = list(toposort(outputs)), _before(outputs)
    depth: dict[Node, int] = {}
    for n in in_order(outputs):
        below = (*n.srcs, before[n]) if n in before else n.srcs
        depth[n] = 1 + max((depth[s] for s in below), default=0)
    exchanges = sorted(filter(is_exchange, order), key=depth.__getitem__)
    turn = {n: number for number, n in enumerate(exchanges)}
    done: dict[Node, Node] = {}
    for n in order:
        srcs = tuple(done[s] for s in n.srcs)
        done[n] = (
            node(n.op, n.type, srcs, **{**dict(n.attrs), "turn": turn[n]})
            if n in turn
            else rebuild(n, srcs)
        )
    return tuple(done[n] for n in outputs)


def _before(outputs: Sequence[Node]) -> dict[Node, Node]:
    """The exchange that is to come before each one, where they have an order."""
    given = [n for n in toposort(outputs) if "turn" in dict(n.attrs)]
    return dict(pairwise(sorted(given, key=lambda n: -int(n["turn"]))))


def in_order(outputs: Sequence[Node]) -> list[Node]:
    """Every node after its operands, and exchanges that have an order in it."""
    before = _before(outputs)
    found: dict[Node, None] = {}
    begun: set[Node] = set()
    stack = list(reversed(outputs))
    while stack:
        n = stack[-1]
        below = (*n.srcs, before[n]) if n in before else n.srcs
        waiting = [s for s in below if s not in found]
        if n in found or not waiting:
            stack.pop()
            found[n] = None
            continue
        begun.add(n)
        assert begun.isdisjoint(waiting), f"{n.op} waits for what waits for it"
        stack += reversed(waiting)
    return list(found)


def in_turns(roots: Sequence[Node]) -> list[Node]:
    """Nodes that are in topological order, in another such order: first what the first exchange
    waits for and that exchange, then so for the second one, then all others."""
    exchanges = sorted(filter(is_exchange, roots), key=lambda n: int(n["turn"]))
    found: dict[Node, None] = {}
    for exchange in exchanges:
        below = set(toposort((exchange,)))
        found.update(dict.fromkeys(n for n in roots if n in below))
    return list(found | dict.fromkeys(roots))
