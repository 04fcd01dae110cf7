"""What a kernel does, apart from where its data is: equal work is emitted once.

A signature is a flat value with everything that emission depends on. Buffers are numbered as they
are met, each by where the kernel's first element in it is (a *place*), so that work on another part
of a buffer, or on another buffer, has the same signature.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from hal.tile.node import Node
from stack.compiler.graph.access import Affine, Axis, Guard
from stack.compiler.graph.attention import Attention
from stack.compiler.graph.cluster import Homes, Nest
from stack.compiler.graph.expr import Apply, Constant, Expr, Iota, Read, Select
from stack.compiler.graph.operands import Operands
from stack.compiler.graph.ordered import Ordered
from stack.compiler.graph.roots import Home
from stack.compiler.program import BufferKind

ParamStart = tuple[BufferKind, int, int]
"""A buffer and the element at which a kernel's parameter begins."""


def place(home: Home, offset: Affine) -> ParamStart:
    """Where a parameter for accesses to a home at these offsets begins."""
    assert home.kind != "scratch", "scratch memory is no parameter"
    return home.kind, home.index, max(offset.bounds()[0], 0)


class Signature:
    """A signature in the making; `places` holds the places met, each with the end of what is
    accessed."""

    def __init__(self, homes: Homes, dtypes: Mapping[tuple[str, int], Hashable]) -> None:
        self.places: dict[ParamStart, int] = {}
        self._homes, self._dtypes = homes, dtypes
        self._numbers: dict[ParamStart, int] = {}
        self._axes: dict[Axis, int] = {}
        self._exprs: dict[int, int] = {}
        self._own: dict[Node, int] = {}
        self._said: list[Hashable] = []

    def value(self) -> Hashable:
        """Everything said so far."""
        return tuple(self._said)

    def say(self, *facts: Hashable) -> None:
        """Add facts that emission depends on."""
        self._said.append(facts)

    def axes(self, axes: Iterable[Axis], *facts: Hashable) -> None:
        """Name loop axes."""
        for axis in axes:
            self._axes[axis] = len(self._axes)
            self.say(axis.size, *facts)

    def nest(self, nest: Nest, stored: frozenset[Node]) -> None:
        """A nest, with which of its roots are stored."""
        for axis in nest.space.axes:
            self.axes((axis,), axis in nest.space.reduced)
        self._own = {root: i for i, root in enumerate(nest.own)}
        for root, offset in nest.own.items():
            moved = nest.moved.get(root)
            expr = nest.exprs.get(root)
            self.say(
                *(root.op, root.dtype.short, root.op == "reduce" and root["kind"]),
                nest.space.is_full(root),
                self._own[moved.source] if moved else None,
                self.expr(expr) if expr else None,
                self._access(root, offset) if root in stored else None,
                *self._guards(nest.kept.get(root, ())),
            )

    def operands(self, ops: Operands) -> None:
        """A product, whose nest was said before."""
        self.axes(ops.k)
        self.say(*map(len, (ops.batch, ops.m, ops.n)), ops.product.srcs[0].dtype.short)
        self.say(self.expr(ops.a), self.expr(ops.b))
        if ops.longer is not None:
            axis, read = ops.longer
            self.axes((axis,))
            self.say(self.expr(read))

    def attention(self, found: Attention) -> None:
        """An attention, whose nest was said before."""
        self.axes((found.depth, found.keys))
        if found.flat is not None:
            self.axes((found.m, found.n))
        self.say(len(found.batch), found.dtype.short, found.root.attrs)
        self.say(*(self.expr(e) for e in found.exprs))

    def ordered(self, found: Ordered) -> None:
        """A scan or scatter-add."""
        for group in found.groups:
            self.say(len(group))
            self.axes(group)
        self.say(found.root.op, found.root.dtype.short, found.root.attrs)
        self.say(*(self.expr(e) for e in found.exprs))
        self.say(*(self._access(root, at) for root, at in found.written.items()))

    # expressions

    def expr(self, e: Expr) -> int:
        """The number of an expression; what it is has been said."""
        found = self._exprs.get(id(e))
        if found is None:
            self.say(e.dtype.short, *self._parts(e))
            found = self._exprs[id(e)] = len(self._exprs)
        return found

    def _parts(self, e: Expr) -> tuple[Hashable, ...]:
        match e:
            case Read():
                own = self._own.get(e.root)
                return "read", own, self._access(e.root, e.offset), *self._guards(e.guards)
            case Iota():
                return "iota", self._affine(e.value)
            case Constant():
                return "constant", repr(e.value)
            case Select():
                return "select", self.expr(e.value), repr(e.fill), *self._guards(e.guards)
            case Apply(node=n):
                types = tuple(s.dtype.short for s in n.srcs)
                return n.op, n.attrs, types, *(self.expr(a) for a in e.args)
        raise AssertionError(f"unknown expression {e!r}")

    def _guards(self, guards: tuple[Guard, ...]) -> tuple[Hashable, ...]:
        return tuple((self._affine(g.value), g.lo, g.hi) for g in guards)

    def _affine(self, a: Affine, start: int = 0) -> Hashable:
        return a.const - start, *((self._axis(axis), c) for axis, c in a.terms)

    def _axis(self, axis: Axis) -> Hashable:
        if axis.source is not None:
            return axis.size, self.expr(axis.source)
        return self._axes[axis]

    def _access(self, root: Node, offset: Affine) -> Hashable:
        """An access by the number of its place, counted from where the place begins."""
        home = self._homes[root]
        if home.kind == "scratch":
            return "scratch", home.index, home.run, self._affine(offset)
        at = place(home, offset)
        number = self._numbers.setdefault(at, len(self._numbers))
        self.places[at] = max(self.places.get(at, 0), offset.bounds()[1] + 1)
        return number, self._dtypes[home.kind, home.index], self._affine(offset, at[2])
