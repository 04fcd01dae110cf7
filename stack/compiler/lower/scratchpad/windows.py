"""Loads and stores as transfers of what many steps of a loop touch: one long transfer for many
short ones.

The instances of a core are a loop as well, whose steps come in windows. An access is moved out of
the loops around it as far as the scratchpad allows: out of whole loops, at last out of so many
steps of one as fit (a strip of a loop, a window of instances).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.build import add, binary, index, mul
from hal.tile.kernel import (
    SCRATCHPAD,
    Access,
    Alloc,
    Carried,
    For,
    If,
    Load,
    Memory,
    Statement,
    Store,
)
from hal.tile.node import Node, Type, node
from stack.compiler.lower.scratchpad.crossing import Crossing, Steps, Way, access_of, counted
from stack.compiler.lower.scratchpad.footprint import times
from stack.compiler.lower.scratchpad.frames import Frames, memory_of
from stack.compiler.lower.scratchpad.near import named
from stack.compiler.lower.scratchpad.transfer import Get, Put, Together, Transfer

I64 = DType.I64
MOST_STEPS = 1 << 12
"""Steps that a window or strip has at most."""
STEPS_TOGETHER = 64
"""Elements of two bytes or more that fill lines of 128 bytes."""


@dataclass(frozen=True, slots=True)
class HoistedAccess:
    """An access in the scratchpad, the transfer for it, and the loop outside of which that stands;
    None: beside the access."""

    local: Access
    transfer: Transfer
    loop: For | None


@dataclass(frozen=True, slots=True)
class Windowed:
    """The loop over a window's instances with the transfers for less than a window: its `body`;
    the transfers of a window, the instances that it has at most, and what the kernel writes."""

    body: tuple[Statement, ...]
    gets: tuple[Get, ...]
    puts: tuple[Put, ...]
    most: int
    written: frozenset[Memory]

    @property
    def whole(self) -> tuple[Statement, ...]:
        """All of it as statements, one after the other."""
        used = dict.fromkeys(t.local for t in (*self.gets, *self.puts))
        arrays = [Alloc(m) for m in used]
        return (*arrays, *_together(self.gets), *self.body, *_together(self.puts))


def windowed(instances: For, room_nbytes: int) -> Windowed:
    """The loop of a window's instances with the transfers that such a scratchpad allows."""
    return _Windows(instances, room_nbytes).found()


class _Windows:
    def __init__(self, instances: For, room_nbytes: int) -> None:
        self._instances = instances
        frames = Frames.of((instances,))
        places = frames.places
        written = frozenset(
            memory_of(p.statement) for p in places if isinstance(p.statement, Store)
        )
        arrays = {(memory_of(p.statement), isinstance(p.statement, Load)) for p in places}
        room = room_nbytes // max(1, len(arrays))
        self._rules = Crossing(frames, instances, written, room)
        self._ways = [w for p in places if (w := self._rules.outermost(p)) is not None]
        # The steps of each window and strip: as many as fit for all accesses that it has.
        found: dict[Node, int] = {}
        for w in self._ways:
            if w.open:
                owner = self._owner(w).index
                found[owner] = min(found.get(owner, MOST_STEPS), self._most(w))
        self._counts = {owner: _even(count) for owner, count in found.items()}
        owners = (self._owner(w) for w in self._ways if w.open)
        indices = dict.fromkeys(o.index for o in owners if o is not self._instances)
        self._strips = {
            index: node("var", Type((), I64), id=f"strip {number}")
            for number, index in enumerate(indices)
        }
        self._locals: dict[tuple[object, ...], Memory] = {}
        self._plans = {id(w.place.statement): self._plan(w) for w in self._ways}

    def found(self) -> Windowed:
        gets, puts = self._outside(self._instances)
        mine = {t.local for t in (*gets, *puts)}
        arrays = tuple(Alloc(m) for m in self._locals.values() if m not in mine)
        loop = replace(self._instances, body=self._block(self._instances.body))
        count = self._counts.get(self._instances.index, 1)
        return Windowed((*arrays, loop), tuple(gets), tuple(puts), count, self._rules.written)

    # sizes

    def _owner(self, w: Way) -> For:
        """The loop that comes in windows or strips."""
        outer = w.crossed[-1]
        return self._instances if outer.loop is w.place.loops[0] or outer.joined else outer.loop

    def _most(self, w: Way) -> int:
        low, high = 1, MOST_STEPS
        while low < high:
            middle = (low + high + 1) // 2
            nbytes = self._rules.nbytes(w.with_most(middle))
            if nbytes is not None and nbytes <= self._rules.room_nbytes:
                low = middle
            else:
                high = middle - 1
        return low

    # plans

    def _plan(self, w: Way) -> HoistedAccess:
        if w.open:
            owner = self._owner(w)
            count = self._counts[owner.index]
            if owner is not self._instances:
                first, by = self._strips[owner.index], int(owner.step["value"])
                length = counted(first, self._strip_end(owner, count), by)
                w = w.in_strip(Steps(first, by, count, length))
            elif w.crossed[-1].joined:
                w = w.with_most(count)
            else:
                w = w.in_strip(Steps(owner.start, 1, count, owner.stop))
        found = self._rules.footprint(w)
        assert found is not None, "a footprint of fewer steps has been found"
        access = access_of(w.place)
        steps = found.steps[len(w.block) :]
        start = index(found.start)
        for c, step in zip(w.crossed, steps, strict=True):
            start = add(start, times(c.position, step))
        kind = Get if isinstance(w.place.statement, Load) else Put
        offset = add(w.offset, found.first)
        local = self._local(w, (kind, offset, found.runs), found.size)
        strides = tuple(map(index, found.steps[: len(w.block)]))
        near = Access(local, start, strides, access.limits)
        transfer = kind(local, access.memory, offset, found.runs)
        loop = self._owner(w) if w.open else w.crossed[-1].loop if w.crossed else None
        return HoistedAccess(near, transfer, loop)

    def _strip_end(self, loop: For, count: int) -> Node:
        return binary("min", add(self._strips[loop.index], mul(loop.step, count)), loop.stop)

    def _local(self, w: Way, key: tuple[object, ...], size: int) -> Memory:
        """The array of a transfer: loads of the same elements, which nobody writes, share one."""
        memory, s = access_of(w.place).memory, w.place.statement
        shared = isinstance(s, Load) and memory not in self._rules.written and w.crossed
        loop = self._owner(w).index if w.open else w.crossed[-1].loop.index if w.crossed else None
        whole = (memory, *key, loop, None if shared else id(s))
        name = named(len(self._locals))
        return self._locals.setdefault(whole, Memory(name, memory.dtype, SCRATCHPAD, size))

    # statements

    def _block(self, block: Sequence[Statement]) -> tuple[Statement, ...]:
        found: list[Statement] = []
        for s in block:
            found += self._statement(s)
        return tuple(found)

    def _statement(self, s: Statement) -> list[Statement]:
        match s:
            case Load() | Store() if id(s) in self._plans:
                plan = self._plans[id(s)]
                beside = [cast("Statement", plan.transfer)] if plan.loop is None else []
                if isinstance(s, Load):
                    return [*beside, Load(s.result, plan.local, s.other)]
                return [Store(plan.local, s.value), *beside]
            case For():
                gets, puts = (_together(t) for t in self._outside(s))
                inner = replace(s, body=self._block(s.body))
                if s.index not in self._strips:
                    return [*gets, inner, *puts]
                return [self._in_strips(inner, gets, puts)]
            case If():
                return [If(s.condition, self._block(s.then), self._block(s.orelse))]
        return [s]

    def _outside(self, s: For) -> tuple[list[Get], list[Put]]:
        """The gets and puts that stand outside of a loop."""
        plans = (self._plans[id(w.place.statement)] for w in self._ways)
        found = dict.fromkeys(p.transfer for p in plans if p.loop is s)
        return [t for t in found if isinstance(t, Get)], [t for t in found if isinstance(t, Put)]

    def _in_strips(self, s: For, gets: list[Statement], puts: list[Statement]) -> For:
        """A loop over strips, with a loop over the steps of each in it."""
        first, count = self._strips[s.index], self._counts[s.index]
        between = [_between(c, number) for number, c in enumerate(s.carried)]
        inner = tuple(
            replace(c, init=var, result=result)
            for c, (var, result) in zip(s.carried, between, strict=True)
        )
        outer = tuple(
            Carried(var, c.init, result, c.result)
            for c, (var, result) in zip(s.carried, between, strict=True)
        )
        loop = replace(s, start=first, stop=self._strip_end(s, count), carried=inner)
        body = (*gets, loop, *puts)
        return For(first, s.start, s.stop, mul(s.step, count), outer, body)


def _even(count: int) -> int:
    """A number of steps such that windows begin where lines of the memory do, if they are side by
    side: a line in two parts costs as much as two."""
    return count - count % STEPS_TOGETHER if count > 2 * STEPS_TOGETHER else count


def _together(transfers: Sequence[Transfer]) -> list[Statement]:
    return [cast("Statement", Together(tuple(transfers)))] if transfers else []


def _between(c: Carried, number: int) -> tuple[Node, Node]:
    """What a strip begins with, and what it leaves."""
    name = c.var["id"]
    return (
        node("var", c.var.type, id=f"strip of {name} {number}"),
        node("var", c.var.type, id=f"end of {name} {number}"),
    )
