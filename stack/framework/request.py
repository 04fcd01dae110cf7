"""From nodes that refer to leaves to a request that an engine can run."""

from __future__ import annotations

from collections.abc import Container, Iterable

from hal.tile.node import Node, rebuild
from stack import ops as g
from stack.framework import store


class Inlining:
    """Rewrites nodes so that every leaf with a value, and every kept leaf, is an input, numbered as
    it is met.

    Leaves that only have an origin are replaced by it. `inputs` holds the leaves in the order of
    their numbers.
    """

    def __init__(self, kept: Container[Node] = ()) -> None:
        self.kept = kept
        self.inputs: list[Node] = []
        self._done: dict[Node, Node | None] = {}

    def add_input(self, leaf: Node) -> Node:
        """The next input, which stands for the leaf."""
        done = self._done.get(leaf)
        if done is None:
            done = self._done[leaf] = g.input(len(self.inputs), leaf.type)
            self.inputs.append(leaf)
        return done

    def __call__(self, root: Node) -> Node | None:
        """The rewritten node; None when it depends on an argument of a trace that is over."""
        stack = [root]
        while stack:
            n = stack[-1]
            below = [s for s in self._below(n) if s not in self._done]
            if below and n not in self._done:
                stack.extend(reversed(below))
                continue
            stack.pop()
            if n not in self._done:
                self._done[n] = self._rewritten(n)
        return self._done[root]

    def _below(self, n: Node) -> tuple[Node, ...]:
        if n.op == "input":
            return () if n in self.kept or n not in store.origins else (store.origins[n],)
        return (store.leaves[n],) if n in store.leaves else n.srcs

    def _rewritten(self, n: Node) -> Node | None:
        if n.op == "input" and (n in self.kept or n in store.arrays):
            return self.add_input(n)
        below = [self._done[s] for s in self._below(n)]
        if n.op == "input" or n in store.leaves:
            return below[0] if below else None
        srcs = [s for s in below if s is not None]
        return rebuild(n, tuple(srcs)) if len(srcs) == len(below) else None


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
        stack.extend((store.origins[n],) if n in store.origins else n.srcs)
    return False
