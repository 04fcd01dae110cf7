"""The loop axes that the roots of one kernel share, each parallel or reduced."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import TypeVar

from hal.core.facts import dataclass
from hal.tile.node import Node
from hal.tile.size import equal
from stack.compiler.graph.access import Axis, Index, Materialise, Split, Want, axis_index
from stack.ops.attention import SEALED

Domain = tuple[tuple[int, bool], ...]
"""(size, reduced) of each loop axis before splitting; neighbours of one kind are one axis."""


def domain_of(root: Node) -> Domain:
    """The domain of a root on its own."""
    if root.op == "reduce":
        reduced = set(root["axes"])
        out: list[tuple[int, bool]] = []
        for i, size in enumerate(root.srcs[0].shape):
            if size == 1:
                continue
            if out and out[-1][1] == (i in reduced):
                out[-1] = (out[-1][0] * size, i in reduced)
            else:
                out.append((size, i in reduced))
        return tuple(out)
    if root.op in ("matmul", "attention"):
        *batch, m, n = root.shape
        return ((prod(batch), False), (m, False), (n, False))
    if root.op in SEALED:
        *batch, size = root.shape
        return ((prod(batch), False), (size, False))
    return ((root.type.size, False),) if root.type.size != 1 else ()


def same_domain(a: Domain, b: Domain) -> bool:
    """Whether two domains are known to be the same."""
    return len(a) == len(b) and all(
        r is s and equal(m, n) for (m, r), (n, s) in zip(a, b, strict=True)
    )


def elements(domain: Domain) -> int:
    """The iterations of a domain."""
    return prod(size for size, _ in domain)


def rows(domain: Domain) -> int:
    """The parallel iterations of a domain."""
    return prod(size for size, reduced in domain if not reduced)


Group = tuple[Axis, ...]
"""The loop axes of one axis of a domain, outer first."""


@dataclass(frozen=True, slots=True)
class Space:
    """A domain as loop axes, split as views need: a group of them for each of its axes."""

    groups: tuple[Group, ...]
    reduced: frozenset[Axis]
    axes: Group
    """Those of all groups."""

    @staticmethod
    def of(domain: Domain) -> Space:
        axes = [Axis(size) for size, _ in domain]
        reduced = (a for a, (_, r) in zip(axes, domain, strict=True) if r)
        return Space.over(((a,) for a in axes), frozenset(reduced))

    @staticmethod
    def over(groups: Iterable[Group], reduced: frozenset[Axis] = frozenset()) -> Space:
        chosen = tuple(groups)
        return Space(chosen, reduced, tuple(a for g in chosen for a in g))

    def of_groups(self, count: int) -> Space:
        """The space of the first groups alone."""
        if count == len(self.groups):
            return self
        return Space.over(self.groups[:count], self.reduced)

    def split(self, s: Split) -> Space:
        """Two loops for one."""
        pair = (Axis(s.axis.size // s.inner), Axis(s.inner))
        groups = (tuple(b for a in g for b in (pair if a is s.axis else (a,))) for g in self.groups)
        return Space.over(groups, self.reduced | set(pair if s.axis in self.reduced else ()))

    @property
    def parallel(self) -> list[Axis]:
        return [a for a in self.axes if a not in self.reduced]

    def index(self, root: Node) -> Index:
        """Where the root's element of this iteration is: over all axes, or over the parallel
        ones."""
        return axis_index(self.axes if self.is_full(root) else self.parallel)

    def is_full(self, root: Node) -> bool:
        """Whether the root has an element for every iteration (and not one for every row)."""
        return root.op != "reduce" and equal(root.type.size, prod(a.size for a in self.axes))


T = TypeVar("T")


def solved(space: Space, read: Callable[[Space], T | Want]) -> T | Materialise:
    """What `read` makes of a space whose axes are split as it wants, or what needs a buffer before
    it can be read."""
    found = read(space)
    while isinstance(found, Split):
        space = space.split(found)
        found = read(space)
    return found
