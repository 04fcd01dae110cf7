"""From nodes that refer to leaves to a request that an engine can run."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from hal.tile.node import Node, rebuild
from stack import ops as g
from stack.framework import store


class Inlining:
    """Rewrites nodes so that every leaf with a value, and every kept leaf, is an input, numbered as
    it is met.

    Leaves that only have an origin are replaced by it, and nodes by the `leaves` that have their
    values. `inputs` holds the leaves in the order of their numbers, `fed` every node that a leaf is
    at or below, whether it has a value or an origin.
    """

    def __init__(
        self, kept: Container[Node] = (), leaves: Mapping[Node, Node] = store.leaves
    ) -> None:
        self.kept, self._leaves = kept, leaves
        self.inputs: list[Node] = []
        self.fed: set[Node] = set()
        self._done: dict[Node, Node | None] = {}

    def add_input(self, leaf: Node) -> Node:
        """The next input, which stands for the leaf."""
        done = self._done.get(leaf)
        if done is None:
            done = self._done[leaf] = g.input(len(self.inputs), leaf.type)
            self.inputs.append(leaf)
            self.fed.add(leaf)
        return done

    def __call__(self, root: Node) -> Node | None:
        """The rewritten node; None when it depends on an argument of a trace that is over."""
        stack, known = [root], self._done
        begun: dict[Node, tuple[Node, ...]] = {}
        while stack:
            n = stack[-1]
            if n in known:
                stack.pop()
                continue
            below = begun.get(n)
            if below is None:  # else all below it has been rewritten since
                below = begun[n] = self._below(n)
                waiting = [s for s in below if s not in known]
                if waiting:
                    stack.extend(reversed(waiting))
                    continue
            stack.pop()
            if n.op == "input" and (n in self.kept or n in store.arrays):
                known[n] = self.add_input(n)
            else:
                if n.op == "input" or not self.fed.isdisjoint(below):
                    self.fed.add(n)
                if n.op == "input" or below is not n.srcs:
                    known[n] = self._done[below[0]] if below else None
                else:
                    srcs = [found for s in below if (found := self._done[s]) is not None]
                    known[n] = rebuild(n, tuple(srcs)) if len(srcs) == len(below) else None
        return known[root]

    def _below(self, n: Node) -> tuple[Node, ...]:
        if n.op == "input":
            origin = None if n in self.kept else store.origins.get(n)
            return () if origin is None else (origin,)
        leaf = self._leaves.get(n)
        return n.srcs if leaf is None else (leaf,)


def depends(roots: Iterable[Node], on: Container[Node], through_known: bool = False) -> bool:
    """Whether the values read one of these leaves when they are computed (again, with
    `through_known`)."""
    stack, seen = list(roots), set[Node]()
    while stack:
        n = stack.pop()
        if n in on:
            return True
        if n in seen or (not through_known and n in store.leaves):
            continue
        seen.add(n)
        origin = store.origins.get(n)
        stack.extend(n.srcs if origin is None else (origin,))
    return False
