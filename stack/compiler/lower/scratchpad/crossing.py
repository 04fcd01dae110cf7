"""How far out of its loops an access can be moved."""

from __future__ import annotations

from dataclasses import replace

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.build import add, binary, sub
from hal.tile.kernel import Access, For, Load, Memory
from hal.tile.node import Node, substitute
from stack.compiler.lower.scratchpad.footprint import Dim, Footprint, footprint
from stack.compiler.lower.scratchpad.frames import AccessSite, Frames, may_cross, memory_of
from stack.compiler.lower.scratchpad.linear import LinearForm, linear, variables_of

I64 = DType.I64


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a loop: the index of the first, how far apart they are, how many there are at
    most, and how many (None: as many)."""

    start: Node
    step: int
    most: int
    length: Node | None = None


@dataclass(frozen=True, slots=True)
class Crossed:
    """A loop that an access is moved out of, with the steps that its footprint covers."""

    loop: For
    form: LinearForm
    """The access's first element in a step."""
    steps: Steps
    joined: bool = False
    """The steps go on through the instances of a window."""

    @property
    def offset(self) -> Node:
        """The access's first element in the first step."""
        return self.form.at({self.loop.index: self.steps.start})

    @property
    def position(self) -> Node:
        """The number of the present step."""
        passed = sub(self.loop.index, self.steps.start)
        return passed if self.steps.step == 1 else binary("div", passed, self.steps.step)

    @property
    def dim(self) -> Dim:
        stride = self.form.of(self.loop.index) * self.steps.step
        return Dim(self.steps.most, stride, self.steps.length)


@dataclass(frozen=True, slots=True)
class Way:
    """An access on its way out: the dimensions of its block and the loops that it has crossed, from
    the innermost. `open` says that as many steps of the outermost of them fit as shall be chosen:
    of one strip, or of one window."""

    place: AccessSite
    block: tuple[Dim, ...]
    crossed: tuple[Crossed, ...] = ()
    open: bool = False

    @property
    def offset(self) -> Node:
        """The first element in main memory, where the access has come to."""
        return self.crossed[-1].offset if self.crossed else access_of(self.place).offset

    @property
    def dims(self) -> tuple[Dim, ...]:
        return (*self.block, *(c.dim for c in self.crossed))

    def with_most(self, count: int) -> Way:
        """The way with so many steps of its window or strip, or joined instances."""
        *inner, last = self.crossed
        most = last.steps.most * count if last.joined else count
        return replace(self, crossed=(*inner, replace(last, steps=replace(last.steps, most=most))))

    def in_strip(self, steps: Steps) -> Way:
        """The way with the steps of a strip or window."""
        *inner, last = self.crossed
        return replace(self, crossed=(*inner, replace(last, steps=steps)))


def access_of(place: AccessSite) -> Access:
    """The access of a load or store."""
    s = place.statement
    return s.source if isinstance(s, Load) else s.target


def beginning(place: AccessSite) -> Way | None:
    """An access where it stands; None where its strides are not known."""
    s, access = place.statement, access_of(place)
    shape = s.result.shape if isinstance(s, Load) else s.value.shape
    if any(n.op != "const" for n in access.strides):
        return None
    block = tuple(map(_dim, shape, access.strides, access.limits))
    return Way(place, block)


def _dim(size: int, stride: Node, limit: Node | None) -> Dim:
    step = int(stride["value"])
    if limit is None:
        return Dim(size, step)
    if limit.op == "const":
        return Dim(max(0, min(size, int(limit["value"]))), step)
    return Dim(size, step, binary("max", binary("min", limit, size), 0))


def steps_of(loop: For) -> Steps | None:
    """The steps of a loop, where it is known how many there are at most."""
    if loop.step.op != "const":
        return None
    step = int(loop.step["value"])
    if loop.start.op == loop.stop.op == "const":
        whole = max(0, int(loop.stop["value"]) - int(loop.start["value"]))
        return Steps(loop.start, step, -(-whole // step))
    most = reach(loop)
    if most is None:
        return None
    length = counted(loop.start, loop.stop, step) if loop.stop.op == "min" else None
    return Steps(loop.start, step, -(-most // step), length)


def counted(start: Node, stop: Node, step: int) -> Node:
    """The steps from start to stop."""
    left = binary("max", sub(stop, start), 0)
    return left if step == 1 else binary("div", add(left, step - 1), step)


def reach(loop: For) -> int | None:
    """How far a loop goes at most, where its end is its start and so much, or less."""
    ends = loop.stop.srcs if loop.stop.op == "min" else (loop.stop,)
    for end in ends:
        if end.op == "add" and loop.start in end.srcs:
            far = end.srcs[1] if end.srcs[0] is loop.start else end.srcs[0]
            if far.op == "const":
                return int(far["value"])
    return None


@dataclass(frozen=True, slots=True)
class Crossing:
    """The rules: what is known of the kernel, the loop of a core's instances with their number in a
    window, and the bytes that an access may have."""

    frames: Frames
    instances: For
    written: frozenset[Memory]
    room_nbytes: int

    def outermost(self, place: AccessSite) -> Way | None:
        """An access moved as far out as it can be; None where it stays as it is."""
        way = beginning(place)
        if way is None or self.footprint(way) is None:
            return None
        for number in reversed(range(place.free, len(place.loops))):
            further = self._out(way, number)
            if further is None:
                break
            way = further
            if way.open:
                break
        return way

    def footprint(self, way: Way) -> Footprint | None:
        """The elements that an access touches on its way."""
        s = way.place.statement
        whole = isinstance(s, Load) and memory_of(s) not in self.written
        return footprint(way.dims, whole)

    def nbytes(self, way: Way) -> int | None:
        """The bytes of the footprint."""
        found = self.footprint(way)
        return None if found is None else found.size * access_of(way.place).memory.dtype.nbytes

    def _out(self, way: Way, number: int) -> Way | None:
        """One loop further out, or so many of its steps as fit; None: no further."""
        loop = way.place.loops[number]
        if not may_cross(way.place.statement, loop, number == 0):
            return None
        form = linear(way.offset, frozenset((loop.index,)))
        lengths = [d.length for d in way.dims if d.length is not None]
        used = variables_of(form.rest).union(*map(variables_of, lengths))
        if self.frames.depth(used) > number or loop.step.op != "const":
            return None
        if number == 0:
            return self._opened(way, loop, form)
        steps = steps_of(loop)
        if steps is not None:
            both = self._with_instances(way, number, form, steps)
            whole = both or self._crossed(way, loop, form, steps)
            if self._fits(whole):
                return whole
        return self._opened(way, loop, form)

    def _fits(self, way: Way) -> bool:
        nbytes = self.nbytes(way)
        return nbytes is not None and nbytes <= self.room_nbytes

    def _crossed(self, way: Way, loop: For, form: LinearForm, steps: Steps) -> Way:
        return replace(way, crossed=(*way.crossed, Crossed(loop, form, steps)))

    def _opened(self, way: Way, loop: For, form: LinearForm) -> Way | None:
        """Out of a window, if an instance fits, or out of a strip, if two steps do."""
        least = 1 if loop is self.instances else 2
        steps = Steps(loop.start, int(loop.step["value"]), least, loop.stop)
        opened = replace(self._crossed(way, loop, form, steps), open=True)
        return opened if self._fits(opened) else None

    def _with_instances(self, way: Way, number: int, form: LinearForm, steps: Steps) -> Way | None:
        """Out of a loop and the instances around it at once, if the steps of one instance go on
        where those of the one before end."""
        window, loop = self.instances, way.place.loops[number]
        if number != 1 or steps.length is None or way.place.free > 0:
            return None
        variables = frozenset((window.index,))
        start = linear(loop.start, variables)
        if start.of(window.index) != steps.most * steps.step:
            return None
        lengths = [d.length for d in way.dims if d.length is not None]
        used = variables_of(form.rest).union(variables_of(start.rest), *map(variables_of, lengths))
        if self.frames.depth(used) > 0 or not may_cross(way.place.statement, window, True):
            return None
        first = start.rest
        (last,) = substitute((loop.stop,), {window.index: sub(window.stop, 1)})
        if self.frames.depth(variables_of(last)) > 0:
            return None
        whole = Steps(first, steps.step, steps.most, counted(first, last, steps.step))
        out = self._crossed(way, loop, form, whole)
        joined = replace(out.crossed[-1], joined=True)
        return replace(out, crossed=(*way.crossed, joined), open=True)
