"""What a plan submits: recorded graphs where the device has them, single operations elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Protocol

from hal.core.values import Argument, Graph, Grid, HostMemory, Launchable, Point, Region, Waits
from stack.runtime.placement import BufferRange
from stack.runtime.programs import Loaded
from stack.runtime.stream import Stream

Regions = Sequence[Region]
"""The regions of (*inputs, *outputs) in one run."""


class Segment(Protocol):
    """A part of a plan. Segments are submitted in order to one timeline; `waits` are points of
    others."""

    def submit(self, stream: Stream, regions: Regions, waits: Waits) -> None: ...


class Replay:
    """A recorded graph; slot i of it is the place `slots[i]`."""

    def __init__(self, graph: Graph, slots: Sequence[BufferRange]) -> None:
        self.graph = graph
        self.chosen = chosen(slots)

    def submit(self, stream: Stream, regions: Regions, waits: Waits) -> None:
        slots = self.chosen(regions)
        stream.submitted(stream.device.replay(self.graph, slots, stream.timeline, waits))


class Launch:
    """A launch whose arguments are all known."""

    def __init__(self, launchable: Launchable, grid: Grid) -> None:
        self._launchable = launchable
        self._grid = grid

    def submit(self, stream: Stream, regions: Regions, waits: Waits) -> None:
        point = stream.device.launch(self._launchable, self._grid, stream.timeline, waits)
        stream.submitted(point)


class BindAndLaunch:
    """A launch that is bound at each run, since some of its arguments are arrays of that run."""

    def __init__(self, loaded: Loaded, args: Sequence[Argument | BufferRange], grid: Grid) -> None:
        self._loaded = loaded
        self._args = args
        self._grid = grid

    def submit(self, stream: Stream, regions: Regions, waits: Waits) -> None:
        args = [region_of(a, regions) if isinstance(a, BufferRange) else a for a in self._args]
        launchable = stream.device.bind(self._loaded.program, args)
        try:
            point = stream.device.launch(launchable, self._grid, stream.timeline, waits)
            stream.submitted(point)
        finally:
            stream.device.free(launchable)


class Copy:
    """A copy of which at least one side is an array of the run."""

    def __init__(self, dst: BufferRange | Region, src: BufferRange | Region) -> None:
        self._dst = dst
        self._src = src

    def submit(self, stream: Stream, regions: Regions, waits: Waits) -> None:
        dst, src = (
            region_of(p, regions) if isinstance(p, BufferRange) else p
            for p in (self._dst, self._src)
        )
        stream.copy(dst, src, waits=waits)


class Store:
    """A copy of a temporary to the host's memory."""

    def __init__(self, dst: HostMemory, src: Region) -> None:
        self._dst = dst
        self._src = src
        self.stored: Point | None = None
        """Where the newest one ends."""

    def submit(self, stream: Stream, regions: Regions, waits: Waits) -> None:
        self.stored = stream.copy(self._dst, self._src, self._dst, waits)


class Fetch:
    """A copy of what was stored back to a temporary. It is submitted when that is in the host's
    memory, since a device may read that as soon as a copy of it is submitted."""

    def __init__(self, dst: Region, src: HostMemory, store: Store) -> None:
        self._dst = dst
        self._src = src
        self._store = store

    def submit(self, stream: Stream, regions: Regions, waits: Waits) -> None:
        assert self._store.stored is not None, "what is fetched was stored before"
        stream.wait(self._store.stored, "a value on its way to the host's memory")
        stream.copy(self._dst, self._src, self._src, waits)


class Meet:
    """Nothing but waits, so that what comes after the plan comes after its exchanges, too."""

    def __init__(self, arena: Region) -> None:
        self._nothing = Region(arena.buffer, arena.offset, 0)

    def submit(self, stream: Stream, regions: Regions, waits: Waits) -> None:
        point = stream.device.fill(self._nothing, b"\0", stream.timeline, waits)
        stream.submitted(point)


def region_of(place: BufferRange, regions: Regions) -> Region:
    """The bytes of a place that is not in the arena."""
    assert isinstance(place.argument, int), "other places are resolved when the plan is made"
    whole = regions[place.argument]
    if place.whole:
        return whole
    return Region(whole.buffer, whole.offset + place.offset, place.nbytes)


def chosen(places: Sequence[BufferRange]) -> Callable[[Regions], Sequence[Region]]:
    """A function that gives the regions of the places; a quick one where all are whole arrays."""
    if len(places) > 1 and all(p.whole for p in places):
        return itemgetter(*[p.argument for p in places])
    given: Any = [(p.argument, -1 if p.whole else p.offset, p.nbytes) for p in places]

    def regions_of(regions: Regions) -> list[Region]:
        return [
            whole if offset < 0 else Region(whole.buffer, whole.offset + offset, nbytes)
            for argument, offset, nbytes in given
            for whole in (regions[argument],)
        ]

    return regions_of
