"""Groups of groups: ranks in hosts, hosts in supernodes."""

from __future__ import annotations

from collections.abc import Sequence

from hal.core.facts import dataclass
from stack.comm.plan.error import PlanError
from stack.comm.plan.generate.request import Request


@dataclass(frozen=True, slots=True)
class Node:
    """A group of nodes, or one rank (`level` 0, no children). All children are one level lower."""

    level: int
    children: tuple[Node, ...] = ()
    rank: int = -1


def tree_of(request: Request) -> Node:
    """The tree of the request's `places`, from the innermost group that has all ranks in it.

    Raises PlanError for places that are not given.
    """
    if not request.places:
        raise PlanError("a hierarchical program needs to know where the ranks are (`places`)")
    top = _group(request.places, list(range(request.size)), len(request.places[0]))
    while len(top.children) == 1 and top.level > 1:
        top = top.children[0]
    return top


def _group(places: Sequence[tuple[int, ...]], ranks: Sequence[int], levels: int) -> Node:
    """The node of ranks whose places agree but for the last `levels` numbers."""
    if levels == 0:
        return Node(1, tuple(Node(0, (), rank) for rank in ranks))
    inside: dict[int, list[int]] = {}
    for rank in ranks:
        inside.setdefault(places[rank][-levels], []).append(rank)
    children = (_group(places, inside[key], levels - 1) for key in sorted(inside))
    return Node(levels + 1, tuple(children))


def widths(node: Node) -> list[int]:
    """The most children that a node of level 1, 2, ... has."""
    if node.level == 0:
        return []
    below = [widths(child) for child in node.children]
    return [*map(max, zip(*below, strict=True)), len(node.children)]


def nodes(node: Node) -> list[Node]:
    """The groups in the tree, the lower levels first."""
    if node.level == 0:
        return []
    found = [n for child in node.children for n in nodes(child)]
    return sorted([*found, node], key=lambda n: n.level)


def path(node: Node, rank: int) -> tuple[list[Node], list[int]]:
    """The groups that a rank is in, from level 1 up, and its number among the children of each."""
    if node.level == 0:
        return [], []
    for number, child in enumerate(node.children):
        if rank in ranks(child):
            groups, numbers = path(child, rank)
            return [*groups, node], [*numbers, number]
    raise PlanError(f"rank {rank} is in no group")


def ranks(node: Node) -> frozenset[int]:
    """The ranks in a node."""
    if node.level == 0:
        return frozenset([node.rank])
    return frozenset().union(*map(ranks, node.children))
