"""Scatters as tile kernels: updates go in order, so that the result is always the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from hal.core.description import SpaceKind
from hal.core.dtypes import DType
from hal.core.values import Grid
from hal.tile.build import binary, broadcast, cast, const, mul
from hal.tile.kernel import Memory
from hal.tile.node import Node
from stack.compiler.graph.access import Affine, Axis, axis_index
from stack.compiler.graph.ordered import Ordered
from stack.compiler.templates.emission import Emission, compute_dtype
from stack.compiler.templates.lanes import blocks, loop_over
from stack.compiler.templates.loops import COMBINE
from stack.compiler.templates.tiles import Tiles

I64 = DType.I64


def emit_scatter(found: Ordered, emission: Emission) -> Grid:
    """Emit the base, then the updates at their positions; give the launch grid."""
    before, count, after, along = found.groups
    base, position, update = found.exprs
    scope, grid = blocks(found.root, before, after, emission)
    held = _held(found, scope, emission)
    loop_over(scope, along, lambda s: held.begin(s, s.tile(base)))

    def one(s: Tiles) -> None:
        place = cast(s.tile(position), I64)
        if held.memory is not None:
            s.tile(update)  # by transfers, whatever the position
        with s.b.when(_inside(place, held.slots)):
            held.combine(s, place, lambda inner: broadcast(inner.tile(update), s.shape))

    loop_over(scope, count, one)
    if held.memory is not None:
        loop_over(scope, along, held.finish)
    return grid


@dataclass(frozen=True, slots=True)
class _Held:
    """Where results are while updates come: at home, or a block of them in scratch memory."""

    found: Ordered
    emission: Emission
    memory: Memory | None

    @property
    def root(self) -> Node:
        return self.found.root

    @property
    def slots(self) -> int:
        """The positions along the axis."""
        size: int = self.root.shape[self.root["axis"]]
        return size

    def begin(self, s: Tiles, value: Node) -> None:
        """Put the base's elements of a slot there."""
        if self.memory is None:
            s.store(self.root, self._whole(), value)
            return
        stored = broadcast(cast(value, self.root.dtype), s.shape)
        s.b.store(self.memory, self._row(s, self._slot(s)), stored, (1,) * len(s.shape))

    def combine(self, s: Tiles, place: Node, value: Callable[[Tiles], Node]) -> None:
        """Combine the elements of a slot with an update."""
        if self.memory is not None:
            at, steps = self._row(s, place), (1,) * len(s.shape)
            old = s.b.load(self.memory, at, s.shape, steps)
            total = self._combined(cast(old, compute_dtype(old.dtype)), value(s))
            s.b.store(self.memory, at, cast(total, self.root.dtype), steps)
            return
        before, _, after, _ = self.found.groups
        slot = Axis(self.slots)
        home = self.emission.homes[self.root]
        addressed = home.offset(axis_index([*before, slot, *after]))
        target = Tiles(self.emission, {slot: place}, s.tile_axes, s)
        old = target.stored(self.root, addressed)
        target.store(self.root, addressed, self._combined(old, value(s)))

    def _combined(self, old: Node, update: Node) -> Node:
        kind = self.root["kind"]
        return update if kind == "set" else binary(COMBINE[kind], old, update)

    def finish(self, s: Tiles) -> None:
        """Take what a slot holds home."""
        assert self.memory is not None
        at = self._row(s, self._slot(s))
        value = s.b.load(self.memory, at, s.shape, (1,) * len(s.shape))
        s.store(self.root, self._whole(), value)

    def _whole(self) -> Affine:
        return self.found.at(self.emission.homes[self.root])

    def _slot(self, s: Tiles) -> Node:
        return s.position(axis_index(self.found.groups[3]).flat()).scalar

    def _row(self, s: Tiles, slot: Node) -> Node:
        return mul(slot, prod(s.shape))


def _held(found: Ordered, scope: Tiles, emission: Emission) -> _Held:
    """Scratch memory where transfers fill it and it holds a block of all slots."""
    space = emission.info.space(SpaceKind.SCRATCHPAD)
    size = found.root.shape[found.root["axis"]] * prod(scope.shape)
    nbytes = size * found.root.dtype.nbytes
    if space is None or not emission.loops.transfers or nbytes > space.nbytes // 4:
        return _Held(found, emission, None)
    return _Held(found, emission, emission.b.alloc("held", found.root.dtype, size))


def _inside(place: Node, size: int) -> Node:
    return binary("and", binary("le", const(0, I64), place), binary("lt", place, size))
