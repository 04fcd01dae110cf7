"""Which roots share a kernel.

A cluster is one kernel: roots over one *domain*, the loop axes in order, each parallel or reduced.
A root joins the cluster of something that it reads when both see the same element of it at the same
time, so that the value stays in a register (or in the cache, between two passes over a row).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Literal

from hal.tile.node import Node
from stack.compiler.access import Affine, Axis, Index, NeedSplit, NotAffineError, axis_index
from stack.compiler.expr import Expr, Read, Walk, reads
from stack.compiler.roots import Home
from stack.compiler.views import permute_forward

Domain = tuple[tuple[int, bool], ...]
"""(size, reduced) of each loop axis before splitting; neighbours of one kind are one axis."""

Kind = Literal["loops", "matmul", "scan", "scatter_add"]

_KINDS: Mapping[str, Kind] = {
    "matmul": "matmul",
    "scan": "scan",
    "scatter_add": "scatter_add",
}

MOST_ROOTS = 24
SERIAL = 1 << 14
"""Elements up to which it does not matter that one program instance does all the work."""


@dataclass(eq=False, slots=True)
class Cluster:
    """The roots of one kernel, in topological order."""

    kind: Kind
    domain: Domain
    roots: list[Node] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Space:
    """A cluster's loop axes after splitting, with which of them are reduced."""

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

    def index(self, root: Node) -> Index:
        """Where the root's element of this iteration is: over all axes, or over the parallel
        ones."""
        full = is_full(root, self)
        return axis_index(self.axes if full else self.parallel)


def is_full(root: Node, space: Space) -> bool:
    """Whether the root has an element for every iteration (and not one for every row)."""
    return root.op != "reduce" and root.type.size == prod(a.size for a in space.axes)


def domain_of(root: Node) -> Domain:
    """The domain of a root on its own."""
    if root.op == "reduce":
        return _merged(root.srcs[0].shape, set(root["axes"]))
    if root.op == "matmul":
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


def expression(root: Node, space: Space, walk: Walk) -> Expr:
    """What the root's element is computed from; for a reduction, what it adds up."""
    if root.op == "reduce":
        return walk.operand(root.srcs[0], axis_index(space.axes))
    return walk.value(root, space.index(root))


def stored_from(root: Node, cluster: Iterable[Node]) -> tuple[Node, list[Node]] | None:
    """(source, views) when the root is another root of the cluster in another order, and nothing
    else."""
    path: list[Node] = []
    n = root
    while n.op in ("permute", "reshape", "contiguous") and (n is root or n not in cluster):
        path.append(n)
        n = n.srcs[0]
    return (
        (n, path[::-1]) if path and n in cluster and any(v.op == "permute" for v in path) else None
    )


def forward(path: list[Node], index: Index) -> Index:
    """Follow views from source to result."""
    for view in path:
        if view.op == "permute":
            index = permute_forward(view, index)
    return index


def settle(cluster: Cluster, homes: Mapping[Node, Home]) -> tuple[Space, dict[Node, Expr]]:
    """The cluster's axes, split as its views need, and each root's expression over them.

    Raises NotAffineError when a view cannot be expressed.
    """
    space = Space.of(cluster.domain)
    while True:
        try:
            walk = Walk(homes, lambda n, index: homes[n].offset(index))
            exprs: dict[Node, Expr] = {}
            for root in cluster.roots:
                permuted = stored_from(root, exprs)
                if permuted:
                    homes[root].offset(forward(permuted[1], space.index(permuted[0])))
                    continue
                homes[root].offset(space.index(root))
                if root.op != "matmul":
                    exprs[root] = expression(root, space, walk)
                else:
                    exprs[root] = Expr(root.dtype)
        except NeedSplit as need:
            if cluster.kind == "matmul" and need.axis not in space.axes[:-2]:
                raise NotAffineError from need
            space.split(need.axis, need.inner)
        else:
            return space, exprs


class Fusion:
    """Clusters of a graph's roots, built by adding one root after the other."""

    def __init__(self, roots: Mapping[Node, None], homes: dict[Node, Home]) -> None:
        self.homes = homes
        self.clusters: list[Cluster] = []
        self.of: dict[Node, Cluster] = {}
        self.needs = {r: _root_deps(r, roots) for r in roots}
        self._readers: dict[Node, list[Cluster]] = {}
        self._after: dict[Cluster, set[Cluster]] = {}
        for root in roots:
            if root.op not in ("input", "concat"):
                self._add(root)
        self._number = {root: i for i, root in enumerate(roots)}
        self._merge_rows()

    def dependencies(self, cluster: Cluster) -> set[Cluster]:
        """Clusters that must run before this one."""
        return self._after[cluster]

    def producers(self, root: Node) -> set[Cluster]:
        """The clusters that write a root: several for a concatenation."""
        return {self.of[w] for w in self.writers(root) if w in self.of}

    def writers(self, root: Node) -> list[Node]:
        """The computed roots that fill a root's buffer: the pieces of a concatenation."""
        if root.op != "concat":
            return [root]
        return [w for piece in self.needs[root] for w in self.writers(piece)]

    def _add(self, root: Node) -> None:
        for cluster in self._candidates(root):
            if self._joins(root, cluster):
                break
        else:
            cluster = Cluster(_KINDS.get(root.op, "loops"), domain_of(root))
            cluster.roots.append(root)
            self.clusters.append(cluster)
            self._after[cluster] = set()
        self.of[root] = cluster
        for need in self.needs[root]:
            self._readers.setdefault(need, []).append(cluster)
            self._after[cluster] |= self.producers(need) - {cluster}

    def _merge_rows(self) -> None:
        """Merge kernels over the same rows that met only after both had begun."""
        for cluster in list(self.clusters):
            if cluster.kind != "loops" or all(not reduced for _, reduced in cluster.domain):
                continue
            for other in [c for c in self._after[cluster] if c.domain == cluster.domain]:
                if other.kind == "loops" and self._merges(other, cluster):
                    break

    def _merges(self, first: Cluster, second: Cluster) -> bool:
        """Merge `second` into `first`, which it depends on, if that is possible."""
        roots = sorted([*first.roots, *second.roots], key=self._number.__getitem__)
        if len(roots) > MOST_ROOTS or self._reaches(self._after[second] - {first}, first):
            return False
        if not self._works(Cluster("loops", first.domain, roots)):
            return False
        first.roots = roots
        self._after[first] |= self._after.pop(second) - {first}
        self.clusters.remove(second)
        for root in second.roots:
            self.of[root] = first
        for needs in self._after.values():
            if second in needs:
                needs.remove(second)
                needs.add(first)
        return True

    def _candidates(self, root: Node) -> list[Cluster]:
        """Clusters that compute what the root reads, latest first, then those that read the same
        large data."""
        if root.op in _KINDS or not root.type.size:
            return []
        own = {c: None for need in self.needs[root] for c in self.producers(need)}
        large = [need for need in self.needs[root] if need.type.size * 2 > root.type.size]
        siblings = {c: None for need in large for c in self._readers.get(need, ())}
        order = {c: i for i, c in enumerate(self.clusters)}
        first = sorted(own, key=lambda c: -order[c])
        return first + [c for c in siblings if c not in own and c.kind == "loops"]

    def _joins(self, root: Node, cluster: Cluster) -> bool:
        domain = self._common_domain(root, cluster)
        if domain is None or len(cluster.roots) >= MOST_ROOTS or self._would_cycle(root, cluster):
            return False
        if not self._works(Cluster(cluster.kind, domain, [*cluster.roots, root])):
            return False
        cluster.domain = domain
        cluster.roots.append(root)
        return True

    def _works(self, trial: Cluster) -> bool:
        """Whether every root's views can be expressed, and reads of the cluster's own are local."""
        try:
            space, exprs = settle(trial, self.homes)
        except NotAffineError:
            return False
        own = set(trial.roots)
        if any(
            w in own for r in own for n in self.needs[r] if n not in own for w in self.writers(n)
        ):
            return False
        return all(
            same_place(r, space, self.homes)
            for root, e in exprs.items()
            if root.op != "matmul"
            for r in reads(e)
            if r.root in own
        )

    def _common_domain(self, root: Node, cluster: Cluster) -> Domain | None:
        """The domain of the cluster with the root in it, None if there is none."""
        own, domain = domain_of(root), cluster.domain
        total = prod(size for size, _ in domain)
        rows = prod(size for size, reduced in domain if not reduced)
        if cluster.kind == "matmul":
            return domain if root.op != "reduce" and root.type.size == total else None
        if cluster.kind != "loops":
            return None
        if root.op == "reduce":
            plain = (
                all(not reduced for _, reduced in domain) and prod(size for size, _ in own) == total
            )
            joined = own if plain or own == domain else None
            rows = prod(size for size, reduced in own if not reduced)
            return joined if joined and (rows >= 64 or total <= SERIAL) else None
        fits = root.type.size == total or (root.type.size == rows and total != rows)
        return domain if fits and (rows >= 64 or total <= SERIAL or rows == total) else None

    def _would_cycle(self, root: Node, cluster: Cluster) -> bool:
        others = {c for need in self.needs[root] for c in self.producers(need)} - {cluster}
        return self._reaches(others, cluster)

    def _reaches(self, start: set[Cluster], cluster: Cluster) -> bool:
        """Whether one of `start` depends on `cluster`."""
        stack, seen = list(start), set[Cluster]()
        while stack:
            current = stack.pop()
            if current is cluster:
                return True
            if current not in seen:
                seen.add(current)
                stack.extend(self.dependencies(current))
        return False


def _root_deps(root: Node, roots: Mapping[Node, None]) -> list[Node]:
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = list(reversed(root.srcs))
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n in roots:
            found[n] = None
        else:
            stack.extend(reversed(n.srcs))
    return list(found)


def same_place(read: Read, space: Space, homes: Mapping[Node, Home]) -> bool:
    """Whether a read of a cluster's own root is of this iteration's element, on every pass."""
    here = homes[read.root].offset(space.index(read.root))
    return not read.guards and _equal(read.offset, here)


def _equal(a: Affine, b: Affine) -> bool:
    return a.const == b.const and dict(a.terms) == dict(b.terms)
