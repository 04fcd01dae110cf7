"""Race detection, one wrapper for every device: two operations that touch the same bytes, one of
which writes, and neither of which waits for the other.

It follows copies, fills, launches (by what the parameters of the program say), graphs and
collectives, and the host's waits. It does not see what the host does through `map` or to its own
memory. A race is found by the order alone, whether or not it did harm in this run.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Sequence

from hal.core.device import Device
from hal.core.errors import Failure, HalError
from hal.core.facts import dataclass
from hal.core.spec import hookimpl
from hal.core.values import (
    Argument,
    Collective,
    Command,
    Graph,
    Grid,
    Group,
    Handle,
    HostFunction,
    HostMemory,
    Launchable,
    Point,
    Program,
    Region,
    Timeline,
    Waits,
)
from hal.core.wrappers.footprint import (
    Footprint,
    Touch,
    merged,
    of_collective,
    of_copy,
    of_fill,
    of_launch,
)
from hal.core.wrappers.order import Event, HappensBefore
from hal.core.wrappers.race import Race, RecordedGraph, race_of, recorded_of

_followed = hookimpl(wrapper=True)


@dataclass(frozen=True, slots=True)
class PlacedOperation:
    """An operation: what it is called, where it stands, and what it touches."""

    name: str
    event: Event
    touches: Footprint

    def __str__(self) -> str:
        return f"{self.name} (timeline {self.event.timeline} at {self.event.value})"


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
            recorded = self._graphs[id(graph)] = recorded_of(commands, self._bound)
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
        touches = merged(t for touches in recorded.touches(slots) for t in touches)
        self._submitted(f"replay of {recorded}", touches, point, waits)
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
            found = (
                self._fail(timeline)
                if failure
                else self._place(self._order.signal(self._number(timeline), value))
            )
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
        self._order = HappensBefore()
        self._numbers: dict[int, int] = {}
        self._kept: dict[int, Handle] = {}
        self._bound: dict[int, tuple[Argument, ...]] = {}
        self._graphs: dict[int, RecordedGraph] = {}
        self._waiting: dict[Event, PlacedOperation] = {}
        self._touched: dict[int, list[tuple[PlacedOperation, Touch]]] = {}

    def _number(self, timeline: Timeline) -> int:
        """Timelines count from 1 as they appear; one that is kept keeps its id to itself."""
        self._kept[id(timeline)] = timeline
        return self._numbers.setdefault(id(timeline), len(self._numbers) + 1)

    def _submitted(self, name: str, touches: Footprint, point: Point, waits: Waits) -> Point:
        with self._lock:
            event = Event(self._number(point.timeline), point.value)
            self._waiting[event] = PlacedOperation(name, event, touches)
            # A timeline that another wrapper made for itself orders nothing that is seen here.
            known = [p for p in waits if id(p.timeline) in self._numbers]
            needs = [(self._number(p.timeline), p.value) for p in known]
            found = self._place(self._order.submit(event, needs))
        _raise_first(found)
        return point

    def _fail(self, timeline: Timeline) -> list[Race]:
        """What waits for the timeline does not run, so it races with nothing."""
        for event in self._order.fail(self._number(timeline)):
            self._waiting.pop(event, None)
        return []

    def _place(self, events: Iterable[Event]) -> list[Race]:
        """Compare operations whose place in the order is known now with those known before."""
        races: list[Race] = []
        for new in map(self._waiting.pop, events):
            found: dict[Event, Race] = {}
            for touch in new.touches:
                kept = self._touched.setdefault(id(touch.buffer), [])
                for old, before in kept:
                    ordered = old is new or self._order.before(old.event, new.event)
                    if not ordered and before.conflicts(touch):
                        found.setdefault(old.event, race_of(str(old), before, str(new), touch))
                kept[:] = [(o, t) for o, t in kept if not self._is_covered(o, t, new, touch)]
                kept.append((new, touch))
            races += found.values()
        return races

    def _is_covered(
        self, old: PlacedOperation, before: Touch, new: PlacedOperation, touch: Touch
    ) -> bool:
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


def _raise_first(found: Sequence[Race]) -> None:
    if found:
        raise found[0]
