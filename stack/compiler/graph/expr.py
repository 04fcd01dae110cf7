"""What one element of a fused kernel is computed from: reads of buffers, and operations on them.

`Walk` follows a graph node down to the buffers that it is computed from, turning every view on the
way into index arithmetic. The result is a small DAG that the loop nest and the matrix product turn
into tiles alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, Protocol

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node
from stack.compiler.graph.access import Affine, Axis, Guard, Index, Regroup, Wants
from stack.compiler.graph.views import VIEWS

MOVEMENT = frozenset(VIEWS)


@dataclass(eq=False, slots=True)
class Expr:
    """An element's value. `axes` are the loop axes that it depends on."""

    dtype: DType
    axes: frozenset[Axis]


@dataclass(eq=False, slots=True)
class Read(Expr):
    """An element of a root's buffer, `offset` elements into the root; not touched unless every
    guard holds."""

    root: Node
    offset: Affine
    guards: tuple[Guard, ...]


@dataclass(eq=False, slots=True)
class Iota(Expr):
    """A position as a number."""

    value: Affine


@dataclass(eq=False, slots=True)
class Constant(Expr):
    """A number."""

    value: Any


@dataclass(eq=False, slots=True)
class Apply(Expr):
    """An elementwise graph operation."""

    node: Node
    args: tuple[Expr, ...]


@dataclass(eq=False, slots=True)
class Select(Expr):
    """`value` where every guard holds, else `fill`."""

    guards: tuple[Guard, ...]
    value: Expr
    fill: Any


class Located(Protocol):
    """Where a node's elements are."""

    def offset(self, index: Index, regroup: Regroup) -> Affine:
        """The buffer's element that holds the node's element at `index`."""


Element = tuple[Node, Index, tuple[Guard, ...]]


def axes_of(*affines: Affine) -> frozenset[Axis]:
    """The loop axes that values depend on, also by data."""
    terms = (axis for affine in affines for axis, _ in affine.terms)
    return frozenset().union(*((a,) if a.source is None else a.source.axes for a in terms))


def _guard_axes(guards: tuple[Guard, ...]) -> frozenset[Axis]:
    return axes_of(*(g.value for g in guards))


def _share_axes(a: Affine, b: Affine) -> bool:
    """Whether two values depend on a loop axis, or on an element of data, that is the same."""
    either, other = ({*axes_of(x), *(axis for axis, _ in x.terms)} for x in (a, b))
    return not either.isdisjoint(other)


class Walk(Wants):
    """Expressions of graph nodes at given indices; `homes` are the nodes that have buffers.

    Nothing counts that is found after something was wanted.
    """

    def __init__(self, homes: Mapping[Node, Located]) -> None:
        super().__init__()
        self._homes = homes
        self._values: dict[Element, Expr] = {}
        self._reads: dict[Element, Expr] = {}

    def begin(self) -> None:
        """Another attempt: nothing is wanted so far."""
        self.first = None

    def operand(self, n: Node, index: Index, guards: tuple[Guard, ...] = ()) -> Expr:
        """n's element at `index`, read if n is a root."""
        while n.op == "reshape" and n not in self._homes:
            n = n.srcs[0]
        if n not in self._homes:
            return self.value(n, index, guards)
        key = (n, index, guards)
        found = self._reads.get(key)
        if found is None:
            offset = self._homes[n].offset(index, self.regroup)
            # Where an element lies along other axes than a guard's it is there for all of these:
            # what selects it has the guard.
            own = tuple(g for g in guards if _share_axes(offset, g.value))
            axes = axes_of(offset) | _guard_axes(own)
            found = self._kept(self._reads, key, Read(n.dtype, axes, n, offset, own))
        return found

    def value(self, n: Node, index: Index, guards: tuple[Guard, ...] = ()) -> Expr:
        """n's element at `index`, computed."""
        key = (n, index, guards)
        found = self._values.get(key)
        if found is None:
            outer, self.node = self.node, n
            found = self._kept(self._values, key, self._expression(n, index, guards))
            self.node = outer
        return found

    def _kept(self, known: dict[Element, Expr], key: Element, found: Expr) -> Expr:
        if self.first is None:
            known[key] = found
        return found

    def _expression(self, n: Node, index: Index, guards: tuple[Guard, ...]) -> Expr:
        if n.op in MOVEMENT:
            source, own = VIEWS[n.op](n, index, self.regroup)
            if any(g.never() for g in own):
                return Constant(n.dtype, frozenset(), n["value"])
            own = tuple(g for g in own if not g.always())
            inner = self.operand(n.srcs[0], source, guards + own)
            if not own:
                return inner
            return Select(n.dtype, inner.axes | _guard_axes(own), own, inner, n["value"])
        if n.op == "const":
            return Constant(n.dtype, frozenset(), n["value"])
        if n.op == "arange":
            position = index.flat()
            return Iota(n.dtype, axes_of(position), position)
        if n.op == "gather":
            from_, where = n.srcs
            axis: int = n["axis"]
            size = from_.shape[axis]
            before, after = prod(from_.shape[:axis]), prod(from_.shape[axis + 1 :])
            count = where.type.size // (before if n["batch"] else 1)
            out = self.regroup(index, (before, count, after))
            rows = 2 if n["batch"] else 1
            places = Index((before, count)[-rows:], out.at[2 - rows : 2])
            chosen = self.operand(where, places, guards)
            dynamic = Affine(0, ((Axis(size, chosen), 1),))
            own = (Guard(dynamic, 0, size),)
            inner = self.operand(
                from_, Index((before, size, after), (out.at[0], dynamic, out.at[2])), guards + own
            )
            return Select(n.dtype, inner.axes | chosen.axes, own, inner, 0)
        args = tuple(self.operand(s, index, guards) for s in n.srcs)
        return Apply(n.dtype, frozenset().union(*(a.axes for a in args)), n, args)


def below(e: Expr) -> list[Expr]:
    """What an expression is computed from, data-dependent indices included."""
    match e:
        case Apply():
            return list(e.args)
        case Select():
            return [e.value, *_sources(g.value for g in e.guards)]
        case Read():
            return _sources([e.offset, *(g.value for g in e.guards)])
        case Iota():
            return _sources([e.value])
    return []


def _sources(affines: Iterable[Affine]) -> list[Expr]:
    return [a.source for affine in affines for a, _ in affine.terms if a.source is not None]


def uncast(e: Expr) -> Expr:
    """What an expression converts to another element type; the expression itself if it does not."""
    while isinstance(e, Apply) and e.node.op == "cast":
        (e,) = e.args
    return e


def parts(expr: Expr) -> list[Expr]:
    """An expression and all that it is computed from, data-dependent indices included: each once,
    after what it is computed from."""
    seen: set[int] = set()
    found: list[Expr] = []

    def visit(e: Expr) -> None:
        if id(e) in seen:
            return
        seen.add(id(e))
        for inner in below(e):
            visit(inner)
        found.append(e)

    visit(expr)
    return found


def reads(expr: Expr) -> list[Read]:
    """Every read in an expression, once, those of data-dependent indices included."""
    return [e for e in parts(expr) if isinstance(e, Read)]
