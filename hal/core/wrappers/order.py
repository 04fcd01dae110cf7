"""The happens-before order of a device's operations, as vector clocks over its timelines.

An operation comes after what was submitted to its timeline before it, after the points it waits
for, and after everything that the host had seen done when it was submitted. The host is one thread
here: what one of its threads saw counts for all, so that no order is missed which a lock gave.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hal.core.facts import dataclass

Key = int
"""A timeline: its number."""

Clock = dict[Key, int]
"""For each timeline the newest value that is known to come before."""

_EVER = 1 << 63
"""A value that no point reaches."""


@dataclass(frozen=True, slots=True)
class Event:
    """An operation by its point."""

    timeline: Key
    value: int


@dataclass(slots=True)
class _Pending:
    """An operation that waits for points which nothing has been submitted for yet."""

    event: Event
    clock: Clock
    needs: set[tuple[Key, int]]


class HappensBefore:
    """The order of the events so far. An event's place is known once all it waits for is known.

    An event that waits for a failed point has no place: it does not run.
    """

    def __init__(self) -> None:
        self._host: Clock = {}
        self._failed: Clock = {}
        self._clocks: dict[Key, dict[int, Clock]] = {}
        self._signalled: Clock = {}
        self._pending: list[_Pending] = []

    def submit(self, event: Event, waits: Iterable[tuple[Key, int]]) -> list[Event]:
        """Add an operation; gives the events whose place is known now, in an order that fits."""
        self._clocks.setdefault(event.timeline, {})
        needs = {*waits}
        if event.value > 1:
            needs.add((event.timeline, event.value - 1))
        self._pending.append(_Pending(event, dict(self._host), needs))
        list(self._drop_failed())
        return list(self._settle())

    def add_host_timeline(self, key: Key) -> None:
        """Say that the host advances this timeline."""
        self._signalled[key] = 0

    def signal(self, key: Key, value: int) -> list[Event]:
        """The host advances a timeline; gives the events whose place is known now."""
        self._signalled[key] = max(value, self._signalled[key])
        for pending in self._pending:
            if any(k == key and v <= value for k, v in pending.needs):
                _join(pending.clock, self._host)
        return list(self._settle())

    def fail(self, key: Key) -> list[Event]:
        """A host-driven timeline fails; gives the events that will never run because of it."""
        self._failed[key] = min(self._failed.get(key, _EVER), self._signalled[key] + 1)
        return list(self._drop_failed())

    def seen(self, key: Key, value: int) -> None:
        """The host has seen that a point is reached: what it submits from now on comes after."""
        clock = self._clock_of(key, value)
        if clock is None or key in self._signalled:
            return
        _join(self._host, clock)
        for timeline, clocks in self._clocks.items():
            reached = self._host.get(timeline, 0)
            for old in [v for v in clocks if v <= reached]:
                del clocks[old]

    def before(self, first: Event, second: Event) -> bool:
        """Whether `first`, whose place was known before that of `second`, comes before it."""
        clock = self._clock_of(second.timeline, second.value)
        assert clock is not None, "the place of the second event is known"
        return clock.get(first.timeline, 0) >= first.value

    def over(self, event: Event) -> bool:
        """Whether every operation to come, and every one whose place is not known, is after it."""
        return not self._pending and self._host.get(event.timeline, 0) >= event.value

    def _drop_failed(self) -> Iterator[Event]:
        while doomed := next(
            (
                p
                for p in self._pending
                if any(value >= self._failed.get(key, _EVER) for key, value in p.needs)
            ),
            None,
        ):
            self._pending.remove(doomed)
            event = doomed.event
            self._failed[event.timeline] = min(self._failed.get(event.timeline, _EVER), event.value)
            yield event

    def _settle(self) -> Iterator[Event]:
        """Place events until none can be placed; placing one may place others."""
        while ready := next((p for p in self._pending if self._is_ready(p)), None):
            self._pending.remove(ready)
            event = ready.event
            ready.clock[event.timeline] = event.value
            self._clocks[event.timeline][event.value] = ready.clock
            yield event

    def _is_ready(self, pending: _Pending) -> bool:
        """Take over the clocks of needs that are known; True when none is left."""
        for key, value in tuple(pending.needs):
            clock = self._clock_of(key, value)
            if clock is not None:
                _join(pending.clock, clock)
                pending.needs.discard((key, value))
        return not pending.needs

    def _clock_of(self, key: Key, value: int) -> Clock | None:
        """What comes before a point; None when its place is not known.

        What the host signalled or saw done is in the host's clock, which every operation has that
        was submitted since.
        """
        if value <= self._signalled.get(key, 0) or value <= self._host.get(key, 0):
            return {}
        return self._clocks.get(key, {}).get(value)


def _join(clock: Clock, other: Clock) -> None:
    for key, value in other.items():
        if value > clock.get(key, 0):
            clock[key] = value
