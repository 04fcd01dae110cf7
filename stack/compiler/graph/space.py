"""The loop axes that the roots of one kernel share, each parallel or reduced."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from hal.tile.node import Node
from stack.compiler.graph.access import Axis, Index, axis_index

Domain = tuple[tuple[int, bool], ...]
"""(size, reduced) of each loop axis before splitting; neighbours of one kind are one axis."""


def domain_of(root: Node) -> Domain:
    """The domain of a root on its own."""
    if root.op == "reduce":
        return _merged(root.srcs[0].shape, set(root["axes"]))
    if root.op in ("matmul", "attention"):
        *batch, m, n = root.shape
        return ((prod(batch), False), (m, False), (n, False))
    return ((root.type.size, False),) if root.type.size != 1 else ()


def _merged(shape: tuple[int, ...], reduced: set[int]) -> Domain:
    out: list[tuple[int, bool]] = []
    for i, size in enumerate(shape):
        if size == 1:
            continue
        if out and out[-1][1] == (i in reduced):
            out[-1] = (out[-1][0] * size, i in reduced)
        else:
            out.append((size, i in reduced))
    return tuple(out)


def elements(domain: Domain) -> int:
    """The iterations of a domain."""
    return prod(size for size, _ in domain)


def rows(domain: Domain) -> int:
    """The parallel iterations of a domain."""
    return prod(size for size, reduced in domain if not reduced)


@dataclass(eq=False, slots=True)
class Space:
    """A domain as loop axes, split as views need."""

    axes: list[Axis]
    reduced: set[Axis]

    @staticmethod
    def of(domain: Domain) -> Space:
        axes = [Axis(size) for size, _ in domain]
        return Space(axes, {a for a, (_, r) in zip(axes, domain, strict=True) if r})

    def split(self, axis: Axis, inner: int) -> None:
        """Make two loops of one."""
        pair = [Axis(axis.size // inner), Axis(inner)]
        at = self.axes.index(axis)
        self.axes[at : at + 1] = pair
        if axis in self.reduced:
            self.reduced |= set(pair)

    @property
    def parallel(self) -> list[Axis]:
        return [a for a in self.axes if a not in self.reduced]

    @property
    def domain(self) -> Domain:
        """The domain whose axes these are without a split."""
        return tuple((a.size, a in self.reduced) for a in self.axes)

    def index(self, root: Node) -> Index:
        """Where the root's element of this iteration is: over all axes, or over the parallel
        ones."""
        return axis_index(self.axes if self.is_full(root) else self.parallel)

    def is_full(self, root: Node) -> bool:
        """Whether the root has an element for every iteration (and not one for every row)."""
        return root.op != "reduce" and root.type.size == prod(a.size for a in self.axes)
