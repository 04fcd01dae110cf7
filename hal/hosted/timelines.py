"""Timelines: creation, signals, waits, spans."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hal.core.errors import Failure, InvalidCall, error_for
from hal.core.spec import hookimpl
from hal.core.values import Point, Span, Timeline
from hal.hosted.lock import LOCK, SLICE_S
from hal.hosted.queues import Queue, failure_of, reached
from hal.hosted.session import Session
from hal.hosted.streams import StreamMachine


class Timelines:
    """The hooks of timelines."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @hookimpl
    def create_timeline(self, host_driven: bool) -> Timeline:
        session, most = self._session, self._session.info.limits.queues
        with LOCK:
            session.check_usable("create_timeline")
            session.queues = [q for q in session.queues if not q.is_over]
            live = sum(not (queue.freed or queue.host_driven) for queue in session.queues)
            if not host_driven and live >= most:
                raise InvalidCall(f"{session.name}: there are {most} timelines already; free some")
            machine = session.machine
            queue = Queue(host_driven)
            if isinstance(machine, StreamMachine) and not host_driven:
                queue.stream = machine.open_stream()
            session.queues.append(queue)
            return Timeline(session.name, session.epoch, queue, host_driven)

    @hookimpl
    def signal(self, timeline: Timeline, value: int, failure: Failure | None) -> None:
        queue: Queue = timeline.native
        with LOCK:
            if queue.failures:
                return
            if failure is not None:
                self._session.fail(queue, queue.value + 1, failure)
                return
            if value <= queue.value:
                raise InvalidCall(
                    f"{self._session.name}.signal: the value grows; it is {queue.value}, "
                    f"asked was {value}"
                )
            queue.value = value
            self._session.changed.notify_all()

    @hookimpl
    def wait(self, points: Sequence[Point], timeout_s: float, wait_all: bool) -> bool:
        begin_s = time.monotonic()
        until_s = begin_s + min(timeout_s, 1e9)
        with LOCK:
            self._session.waiters += 1
            if self._session.hold_until_s > begin_s:
                self._session.changed.notify_all()
            try:
                while not self._over(points, wait_all):
                    now_s = time.monotonic()
                    if now_s >= until_s:
                        return False
                    waited_s = now_s - begin_s
                    left_s = until_s - now_s
                    flight, pause_s = self._session.flight, SLICE_S
                    if flight.busy():
                        flight.watch()
                        pause_s = flight.pause_s(waited_s)
                    if pause_s:
                        self._session.changed.wait(min(left_s, pause_s))
            finally:
                self._session.waiters -= 1
        self._session.give_back()
        return True

    def _over(self, points: Sequence[Point], wait_all: bool) -> bool:
        for point in points:
            self._session.flight.settle(point.timeline.native)
        return _over(points, wait_all)

    @hookimpl
    def timestamps(self, point: Point) -> Sequence[Span]:
        queue: Queue = point.timeline.native
        with LOCK:
            self._session.flight.settle(queue)
            if not reached(point):
                raise InvalidCall(
                    f"{self._session.name}.timestamps: value {point.value} is not reached; "
                    f"wait for it first"
                )
            return self._session.flight.spans(queue, point.value)

    def free(self, timeline: Timeline) -> None:
        """A device timeline does its work to the end, a host-driven one fails (with the lock)."""
        queue: Queue = timeline.native
        queue.freed = True
        first = queue.value + 1 if queue.host_driven else queue.submitted + 1
        text = "the timeline was freed before it reached the point"
        self._session.fail(queue, first, self._session.aborted("free", text))


def _over(points: Sequence[Point], wait_all: bool) -> bool:
    """Whether the wait has come to its end; raises the first cause of a point that failed."""
    there = [reached(point) for point in points]
    if not points or (all(there) if wait_all else any(there)):
        return True
    cause = next(filter(None, map(failure_of, points)), None)
    if cause is not None:
        raise error_for(cause)
    return False
