"""The roots of one kernel over one domain, and what each of them is computed from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from hal.core.facts import dataclass
from hal.tile.node import Node
from stack.compiler.graph.access import (
    Affine,
    Guard,
    Index,
    Materialise,
    Regroup,
    Split,
    Want,
    axis_index,
)
from stack.compiler.graph.expr import MOVEMENT, Expr, Read, Walk, reads
from stack.compiler.graph.roots import Home
from stack.compiler.graph.space import Domain, Space, domain_of, solved
from stack.compiler.graph.views import forward
from stack.ops import OPS
from stack.ops.attention import SEALED
from stack.ops.operator import OpKind

Kind = Literal["loops", "matmul", "attention", "scan", "scatter", "exchange", "loop"]

_KINDS: Mapping[str, Kind] = {
    "matmul": "matmul",
    **dict.fromkeys(SEALED, "attention"),
    "scan": "scan",
    "scatter": "scatter",
    "loop": "loop",
    **{r.name: "exchange" for r in OPS.values() if r.kind is OpKind.EXCHANGE},
}
Homes = Mapping[Node, Home]


@dataclass(frozen=True, slots=True)
class Moved:
    """A root that is another root of its cluster in another order, or a part of it: `views` lead to
    it."""

    source: Node
    views: tuple[Node, ...]

    def index(self, index: Index, regroup: Regroup) -> tuple[Index, tuple[Guard, ...]]:
        """The element of the root that is the source's element at `index`, and where there is
        one."""
        guards: tuple[Guard, ...] = ()
        for view in self.views:
            index, more = forward(view, index, regroup)
            guards += more
        return index, guards


class Nest:
    """The axes of some roots, split as their views need, and the roots' expressions over them.

    A reduction's expression is what it combines. A product, a scan and a scatter-add, which are
    computed in their own ways, have none, nor has a root that is another one moved.
    """

    def __init__(self, kind: Kind, space: Space, homes: Homes, walk: Walk) -> None:
        self.kind, self.space, self._homes, self._walk = kind, space, homes, walk
        self.exprs: dict[Node, Expr] = {}
        self.reads: dict[Node, list[Read]] = {}
        self.moved: dict[Node, Moved] = {}
        self.own: dict[Node, Affine] = {}
        """Each root's element of this iteration, in its home."""
        self.kept: dict[Node, tuple[Guard, ...]] = {}
        """Where a root that is a part of another one has an element of the iteration."""

    @staticmethod
    def of(kind: Kind, space: Space, roots: Iterable[Node], homes: Homes) -> Nest | Want:
        """The nest of some roots, or what they want first."""
        return Nest(kind, space, homes, Walk(homes))._with(roots)

    def with_root(self, root: Node) -> Nest | Want:
        """The nest with one more root over the same axes, or what that wants."""
        more = Nest(self.kind, self.space, self._homes, self._walk)
        more.exprs, more.reads, more.moved = {**self.exprs}, {**self.reads}, {**self.moved}
        more.own, more.kept = {**self.own}, {**self.kept}
        return more._with((root,))

    def _with(self, roots: Iterable[Node]) -> Nest | Want:
        self._walk.begin()
        for root in roots:
            # How the root is another root in another order, if it is that and nothing else; of a
            # product it may be a part.
            source, views = moved_from(root, self._computes, self.kind)
            if not self._computes(source) or all(v.op not in ("permute", "slice") for v in views):
                moved = None
            else:
                moved = Moved(source, views)
            index = self.space.index(root)
            if moved:
                self.moved[root] = moved
                index, guards = moved.index(self.space.index(moved.source), self._walk.regroup)
                if guards:
                    self.kept[root] = guards
            elif root.op not in _KINDS:
                self.exprs[root] = (
                    self._walk.operand(root.srcs[0], axis_index(self.space.axes))
                    if root.op == "reduce"
                    else self._walk.value(root, index)
                )
                self.reads[root] = reads(self.exprs[root])
            self.own[root] = self._homes[root].offset(index, self._walk.regroup)
            if self._walk.first is not None:
                return self._walk.first
        return self

    def _computes(self, n: Node) -> bool:
        return n in self.own and n not in self.moved

    def is_local(self) -> bool:
        """Whether every read of the nest's own roots is of this iteration's element."""
        return all(
            not r.guards and same(r.offset, self.own[r.root])
            for found in self.reads.values()
            for r in found
            if r.root in self.own
        )

    def passes(self) -> dict[Node, int]:
        """The pass over a row in which each root is computed: after the reductions that it
        needs."""
        level: dict[Node, int] = {}
        for root in self.own:
            moved = self.moved.get(root)
            own = [moved.source] if moved else [r.root for r in self.reads[root] if r.root in level]
            level[root] = max((level[r] + (r.op == "reduce") for r in own), default=0)
        return level


def moved_from(
    root: Node, computes: Callable[[Node], bool], kind: Kind
) -> tuple[Node, tuple[Node, ...]]:
    """What a root is the same elements of in another order, or of a product some of them, and the
    views that lead from there to the root."""
    views: list[Node] = []
    n = root
    while not computes(n) and (
        n.op in ("permute", "reshape", "contiguous")
        or (kind == "matmul" and n.op == "slice" and set(n["step"]) <= {1})
    ):
        views.append(n)
        n = n.srcs[0]
    return n, tuple(reversed(views))


def same(a: Affine, b: Affine) -> bool:
    """Whether two affine values are equal whatever the order of their terms."""
    return a.const == b.const and dict(a.terms) == dict(b.terms)


def settle(kind: Kind, domain: Domain, roots: Sequence[Node], homes: Homes) -> Nest | Materialise:
    """The roots over the axes of a domain, split where views need it, or what needs a buffer."""
    return solved(Space.of(domain), lambda space: nest_over(kind, space, roots, homes))


def nest_over(kind: Kind, space: Space, roots: Sequence[Node], homes: Homes) -> Nest | Want:
    """The roots over the axes of a space. Only the batch of a product is loops that can be split:
    what follows it is computed for tiles of its rows and columns, but for products of windows,
    whose tiles are in pieces anyway."""
    found = Nest.of(kind, space, roots, homes)
    if kind in ("matmul", "attention") and isinstance(found, Split):
        can = found.axis in space.groups[0] or any(map(_has_windows, roots[0].srcs[:2]))
        return found if can else Materialise()
    return found


def _has_windows(x: Node) -> bool:
    while x.op in MOVEMENT or x.op == "cast":
        if x.op == "window":
            return True
        x = x.srcs[0]
    return False


@dataclass(eq=False, slots=True)
class Cluster:
    """The roots of one kernel, in topological order."""

    number: int
    domain: Domain
    roots: list[Node]
    nest: Nest
    read: tuple[Nest, Any] | None = None
    """What a product's operands were found to be over a nest."""

    @staticmethod
    def of(number: int, root: Node, homes: Homes) -> Cluster | Materialise:
        """A root on its own, or what needs a buffer before that can be."""
        domain = domain_of(root)
        nest = settle(_KINDS.get(root.op, "loops"), domain, [root], homes)
        return nest if isinstance(nest, Materialise) else Cluster(number, domain, [root], nest)

    @property
    def kind(self) -> Kind:
        return self.nest.kind

    def over(self, space: Space, homes: Homes) -> Nest | Want:
        """The nest over the axes of a space that has these, some of them split."""
        if space.groups == self.nest.space.groups:
            return self.nest
        return nest_over(self.kind, space, self.roots, homes)
