"""Reading what arrays hold at one moment while later work goes on."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from hal.core.errors import HalError, InvalidCall, error_for
from hal.core.facts import dataclass
from hal.core.values import Point, Region, Timeline, Waits
from stack.runtime.array import Array
from stack.runtime.stream import Stream

Bytes = NDArray[np.uint8]
Piece = tuple[int, Bytes]
"""The first byte of an array, and the memory that takes as many bytes as it has from there on."""


SMALL = 64 << 10
"""Bytes up to which an array is copied before anything later begins: a step may update its counters
first, and would then wait as a whole."""


@dataclass(slots=True)
class _Gate:
    """A host-driven timeline; `value` is the last one that somebody waits for."""

    timeline: Timeline
    value: int = 0


@dataclass(frozen=True, slots=True)
class _Source:
    """Where an array's value is, and after which points."""

    region: Region
    after: Waits


@dataclass(frozen=True, slots=True)
class _Copy:
    """The bytes of a small array, there at a point."""

    data: Bytes
    point: Point


class Readings:
    """The snapshots of an engine: the timeline of their copies, and gates that none uses now."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        # Not the stream's: a thread that holds that one may wait for what waits for a gate.
        self.lock = threading.Lock()
        self.gates: list[_Gate] = []
        self._copies: Stream | None = None

    def snapshot(self, arrays: Sequence[Array]) -> Snapshot:
        """As `Engine.snapshot`."""
        return Snapshot(self, arrays)

    def copies(self) -> Stream:
        """The timeline of copies. What comes after them on the engine's own may wait for a gate
        that opens behind them, so that they cannot be there."""
        with self.lock:
            if self._copies is None:
                stream = self.stream
                self._copies = Stream(stream.device, stream.timeout_s, lambda *_: None)
            return self._copies


class Snapshot:
    """The values that arrays had when it was made, until `close`, which comes in any case. Any
    thread may read and close."""

    def __init__(self, readings: Readings, arrays: Sequence[Array]) -> None:
        stream = readings.stream
        self._readings = readings
        self._closed = False
        with stream.lock:
            for array in arrays:
                if array.failure is not None:
                    raise error_for(array.failure)
            timeline = stream.timeline
            self._sources: dict[int, _Source | _Copy] = {}
            held = []
            for array in (a for a in arrays if a.nbytes):  # nothing is read of others
                if array.nbytes > SMALL:
                    after = (Point(timeline, array.written),) if array.written else ()
                    self._sources[id(array)] = _Source(array.region, after)
                    held.append(array)
                else:
                    data = np.empty(array.nbytes, np.uint8)
                    point = stream.copy(data.data, array.region, data)
                    self._sources[id(array)] = _Copy(data, point)
            with readings.lock:
                gates = readings.gates
                self._gate = gates.pop() if gates else _Gate(stream.device.create_timeline(True))
                self._gate.value += 1
                self._open = Point(self._gate.timeline, self._gate.value)
                self._held = held
                for array in held:
                    array.readers = (*array.readers, self._open)

    def read(self, array: Array, pieces: Sequence[Piece]) -> None:
        """Copy bytes of an array to the host, and wait for them.

        Raises InvalidCall after `close`, OperationFailed or DeviceLost with the first cause where
        the value or a copy failed, DeadlineExceeded when it is late.
        """
        source = self._source(array)
        if isinstance(source, _Copy):
            self._readings.stream.wait(source.point, f"reading {array.type}")
            for begin, out in pieces:
                out[:] = source.data[begin : begin + out.size]
            return
        copies = self._readings.copies()
        last = None
        for begin, out in pieces:
            with copies.lock:
                region = Region(source.region.buffer, source.region.offset + begin, out.nbytes)
                last = copies.copy(out.data, region, (array, out), source.after)
            copies.throttle()
        if last is not None:
            copies.wait(last, f"reading {array.type}")

    def _source(self, array: Array) -> _Source | _Copy:
        source = self._sources.get(id(array))
        if source is None:
            raise InvalidCall(f"{array!r} is not in this snapshot, or that is closed")
        if isinstance(source, _Copy):
            return source
        if any(p.timeline is not self._readings.stream.timeline for p in source.after):
            # A failure has ended that timeline: its points are reached, or never will be.
            if array.failure is not None:
                raise error_for(array.failure)
            return _Source(source.region, ())
        return source

    def close(self) -> None:
        """Let the arrays change. Idempotent."""
        readings = self._readings
        with readings.lock:
            if self._closed:
                return
            self._closed = True
            with suppress(HalError):  # a device that is lost has failed what waits
                readings.stream.device.signal(self._open.timeline, self._open.value, None)
                readings.gates.append(self._gate)
            for array in self._held:
                array.readers = tuple(p for p in array.readers if p != self._open)
            self._sources.clear()
            self._held.clear()
