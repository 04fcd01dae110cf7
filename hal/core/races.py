"""Race detection, one wrapper for every device: two operations that touch the same bytes, one of
which writes, and neither of which waits for the other.

It follows copies, fills, launches (by what the parameters of the program say), graphs and
collectives, and the host's waits. It does not see what the host does through `map` or to its own
memory. A race is found by the order alone, whether or not it did harm in this run.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass

from hal.core.device import Device
from hal.core.errors import Failure, HalError
from hal.core.footprint import (
    Bound,
    Footprint,
    Touch,
    conflict,
    of_collective,
    of_command,
    of_copy,
    of_fill,
    of_launch,
    unordered,
)
from hal.core.order import Event, Order
from hal.core.spec import hookimpl
from hal.core.values import (
    Argument,
    Buffer,
    Collective,
    Command,
    Graph,
    Grid,
    Group,
    Handle,
    HostFunction,
    HostMemory,
    Launchable,
    LaunchCommand,
    Point,
    Program,
    Region,
    Timeline,
    Waits,
)

_followed = hookimpl(wrapper=True)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation: what it is called, where it stands, and what it touches."""

    name: str
    event: Event
    touches: Footprint

    def __str__(self) -> str:
        return f"{self.name} (timeline {self.event.timeline} at {self.event.value})"


class Race(HalError):
    """Two operations race. Both were submitted; `first` and `second` say what they are."""

    next_step = "let the second operation wait for the first one's point"

    def __init__(self, message: str, first: str, second: str) -> None:
        super().__init__(message)
        self.first = first
        self.second = second


def races(device: Device) -> RaceDetection:
    """The wrapper "races": see the module."""
    return RaceDetection(device)


class RaceDetection:
    """The hooks. A submission that races with an earlier one raises `Race` naming both."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.RLock()
        self._forget()

    # life

    @_followed
    def reset(self) -> Generator[None, int, int]:
        epoch = yield
        with self._lock:
            self._forget()
        return epoch

    @_followed
    def free(self, handle: Handle) -> Generator[None]:
        yield
        with self._lock:
            for facts in (self._touched, self._bound, self._graphs):
                facts.pop(id(handle), None)
            if isinstance(handle, Timeline) and handle.host_driven:
                self._fail(handle)
            elif not isinstance(handle, Timeline):
                self._kept.pop(id(handle), None)

    # programs and graphs

    @_followed
    def bind(
        self, program: Program, args: Sequence[Argument]
    ) -> Generator[None, Launchable, Launchable]:
        launchable = yield
        with self._lock:
            self._kept[id(launchable)] = launchable
            self._bound[id(launchable)] = tuple(args)
        return launchable

    @_followed
    def record(self, commands: Sequence[Command]) -> Generator[None, Graph, Graph]:
        graph = yield
        with self._lock:
            self._kept[id(graph)] = graph
            recorded = self._graphs[id(graph)] = _recorded(commands, self._bound)
            recorded.check(())
        return graph

    # submissions

    @_followed
    def copy(
        self, dst: Region | HostMemory, src: Region | HostMemory, timeline: Timeline, waits: Waits
    ) -> Generator[None, Point, Point]:
        return self._submitted("copy", of_copy(dst, src), (yield), waits)

    @_followed
    def fill(
        self, dst: Region, pattern: bytes, timeline: Timeline, waits: Waits
    ) -> Generator[None, Point, Point]:
        return self._submitted("fill", of_fill(dst), (yield), waits)

    @_followed
    def launch(
        self, launchable: Launchable, grid: Grid, timeline: Timeline, waits: Waits
    ) -> Generator[None, Point, Point]:
        point = yield
        program = launchable.program
        touches = of_launch(program.params, self._bound[id(launchable)], grid)
        return self._submitted(f"launch {program.entry}", touches, point, waits)

    @_followed
    def replay(
        self, graph: Graph, slots: Sequence[Argument], timeline: Timeline, waits: Waits
    ) -> Generator[None, Point, Point]:
        point = yield
        recorded = self._graphs[id(graph)]
        touches = _merged(t for touches in recorded.touches(slots) for t in touches)
        self._submitted(f"replay of {_named(recorded.commands)}", touches, point, waits)
        with self._lock:
            recorded.check(slots)
        return point

    @_followed
    def host_call(
        self, function: HostFunction, timeline: Timeline, waits: Waits
    ) -> Generator[None, Point, Point]:
        return self._submitted("host_call", (), (yield), waits)

    @_followed
    def collective(
        self,
        group: Group,
        call: Collective,
        dst: Region,
        src: Region,
        timeline: Timeline,
        waits: Waits,
    ) -> Generator[None, Point, Point]:
        touches = of_collective(group, call, dst, src)
        return self._submitted(f"collective {call.kind.value}", touches, (yield), waits)

    # timelines

    @_followed
    def create_timeline(self, host_driven: bool) -> Generator[None, Timeline, Timeline]:
        timeline = yield
        with self._lock:
            number = self._number(timeline)
            if host_driven:
                self._order.add_host_timeline(number)
        return timeline

    @_followed
    def signal(self, timeline: Timeline, value: int, failure: Failure | None) -> Generator[None]:
        # Before the device hears of it: another thread may see the work done right after.
        with self._lock:
            found = self._fail(timeline) if failure else self._advance(timeline, value)
        yield
        _raise_first(found)

    @_followed
    def wait(
        self, points: Sequence[Point], timeout_s: float, wait_all: bool
    ) -> Generator[None, bool, bool]:
        points = tuple(points)  # a wrapper inside may do the waiting and take them away
        try:
            done = yield
        except HalError:
            self._see(points)
            raise
        if done and (wait_all or len(points) == 1):
            self._saw(points)
        else:
            self._see(points)
        return done

    # order

    def _forget(self) -> None:
        self._order = Order()
        self._numbers: dict[int, int] = {}
        self._kept: dict[int, Handle] = {}
        self._bound: dict[int, tuple[Argument, ...]] = {}
        self._graphs: dict[int, _Recorded] = {}
        self._waiting: dict[Event, Operation] = {}
        self._touched: dict[int, list[tuple[Operation, Touch]]] = {}

    def _number(self, timeline: Timeline) -> int:
        """Timelines count from 1 as they appear; one that is kept keeps its id to itself."""
        self._kept[id(timeline)] = timeline
        return self._numbers.setdefault(id(timeline), len(self._numbers) + 1)

    def _submitted(self, name: str, touches: Footprint, point: Point, waits: Waits) -> Point:
        with self._lock:
            event = Event(self._number(point.timeline), point.value)
            self._waiting[event] = Operation(name, event, touches)
            # A timeline that another wrapper made for itself orders nothing that is seen here.
            known = [p for p in waits if id(p.timeline) in self._numbers]
            needs = [(self._number(p.timeline), p.value) for p in known]
            found = self._place(self._order.submit(event, needs))
        _raise_first(found)
        return point

    def _advance(self, timeline: Timeline, value: int) -> list[Race]:
        return self._place(self._order.signal(self._number(timeline), value))

    def _fail(self, timeline: Timeline) -> list[Race]:
        """What waits for the timeline does not run, so it races with nothing."""
        for event in self._order.fail(self._number(timeline)):
            self._waiting.pop(event, None)
        return []

    def _place(self, events: Iterable[Event]) -> list[Race]:
        """Compare operations whose place in the order is known now with those known before."""
        return [race for e in events for race in self._compare(self._waiting.pop(e))]

    def _compare(self, new: Operation) -> list[Race]:
        found: dict[Event, Race] = {}
        for touch in new.touches:
            kept = self._touched.setdefault(id(touch.buffer), [])
            for old, before in kept:
                ordered = old is new or self._order.before(old.event, new.event)
                if not ordered and before.conflicts(touch):
                    found.setdefault(old.event, _race(str(old), before, str(new), touch))
            kept[:] = [(o, t) for o, t in kept if not self._is_covered(o, t, new, touch)]
            kept.append((new, touch))
        return list(found.values())

    def _is_covered(self, old: Operation, before: Touch, new: Operation, touch: Touch) -> bool:
        """Whether any race with the old touch to come is a race with the new one as well."""
        if self._order.over(old.event):
            return True
        return touch.covers(before) and (old is new or self._order.before(old.event, new.event))

    def _see(self, points: Sequence[Point]) -> None:
        """Find out which points are over: reached or failed."""
        self._saw([point for point in points if self._is_over(point)])

    def _is_over(self, point: Point) -> bool:
        try:
            return self._device.wait((point,), 0.0, True)
        except HalError:
            return True

    def _saw(self, points: Sequence[Point]) -> None:
        with self._lock:
            for point in points:
                self._order.seen(self._number(point.timeline), point.value)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A graph's commands, what their launchables were bound to, and which of them are unordered.

    `checked` has the slot arguments for which these were compared already.
    """

    commands: tuple[Command, ...]
    bound: Bound
    pairs: tuple[tuple[int, int], ...]
    checked: set[tuple[object, ...]]

    def touches(self, slots: Sequence[Argument]) -> list[Footprint]:
        """What each command touches with these arguments in the slots."""
        return [of_command(command, self.bound, slots) for command in self.commands]

    def check(self, slots: Sequence[Argument]) -> None:
        """Raise Race for two unordered commands that conflict."""
        given = tuple(arg if isinstance(arg, Region) else id(arg) for arg in slots)
        if given in self.checked:
            return
        touches = self.touches(slots)
        for first, second in self.pairs:
            if pair := conflict(touches[first], touches[second]):
                raise _race(self._said(first), pair[0], self._said(second), pair[1])
        self.checked.add(given)

    def _said(self, index: int) -> str:
        return f"{_name(self.commands[index])} (command {index} of a graph)"


def _recorded(commands: Sequence[Command], bound: Bound) -> _Recorded:
    launches = [c.launchable for c in commands if isinstance(c, LaunchCommand)]
    kept = {id(launchable): bound[id(launchable)] for launchable in launches}
    return _Recorded(tuple(commands), kept, tuple(unordered(commands)), set())


def _race(first: str, before: Touch, second: str, touch: Touch) -> Race:
    start, end = max(before.start, touch.start), min(before.end, touch.end)
    text = (
        f"{touch.buffer.device}: race on bytes [{start}, {end}) of {_buffer(touch.buffer)}: "
        f"{first} {_does(before)}, {second} {_does(touch)}, and neither waits for the other"
    )
    return Race(text, first, second)


def _does(touch: Touch) -> str:
    return f"{'writes' if touch.writes else 'reads'} [{touch.start}, {touch.end})"


def _buffer(buffer: Buffer) -> str:
    return f"a buffer of {buffer.nbytes} bytes in {buffer.space} (id {id(buffer):x})"


def _raise_first(found: Sequence[Race]) -> None:
    if found:
        raise found[0]


def _name(command: Command) -> str:
    if isinstance(command, LaunchCommand):
        return f"launch {command.launchable.program.entry}"
    return type(command).__name__.removesuffix("Command").lower()


def _named(commands: Sequence[Command]) -> str:
    names = list(dict.fromkeys(_name(command) for command in commands))
    more = ", ..." if len(names) > 3 else ""
    return f"{len(commands)} commands ({', '.join(names[:3])}{more})"


def _merged(touches: Iterable[Touch]) -> Footprint:
    """The same bytes with as few touches as possible: neighbours of a kind become one."""
    merged: list[Touch] = []
    for touch in sorted(touches, key=lambda t: (id(t.buffer), t.writes, t.start)):
        last = merged[-1] if merged else None
        same = last and last.buffer is touch.buffer and last.writes is touch.writes
        if last and same and touch.start <= last.end:
            end = max(last.end, touch.end)
            merged[-1] = Touch(last.buffer, last.start, end, last.writes)
        else:
            merged.append(touch)
    return tuple(merged)
