"""Scatters as tile kernels: updates go in order, so that the result is always the same."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from hal.core.description import SpaceKind
from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.core.values import Grid
from hal.tile.build import add, binary, broadcast, cast, const, mul, program_id, sub
from hal.tile.kernel import Memory
from hal.tile.node import Node
from hal.tile.size import is_fixed
from stack.compiler.graph.access import Affine, Axis, axis_index
from stack.compiler.graph.ordered import Ordered
from stack.compiler.templates.blocking import ceil_div
from stack.compiler.templates.emission import Emission, compute_dtype
from stack.compiler.templates.lanes import blocks, loop_over
from stack.compiler.templates.loops import COMBINE
from stack.compiler.templates.product import divided
from stack.compiler.templates.tiles import Tiles

I64 = DType.I64


MANY = 1 << 14
"""Updates from which on cores share them."""

SHARES = 8
"""Instances with caches that read the same updates, at most."""


def emit_scatter(found: Ordered, emission: Emission) -> Grid:
    """Emit the base, then the updates at their positions; give the launch grid."""
    before, count, after, along = found.groups
    base, position, update = found.exprs
    _, (instances, _, _) = blocks(found.root, before, after, emission)
    share = _share(found, instances, emission)
    number, part = divided(program_id(0), share.count)
    scope, _ = blocks(found.root, before, after, emission, number)
    # Scratch memory where transfers fill it and it holds a block of all slots of an instance.
    room = _room(emission)
    slots = share.slots if share.count == 1 else share.size * share.inner
    size = slots * prod(scope.shape)
    if room is None or size * found.root.dtype.nbytes > room:
        held = _Held(found, emission, None, *share.of(part))
    else:
        memory = emission.b.alloc("held", found.root.dtype, size)
        held = _Held(found, emission, memory, *share.of(part))

    def over_slots(body: Callable[[Tiles], None]) -> None:
        if share.count == 1:
            loop_over(scope, along, body)
            return

        def step(i: Node) -> None:
            loop_over(Tiles(emission, {along[0]: i}, scope.tile_axes, scope), along[1:], body)

        first = mul(part, share.size)
        emission.b.loop(first, binary("min", add(first, share.size), along[0].size), 1, step)

    over_slots(lambda s: held.begin(s, s.tile(base)))

    def one(s: Tiles) -> None:
        place = cast(s.tile(position), I64)
        if held.memory is not None:
            s.tile(update)  # by transfers, whatever the position
        with s.b.when(
            binary("and", binary("le", held.first, place), binary("lt", place, held.end))
        ):
            held.combine(s, place, lambda inner: broadcast(inner.tile(update), s.shape))

    loop_over(scope, count, one)
    if held.memory is not None:
        over_slots(held.finish)
    return (instances * share.count, 1, 1)


@dataclass(frozen=True, slots=True)
class _Share:
    """How instances share the slots of a row, so that cores have some where rows are few: each
    reads all updates and makes those of its slots, in their order, as one alone would."""

    count: int
    size: int
    """Steps of the outermost axis of slots that each has."""
    inner: int
    """Slots of a step."""
    slots: int

    def of(self, part: Node) -> tuple[Node, Node]:
        """The first slot of an instance, and the one behind its last."""
        if self.count == 1:
            return const(0, I64), const(self.slots, I64)
        first = mul(part, self.size * self.inner)
        return first, binary("min", add(first, self.size * self.inner), self.slots)


def _share(found: Ordered, instances: int, emission: Emission) -> _Share:
    slots = found.root.shape[found.root["axis"]]
    along, updates = found.groups[3], prod(a.size for a in found.groups[1])
    whole = _Share(1, slots, 1, slots)
    if not (along and is_fixed(instances) and is_fixed(updates) and is_fixed(slots)):
        return whole
    cores = max(1, emission.info.limits.instances) // instances
    if updates < MANY or cores < 2:
        return whole
    wanted = min(cores, SHARES)
    room = _room(emission)
    if room is not None and not found.groups[2]:
        # Reading is what takes time: as many as hold all slots, or, where none can, all cores.
        wanted = min(cores, ceil_div(slots * found.root.dtype.nbytes, room))
    size = ceil_div(along[0].size, min(wanted, along[0].size))
    return _Share(ceil_div(along[0].size, size), size, slots // along[0].size, slots)


def _room(emission: Emission) -> int | None:
    """The bytes of scratch memory for results, where transfers fill it."""
    space = emission.info.space(SpaceKind.SCRATCHPAD)
    return space.nbytes // 4 if space is not None and emission.loops.transfers else None


@dataclass(frozen=True, slots=True)
class _Held:
    """Where results are while updates come: at home, or a block of them in scratch memory."""

    found: Ordered
    emission: Emission
    memory: Memory | None
    first: Node
    """The first slot, and the one behind the last."""
    end: Node

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
        return mul(sub(slot, self.first), prod(s.shape))
