"""The writing of a kernel for a group: tiles in registers, and the staging area by which an element
gets to another lane."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node, Type
from stack.compiler.lower.simt.dialect import SimtDialect
from stack.compiler.lower.simt.fence import Fence
from stack.compiler.lower.simt.layout import Layout, Spread, bits, registers
from stack.compiler.lower.simt.mapping import Mapping
from stack.compiler.text.c.dialect import Dialect
from stack.compiler.text.c.nest import LoopNest
from stack.compiler.text.c.scope import ZERO, Coordinate, Position, PrivateArray, Scope, flat
from stack.compiler.text.c.types import register
from stack.compiler.text.c.writer import CWriter

LANE = "lane"
STAGE = "stage"
GIVEN = "given"
ALIGNED = 16


@dataclass(frozen=True, slots=True)
class ScratchArray:
    """So many elements of a kind in scratch memory."""

    kind: str
    name: str
    count: int
    nbytes: int

    def declared(self, d: Dialect) -> str:
        """Its declaration at the start of a kernel."""
        return f"{d.array} {self.kind} {self.name}[{self.count}] {d.aligned};"

    def within(self, d: Dialect, start: int) -> str:
        """The same as a part of what a launch gives."""
        pointer = f"{d.in_scratch} {self.kind} *".lstrip()
        return f"{pointer}const {self.name} = ({pointer})({GIVEN} + {start});"


class GroupText:
    """What the text of one kernel is written with. `head` are lines at the kernel's start. Loops
    copy operands into as many `stages`."""

    def __init__(
        self,
        out: CWriter,
        groups: SimtDialect,
        mapping: Mapping,
        fence: Fence,
        info: DeviceInfo,
        stages: int,
    ) -> None:
        self.out, self.groups, self.mapping, self.fence = out, groups, mapping, fence
        self.info = info
        self.head = [f"const int {LANE} = {groups.lane};"]
        self.staged_nbytes = 0
        self.allocated: list[ScratchArray] = []
        """The kernel's own scratch memory, beside the staging area."""
        self.piped: dict[Node, Any] = {}
        """Operands of matrix units that loops have staged, as `product.Lined`."""
        self.stages = stages
        self._floor = self._top = 0
        self._places: dict[Spread, str] = {}
        self._held: dict[str, tuple[Spread, str]] = {}
        self._staged: dict[str, str] = {}

    def done(self) -> None:
        """A statement is written: what it staged is not used again."""
        if self._top > self._floor:
            self.fence.unstage()
        self._top = self._floor
        self._staged.clear()

    # loops over what a lane holds

    def nest(self, scope: Scope, layout: Layout, by: Sequence[int] = ()) -> LoopNest:
        """Loops over the elements that a lane holds of a tile with this layout, or over the first
        ones of so many neighbours `by` axis."""
        steps = by or [1] * len(layout)
        pairs = list(zip(layout, steps, strict=True))
        return LoopNest(scope, (), lambda nest: tuple(self._axis(nest, *pair) for pair in pairs))

    def _axis(self, nest: LoopNest, s: Spread, by: int) -> Coordinate:
        if s.size == 1:
            return ZERO
        held = ZERO
        if s.registers > by:
            held = nest.loop(s.registers // by, self.groups.unrolled)
            if by > 1:
                held = Coordinate(f"({held.text} * {by})", held.level)
        # The position that a lane has in a register, see `Spread.position`
        place = self.place(s)
        if s.registers == s.own:
            position = _sum(_times(place, s.own), held.text)
        elif s.own == 1:
            position = _sum(_times(held.text, s.lanes), place)
        else:
            turn = _sum(_times(f"{held.text} / {s.own}", s.lanes), place)
            position = f"({turn}) * {s.own} + {held.text} % {s.own}"
        position = _sum(_times(self.set_of(s), s.share), position)
        index = nest.named_index(position, held.level)
        self._held[index.text] = (s, held.text)
        return index

    def set_of(self, s: Spread) -> str:
        """A variable with the number of the lane's set."""
        return self.place(Spread(s.sets, 1, s.sets, s.apart))

    def place(self, s: Spread) -> str:
        """A variable with the lane's place among those of its set that share an axis."""
        if s.lanes == 1:
            return "0"
        key = Spread(s.lanes, 1, s.lanes, s.every)
        if key not in self._places:
            self._places[key] = name = self.out.name("p")
            self.head.append(f"const int {name} = {LANE} / {s.every} % {s.lanes};")
        return self._places[key]

    def within(self, layout: Layout, position: Position) -> list[str]:
        """Conditions for a held element to be one of the tile."""
        pairs = zip(position, layout, strict=True)
        return [f"{i.text} < {s.size}" for i, s in pairs if s.covered > s.size]

    def first(self, layout: Layout) -> list[str]:
        """The condition for this lane to be the first of those that hold the same elements."""
        others = (self.mapping.lanes - 1) & ~bits(layout)
        return [f"({LANE} & {others}) == 0"] if others else []

    # tiles

    def declare(self, scope: Scope, type: Type, layout: Layout) -> PrivateArray:
        """A tile in registers."""
        kind, count = register(self.out.dialect, type.dtype), prod(registers(layout))
        name = self.out.name("v")
        self.out.do(f"{kind} {name}{f'[{count}]' if count > 1 else ''};")
        return PrivateArray(name, type.shape, partial(self._find, scope, name, type, layout))

    def _find(self, scope: Scope, name: str, type: Type, layout: Layout, position: Position) -> str:
        """An element: of this lane's registers, else of the staging area."""
        held = [self.register(s, i) for s, i in zip(layout, position, strict=True)]
        if all(r is not None for r in held):
            return cell(name, layout, [r or "0" for r in held])
        if name not in self._staged:
            # Put a tile where every lane reaches all of it.
            target = self.room(type.dtype, type.size)
            nest = self.nest(scope, layout)
            value = self._find(scope, name, type, layout, nest.position)
            place = f"{target}[{flat(nest.position, type.shape).text}]"
            self.put(nest, layout, f"{place} = {value};")
            self.fence.barrier()
            self._staged[name] = target
        at = flat(position, type.shape).text
        place = f"{self._staged[name]}[{at}]"
        # What a lane holds beyond the tile's end is nobody's, and not in the staging area either.
        spreads = (self._held[word][0] for word in re.findall(r"\w+", at) if word in self._held)
        over = any(s.covered > s.size for s in spreads)
        return f"({at} < {type.size} ? {place} : 0)" if over else place

    def register(self, s: Spread, i: Coordinate) -> str | None:
        """Which register of an axis holds a position, if this lane does."""
        if s.size == 1:
            return "0"
        known, held = self._held.get(i.text, (None, ""))
        return held if known == s else None

    def put(self, nest: LoopNest, layout: Layout, line: str) -> None:
        """Do once, at every element that is one."""
        conditions = self.within(layout, nest.position) + self.first(layout)
        nest.do(guarded(conditions, line))
        nest.emit()

    def room(self, dtype: DType, count: int) -> str:
        """An array in the staging area, until the statement is done."""
        if self._top == self._floor:
            self.fence.stage()
        start = -(-self._top // ALIGNED) * ALIGNED
        self._top = start + dtype.nbytes_of(count)
        self.staged_nbytes = max(self.staged_nbytes, self._top)
        return self.place_of(dtype, str(start))

    def reserve(self, nbytes: int) -> int:
        """Keep so many more bytes of the staging area, and what was staged before them, from
        statements until `unreserve`; gives where they begin."""
        if self._top == self._floor:
            self.fence.stage()
        start = -(-self._top // ALIGNED) * ALIGNED
        self._floor = self._top = start + nbytes
        self.staged_nbytes = max(self.staged_nbytes, self._top)
        return start

    def unreserve(self) -> None:
        """Leave statements all of the staging area."""
        self._floor = self._top = 0
        self.fence.unstage()

    def _arrays(self) -> Iterator[tuple[int, ScratchArray]]:
        """All arrays in scratch memory, the staging area first, and where each of them begins."""
        n, end = self.staged_nbytes, 0
        stage = [ScratchArray(self.groups.c.words[8], STAGE, n, n)] if n else []
        for array in (*stage, *self.allocated):
            yield end, array
            end += -(-array.nbytes // ALIGNED) * ALIGNED

    @property
    def scratch_nbytes(self) -> int:
        """The bytes of all of them."""
        return max((start + array.nbytes for start, array in self._arrays()), default=0)

    def scratch(self) -> tuple[list[str], int]:
        """The declarations of all scratch memory, and the bytes of it that a launch has to give."""
        d, most, nbytes = self.groups.c, self.groups.declared_nbytes, self.scratch_nbytes
        if most is None or nbytes <= most:
            return [array.declared(d) for _, array in self._arrays()], 0
        lines = (array.within(d, start) for start, array in self._arrays())
        return [self.groups.given.format(GIVEN), *lines], nbytes

    def place_of(self, dtype: DType, start: str) -> str:
        """An array in the staging area from a byte on."""
        name, space = self.out.name("s"), self.out.dialect.in_scratch
        kind = register(self.out.dialect, dtype)
        self.out.do(f"{space} {kind} *{name} = ({space} {kind} *)({STAGE} + {start});")
        return name


def cell(name: str, layout: Layout, held: Sequence[str]) -> str:
    """The register of a tile by that of each axis."""
    shape = registers(layout)
    if prod(shape) == 1:
        return name
    at = tuple(Coordinate(r, 0) for r in held)
    return f"{name}[{flat(at, shape).text}]"


def guarded(conditions: Sequence[str], line: str) -> str:
    """A line that is done where all conditions hold."""
    return f"if ({' && '.join(conditions)}) {line}" if conditions else line


def _times(a: str, n: int) -> str:
    return "0" if a == "0" else a if n == 1 else f"{a} * {n}"


def _sum(a: str, b: str) -> str:
    return b if a == "0" else a if b == "0" else f"{a} + {b}"
