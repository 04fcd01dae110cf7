"""Two binary trees, each for one half of the vector. A rank that is inside one is a leaf of the
other, so that all ranks send and receive about the whole vector once up and once down, in turns
that grow as log2(n) (Sanders, Speck and Träff, 2009)."""

from __future__ import annotations

from hal.core.facts import dataclass
from stack.comm.plan.generate.request import Partials, Request, draft
from stack.comm.plan.program import Program


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of ranks: its root, the children of each rank, and the ranks from the root down."""

    root: int
    children: dict[int, tuple[int, ...]]
    down: tuple[int, ...]


def _parent(number: int, size: int) -> int:
    """The parent in a binary tree in the order of its numbers: odd numbers are leaves, 0 the root.

    A number with the lowest bit b stands between its children at distance b / 2, so its own parent
    is the number at distance b whose lowest bit is 2 b; where that one is missing, the one below.
    """
    low = number & -number
    above = (number - low) | 2 * low
    return above if above < size else number - low


def double_tree(size: int) -> tuple[Tree, Tree]:
    """Two trees: the second one is the first one mirrored, or shifted by one where n is odd."""
    shift = [size - 1 - r for r in range(size)] if size % 2 == 0 else [*range(1, size), 0]
    return _tree(list(range(size))), _tree(shift)


def _tree(ranks: list[int]) -> Tree:
    """The binary tree in which each number is replaced by its rank."""
    size = len(ranks)
    children: dict[int, tuple[int, ...]] = dict.fromkeys(ranks, ())
    for number in range(1, size):
        children[ranks[_parent(number, size)]] += (ranks[number],)
    down = [ranks[0]]
    for rank in down:  # which grows
        down.extend(children[rank])
    return Tree(ranks[0], children, tuple(down))


def all_reduce(request: Request) -> Program:
    """Sums go up both trees and results come down, part after part.

    Both trees use the messages between two ranks, which go in order. So a part comes down when
    later ones have gone up for as many turns as the trees are deep, and none waits for another.
    """
    made = draft("double-tree", request, 2 * request.cut)
    sums = Partials(made, request.wide)
    trees = double_tree(request.size)
    lag = request.size.bit_length()
    for turn in range(request.cut + lag):
        for half, tree in enumerate(trees):
            if turn < request.cut:
                block = half * request.cut + turn
                for parent in reversed(tree.down):
                    for child in tree.children[parent]:
                        final = (parent, child) == (tree.root, tree.children[tree.root][-1])
                        taken, own = sums.at(child, [block]), sums.at(parent, [block])
                        put = sums.room(parent, [block], final)
                        made.send_reduce(child, taken, parent, put, own, final)
            if turn >= lag:
                block = half * request.cut + turn - lag
                for parent in tree.down:
                    for child in tree.children[parent]:
                        put = [made.result(child, block)]
                        made.send(parent, [made.result(parent, block)], child, put)
    return made.program()
