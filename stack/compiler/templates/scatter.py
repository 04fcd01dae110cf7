"""Scatters as tile kernels: updates go in order, so that the result is always the same.

Slots are where they are near: in scratch memory that transfers fill, or in a processor's second
cache, a row of them or a block of neighbouring lanes of each. Rows of which few go to each slot are
written where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod

from hal.core.description import SpaceKind
from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.core.values import Grid
from hal.tile.build import (
    Operand,
    add,
    binary,
    broadcast,
    cast,
    const,
    index,
    mul,
    program_id,
    sub,
    where,
)
from hal.tile.kernel import Memory
from hal.tile.node import Node
from hal.tile.size import divides, hint, is_fixed, is_one, may_be_positive
from stack.compiler.graph.access import Affine, Axis, axis_index
from stack.compiler.graph.cluster import same
from stack.compiler.graph.expr import Expr, Read, reads
from stack.compiler.graph.ordered import Ordered
from stack.compiler.graph.space import Group
from stack.compiler.templates.blocking import ceil_div, near_nbytes, round_up
from stack.compiler.templates.emission import Emission, TileAxis, compute_dtype
from stack.compiler.templates.instances import decompose
from stack.compiler.templates.lanes import UNROLL, blocks, loop_over
from stack.compiler.templates.loops import COMBINE, PAGE
from stack.compiler.templates.product import divided
from stack.compiler.templates.tiles import Tiles

I64 = DType.I64


MANY = 1 << 14
"""Updates from which on cores share them."""

SHARES = 8
"""Instances with caches that read the same updates, at most."""

TOGETHER = 8
"""Updates that are written one after the other, so that a loop's own steps take no time."""

FEW = 4
"""Tiles of a row that are written one after the other at most."""

OFTEN = 2
"""Updates for each slot up to which rows are written where they are, along the whole of them, and
behind which blocks of all slots are held. Measured on Zen 3 with 4096 rows of 1024: of one update
for each, the first takes 0.6 of the time of the other, of two 0.65, of four 1.1."""

SOON = 64
"""Updates ahead whose slots are asked for, where these are too many to be held near. Measured on
Zen 3 with 0, 16, 32 and 64 on a million sums into a million: 64 takes 0.65 to 0.9 of the time of 0,
the less the more others use the last cache."""

AHEAD = 8
"""Updates ahead whose lines are asked for, where each is in a page of its own. Measured on Zen 3
with 0, 4, 8 and 16 on sums of 4096 by 1024 along columns: 8 takes two thirds of the time of 0."""


def emit_scatter(found: Ordered, emission: Emission) -> Grid:
    """Emit the base, then the updates at their positions; give the launch grid."""
    before, count, after, along = found.groups
    beside = _beside(found, emission)
    if beside is not None:
        before, after = before[:-1], (beside,)
    base, position, update = found.exprs
    run = None if beside is not None else _run(found, emission)

    def scope_of(number: Node | None = None) -> tuple[Tiles, Grid]:
        if run is not None:
            return run.scope(emission, before, after, number)
        return blocks(found.root, before, after, emission, number)

    _, (instances, _, _) = scope_of()
    share = _share(found, instances, emission)
    number, part = divided(program_id(0), share.count)
    scope, _ = scope_of(number)
    # Scratch memory where transfers fill it or a cache holds it, if that is large enough for a
    # block of all slots of an instance.
    dtype, room = _held_in(found, emission)
    slots = share.slots if share.count == 1 else share.size * share.inner
    size, memory = slots * prod(scope.shape), None
    # Where results are held in a wider type, that must not follow from how many cores there are.
    most = share.slots * prod(scope.shape) if emission.loops.squares else size
    there = _is_there(found, emission)
    few = there and emission.loops.squares and _are_few(found)
    fits = room is not None and is_fixed(most) and most * dtype.nbytes <= room
    if fits and not few and run is None:
        # Behind them is a place for updates that are out of range.
        memory = emission.b.alloc("held", dtype, size + prod(scope.shape))
    held = _Held(found, emission, memory, prod(scope.shape), *share.of(part))

    def over_slots(body: Callable[[Tiles], None]) -> None:
        if run is not None:
            share.over(scope, along, part, lambda s: run.over(s, body))
        else:
            share.over(scope, along, part, body, 1 if scope.shape else _width(found, emission))

    def begin(s: Tiles) -> None:
        if memory is not None and emission.loops.squares and scope.shape:
            _ask_down(s, [base], along)
        held.begin(s, s.tile(base))

    if held.memory is not None or not there:
        over_slots(begin)

    def one(s: Tiles, lane: Node | int = 0) -> None:
        place = cast(s.tile(position), I64)
        if held.memory is not None and emission.loops.transfers:
            s.tile(update)  # whatever the position
        inside = binary("and", binary("le", held.first, place), binary("lt", place, held.end))

        def value(scope: Tiles) -> Node:
            return broadcast(scope.tile(update), scope.shape)

        if held.memory is not None and emission.loops.squares:
            held.combine(s, where(inside, place, add(held.first, slots)), value, lane)
            return
        if share.count > 1 and run is None and emission.loops.squares and not s.shape:
            held.combine_where(s, inside, place, value(s))
            return
        with s.b.when(inside):
            if run is None:
                held.combine(s, place, value, lane)
                return
            later = _later(s, held, run)

            def tile(t: Tiles) -> None:
                if later is not None:
                    there, slot = later
                    _ask(Tiles(t.emission, there.values, t.tile_axes), [update])
                    held.at(t, slot)
                held.combine(t, place, value, 0)

            run.over(s, tile)

    if not emission.loops.squares:
        loop_over(scope, count, one)
    elif beside is not None:
        laid = _laid(update, emission, scope.tile_axes[0].width)
        loop_over(scope, count, lambda s: _lane_by_lane(s, one, [position, update], count, laid))
    elif run is not None:
        loop_over(scope, count, one)
    elif after:

        def across(s: Tiles) -> None:
            _ask_down(s, [update], count)
            one(s)

        loop_over(scope, count, across)
    else:

        def soon(s: Tiles, last: Axis, at: Node) -> None:
            later = binary("min", add(at, SOON), last.size - 1)
            there = Tiles(s.emission, {**s.values, last: later})
            held.ask(there, cast(there.tile(position), I64))

        laid = _laid(update, emission, TOGETHER)
        _in_a_row(scope, number, before, count, one, [position, update], soon, laid)
    if held.memory is not None:
        over_slots(held.finish)
    else:
        held.copy(over_slots)
    return (instances * share.count, 1, 1)


def _beside(found: Ordered, emission: Emission) -> Axis | None:
    """The axis of rows along which positions lie side by side, each of a row of its own, where
    those of one row are far apart: a block of such rows is then computed as one of lanes is, and
    reads lines as a whole."""
    before, count, after, _ = found.groups
    if not emission.loops.squares or after or not before or not count:
        return None
    lane, last = before[-1], count[-1]
    found_reads = [r for e in found.exprs[1:] for r in reads(e)]
    steps = [r.offset.coefficient(lane) for r in found_reads]
    apart = [r.offset.coefficient(last) for r in found_reads]
    wide = is_fixed(lane.size) and lane.size >= emission.lanes(compute_dtype(found.root.dtype))
    if not wide or not all(map(is_fixed, (*steps, *apart))):
        return None
    along = reads(found.exprs[1])
    plain = bool(along) and all(r.offset.coefficient(lane) == 1 for r in along)
    return lane if plain and set(steps) <= {0, 1} and 1 not in apart else None


def _width(found: Ordered, emission: Emission) -> int:
    """Slots of a row that are begun and ended as one tile, where they are neighbours."""
    _, _, after, along = found.groups
    alone = emission.loops.squares and not after and along
    return emission.lanes(DType.F32) * UNROLL if alone else 1


def _in_tiles(
    s: Tiles, axis: Axis, begin: Operand, end: Operand, width: int, body: Callable[[Tiles], None]
) -> None:
    """body(scope) for tiles of an axis from `begin`, a multiple of their width, to `end`, which is
    one as well or the end of the axis, where a narrower tile is left."""

    def tile(at: Node | int, width: int, limit: Node | None = None) -> None:
        body(Tiles(s.emission, {}, (*s.tile_axes, TileAxis(axis, index(at), width, limit)), s))

    full = axis.size - axis.size % width
    whole = isinstance(end, int)
    if whole and is_fixed(full) and full <= FEW * width:
        for i in range(0, full, width):
            tile(i, width)
    elif may_be_positive(full):
        stop = full if whole else binary("min", end, full)
        s.b.loop(begin, stop, width, lambda i: tile(i, width))
    if divides(width, axis.size):
        return
    if not is_fixed(axis.size):
        tile(full, width, index(axis.size - full))
        return
    if whole:
        tile(full, axis.size - full)
        return
    with s.b.when(binary("eq", end, axis.size)):
        tile(full, axis.size - full)


@dataclass(frozen=True, slots=True)
class _Run:
    """A part of the innermost axis, for all of which one position says the slot: an instance goes
    along it with each update, in memory as it lies."""

    axis: Axis
    size: int
    """Elements of a part: a multiple of a tile's, or all."""
    width: int
    """Elements of a tile."""
    nbytes: int
    """Of a part."""
    parts: Axis

    def scope(
        self, emission: Emission, before: Group, after: Group, number: Node | None
    ) -> tuple[Tiles, Grid]:
        """The scope of one instance, which is a row and a part, and the grid of all of them."""
        axes = [*before, *after[:-1], self.parts]
        number = program_id(0) if number is None else number
        return Tiles(emission, decompose(number, axes)), (prod(a.size for a in axes), 1, 1)

    def over(self, s: Tiles, body: Callable[[Tiles], None]) -> None:
        """body(scope) for the tiles of the instance's part."""
        begin, end = const(0, I64), self.axis.size
        stop: Operand = end
        if not is_one(self.parts.size):
            begin = mul(s.values[self.parts], self.size)
            stop = binary("min", add(begin, self.size), end)
        _in_tiles(s, self.axis, begin, stop, self.width, body)


def _run(found: Ordered, emission: Emission) -> _Run | None:
    """How updates go to rows where they are; None where positions differ along rows, or where a
    block of all slots is better held while updates come."""
    before, count, after, along = found.groups
    if not (emission.loops.squares and after and is_fixed(after[-1].size)):
        return None
    axis, (dtype, room) = after[-1], _held_in(found, emission)
    slots = prod(a.size for a in along)
    width = min(emission.lanes(compute_dtype(found.root.dtype)) * UNROLL, axis.size)
    fits = room is not None and is_fixed(slots) and slots * width * dtype.nbytes <= room
    few = _is_there(found, emission) and _are_few(found)
    often = prod(hint(a.size) for a in count) > OFTEN * hint(slots)
    if fits and not few and (often or dtype is not found.root.dtype):
        return None
    rows = prod(hint(a.size) for a in (*before, *after[:-1]))
    parts = ceil_div(max(1, emission.info.limits.instances), rows)
    size = round_up(ceil_div(axis.size, parts), width)
    nbytes = size * found.root.dtype.nbytes
    return _Run(axis, size, width, nbytes, Axis(ceil_div(axis.size, size)))


def _later(s: Tiles, held: _Held, run: _Run) -> tuple[Tiles, Node] | None:
    """The scope of an update some way behind this one, and its slot, both to be asked for; None
    where that is not known."""
    _, count, _, _ = held.found.groups
    last = count[-1] if count else None
    if last is None or not is_fixed(last.size):
        return None
    ahead = min(AHEAD, ceil_div(PAGE, run.nbytes))
    if last.size < 2 * ahead:
        return None
    at = binary("min", add(s.values[last], ahead), last.size - 1)
    there = Tiles(s.emission, {**s.values, last: at})
    place = cast(there.tile(held.found.exprs[1]), I64)
    return there, binary("max", binary("min", place, held.slots - 1), 0)


@dataclass(frozen=True, slots=True)
class _Laid:
    """Scratch memory for some updates, which are computed as a tile before each is made by itself.
    Where each is computed alone, a half from memory is put into a register that still holds the one
    before, and waits for it: sums of float16 along rows of 4096 by 1024 took 2.5 times as long (one
    thread, Zen 4)."""

    update: Expr
    memory: Memory

    def fill(self, s: Tiles) -> None:
        """Compute the updates of a scope's tile."""
        value = broadcast(s.tile(self.update), s.shape)
        limits = tuple(t.limit for t in s.tile_axes)
        s.b.store(self.memory, const(0, I64), value, (1,), limits)

    def give(self, s: Tiles, at: Node) -> None:
        """Let a scope take one of them."""
        s.give(self.update, s.b.load(self.memory, at))


def _laid(update: Expr, emission: Emission, width: int) -> _Laid | None:
    """Memory for so many updates; None where they lie as they are needed, or are numbers."""
    dtype = compute_dtype(update.dtype)
    if not reads(update) or (isinstance(update, Read) and dtype is update.dtype):
        return None
    return _Laid(update, emission.b.alloc("updates", dtype, width))


def _lane_by_lane(
    s: Tiles,
    one: Callable[[Tiles, Node], None],
    exprs: Iterable[Expr],
    count: Group,
    laid: _Laid | None,
) -> None:
    """Make the update of each lane of a tile, each of which has slots of its own."""
    (tile,) = s.tile_axes
    _ask_down(s, exprs, count)
    if laid is not None:
        laid.fill(s)

    def lane(i: Node) -> None:
        scope = Tiles(s.emission, {**s.values, tile.axis: add(tile.base, i)})
        if laid is not None:
            laid.give(scope, i)
        one(scope, i)

    def some(first: Node) -> None:
        for k in range(TOGETHER):
            lane(add(first, k))

    whole = tile.width - tile.width % TOGETHER
    if tile.limit is None and whole == tile.width:
        s.b.loop(0, whole, TOGETHER, some)
        return
    valid = const(tile.width, I64)
    if tile.limit is not None:
        valid = binary("min", valid, tile.limit)
    end = sub(valid, binary("rem", valid, TOGETHER))
    s.b.loop(0, end, TOGETHER, some)
    s.b.loop(end, valid, 1, lane)


def _ask_down(s: Tiles, exprs: Iterable[Expr], group: Group) -> None:
    """Ask for what is read some steps of a group ahead, as far as that is known."""
    (tile,), last = s.tile_axes, group[-1] if group else None
    if last is None or not (is_fixed(last.size) and is_fixed(tile.axis.size)):
        return
    if last.size < 2 * AHEAD or tile.axis.size < tile.width:
        return
    # The last block is moved into the array as a whole.
    base = binary("min", tile.base, tile.axis.size - tile.width)
    at = binary("min", add(s.values[last], AHEAD), last.size - 1)
    there = Tiles(s.emission, {**s.values, last: at}, (TileAxis(tile.axis, base, tile.width),))
    _ask(there, exprs)


def _ask(there: Tiles, exprs: Iterable[Expr]) -> None:
    """Load neighbours and use none of them."""
    (tile,) = there.tile_axes
    for r in dict.fromkeys(r for e in exprs for r in reads(e)):
        dynamic = any(a.source is not None for a, _ in r.offset.terms)
        if not r.guards and not dynamic and r.offset.coefficient(tile.axis) == 1:
            there.tile(r)


def _in_a_row(
    scope: Tiles,
    number: Node,
    before: Group,
    count: Group,
    one: Callable[[Tiles], None],
    exprs: Iterable[Expr],
    soon: Callable[[Tiles, Axis, Node], None],
    laid: _Laid | None,
) -> None:
    """The updates of a row, some at a time, while those of the next row are asked for, and by
    `soon` what later ones need."""
    if not count:
        loop_over(scope, count, one)
        return
    *outer, last = count
    rows = prod(a.size for a in before)
    following = decompose(binary("min", add(number, 1), rows - 1), before)

    def row(s: Tiles) -> None:
        def at(i: Node) -> None:
            one(Tiles(s.emission, {last: i}, s.tile_axes, s))

        def some(first: Node) -> None:
            if not is_one(rows):
                values = {**s.values, **following}
                _ask(Tiles(s.emission, values, (TileAxis(last, first, TOGETHER),)), exprs)
            for k in range(TOGETHER):
                soon(s, last, add(first, k))
            if laid is not None:
                laid.fill(Tiles(s.emission, {}, (TileAxis(last, first, TOGETHER),), s))
            for k in range(TOGETHER):
                there = Tiles(s.emission, {last: add(first, k)}, s.tile_axes, s)
                if laid is not None:
                    laid.give(there, const(k, I64))
                one(there)

        full = last.size - last.size % TOGETHER
        if may_be_positive(full):
            s.b.loop(0, full, TOGETHER, some)
        if not divides(TOGETHER, last.size):
            s.b.loop(full, last.size, 1, at)

    loop_over(scope, outer, row)


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

    def over(
        self,
        scope: Tiles,
        along: Group,
        part: Node,
        body: Callable[[Tiles], None],
        width: int = 1,
    ) -> None:
        """body(scope) for the slots of an instance, or for tiles of `width` of them."""
        if not along:
            body(scope)
            return
        *outer, last = along
        if self.count > 1 and not outer and self.size % width:
            width = 1  # few slots
        begin, end = const(0, I64), along[0].size
        stop: Operand = end
        if self.count > 1:
            begin = mul(part, self.size)
            stop = binary("min", add(begin, self.size), end)

        def row(s: Tiles, begin: Operand, stop: Operand) -> None:
            if width > 1:
                _in_tiles(s, last, begin, stop, width, body)
                return
            s.b.loop(begin, stop, 1, lambda i: body(Tiles(s.emission, {last: i}, s.tile_axes, s)))

        def step(i: Node) -> None:
            inner = Tiles(scope.emission, {along[0]: i}, scope.tile_axes, scope)
            loop_over(inner, outer[1:], lambda s: row(s, 0, last.size))

        if outer:
            scope.b.loop(begin, stop, 1, step)
        else:
            row(scope, begin, stop)


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
    if emission.loops.transfers and not found.groups[2]:
        dtype, room = _held_in(found, emission)
        if room is not None:
            # Reading is what takes time: as many as hold all slots, or, where none can, all cores.
            wanted = min(cores, ceil_div(slots * dtype.nbytes, room))
    size = ceil_div(along[0].size, min(wanted, along[0].size))
    width = _width(found, emission)
    if len(along) == 1 and size >= FEW * width:
        size = round_up(size, width)
    return _Share(ceil_div(along[0].size, size), size, slots // along[0].size, slots)


def _is_there(found: Ordered, emission: Emission) -> bool:
    """Whether what updates are combined with is what is in their place already."""
    base, homes = found.exprs[0], emission.homes
    if not isinstance(base, Read) or base.guards:
        return False
    root, at = next(iter(found.written.items()))
    old, new = homes[base.root], homes[root]
    return (old.kind, old.index) == (new.kind, new.index) and same(base.offset, at)


def _are_few(found: Ordered) -> bool:
    """Whether there are fewer updates than slots."""
    count, along = (prod(hint(a.size) for a in found.groups[g]) for g in (1, 3))
    return count < along


def _held_in(found: Ordered, emission: Emission) -> tuple[DType, int | None]:
    """The type in which results are held while updates come, and the bytes for them: scratch memory
    where transfers fill it, or the second cache, where lines of rows that are multiples of a page
    would push each other out at home."""
    dtype = found.root.dtype
    if emission.loops.squares:
        return compute_dtype(dtype), near_nbytes(emission.info)
    space = emission.info.space(SpaceKind.SCRATCHPAD)
    by_transfers = space is not None and emission.loops.transfers
    return dtype, space.nbytes // 4 if space is not None and by_transfers else None


@dataclass(frozen=True, slots=True)
class _Held:
    """Where results are while updates come: at home, or a block of them in scratch memory."""

    found: Ordered
    emission: Emission
    memory: Memory | None
    lanes: int
    """Elements of a slot in the block."""
    first: Node
    """The first slot, and the one behind the last."""
    end: Node

    @property
    def root(self) -> Node:
        return self.found.root

    @property
    def home(self) -> Node:
        """The root in whose home they are, if they are in one."""
        return next(iter(self.found.written))

    @property
    def slots(self) -> int:
        """The positions along the axis."""
        size: int = self.root.shape[self.root["axis"]]
        return size

    def begin(self, s: Tiles, value: Node) -> None:
        """Put the base's elements of a slot there."""
        if self.memory is None:
            s.store(self.home, self.found.written[self.home], value)
            return
        stored = broadcast(cast(value, self.memory.dtype), s.shape)
        s.b.store(self.memory, self._row(self._slot(s)), stored, (1,) * len(s.shape))

    def combine(
        self, s: Tiles, place: Node, value: Callable[[Tiles], Node], lane: Node | int
    ) -> None:
        """Combine the elements of a slot, from a lane of a block on, with an update."""
        if self.memory is not None:
            at, steps = self._row(place, lane), (1,) * len(s.shape)
            old = s.b.load(self.memory, at, s.shape, steps)
            total = self._combined(cast(old, compute_dtype(old.dtype)), value(s))
            s.b.store(self.memory, at, cast(total, self.memory.dtype), steps)
            return
        target, addressed, old = self.at(s, place)
        target.store(self.home, addressed, self._combined(old, value(s)))

    def combine_where(self, s: Tiles, inside: Node, place: Node, value: Node) -> None:
        """The same of one element at home where it is inside, without a branch: of instances that
        share slots each would take it now and then, as no processor can foresee."""
        slot = Axis(self.slots)
        addressed = self.found.addressed(self.home, slot)
        assert addressed is not None, "slots of a home are at even distances"
        memory, start = self.emission.memory(self.emission.homes[self.home], addressed)
        at = Tiles(self.emission, {slot: place}, (), s).position(addressed.shift(-start)).scalar
        if self.root["kind"] != "set":
            old = cast(s.b.gather(memory, at, inside), value.dtype)
            value = self._combined(old, value)
        s.b.scatter(memory, at, cast(value, memory.dtype), inside)

    def at(self, s: Tiles, place: Node) -> tuple[Tiles, Affine, Node]:
        """A slot at home: a scope in which it is, its elements' places in it, and these."""
        slot = Axis(self.slots)
        addressed = self.found.addressed(self.home, slot)
        assert addressed is not None, "slots of a home are at even distances"
        target = Tiles(self.emission, {slot: place}, s.tile_axes, s)
        return target, addressed, target.stored(self.home, addressed)

    def ask(self, s: Tiles, place: Node) -> None:
        """Ask for a slot at home, if what is beside it there are others."""
        slot = Axis(self.slots)
        addressed = self.found.addressed(self.home, slot)
        if self.memory is not None or not is_fixed(self.slots) or self.slots < 2:
            return
        if addressed is None or addressed.coefficient(slot) != 1:
            return
        own = binary("max", binary("min", place, sub(self.end, 1)), self.first)
        pair = TileAxis(slot, binary("min", own, self.slots - 2), 2)
        Tiles(self.emission, {}, (pair,), s).stored(self.home, addressed)

    def _combined(self, old: Node, update: Node) -> Node:
        kind = self.root["kind"]
        return update if kind == "set" else binary(COMBINE[kind], old, update)

    def finish(self, s: Tiles) -> None:
        """Take what a slot holds home."""
        assert self.memory is not None
        at = self._row(self._slot(s))
        value = s.b.load(self.memory, at, s.shape, (1,) * len(s.shape))
        for root, offset in self.found.written.items():
            s.store(root, offset, value)

    def copy(self, over_slots: Callable[[Callable[[Tiles], None]], None]) -> None:
        """Take what a home holds to the others."""
        written = self.found.written
        others = {root: at for root, at in written.items() if root is not self.home}

        def slot(s: Tiles) -> None:
            value = cast(s.stored(self.home, written[self.home]), compute_dtype(self.root.dtype))
            for root, at in others.items():
                s.store(root, at, value)

        if others:
            over_slots(slot)

    def _slot(self, s: Tiles) -> Node:
        return s.position(axis_index(self.found.groups[3]).flat()).scalar

    def _row(self, slot: Node, lane: Node | int = 0) -> Node:
        """Where a block has a slot's elements from a lane on."""
        return add(mul(sub(slot, self.first), self.lanes), lane)
