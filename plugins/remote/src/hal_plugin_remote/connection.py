"""The client's end of a connection: what it has asked, and what it was told of the timelines."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from hal.core.errors import (
    DeadlineExceeded,
    DeviceLost,
    Failure,
    FailureKind,
    Scope,
    StaleHandle,
    error_for,
)
from hal.core.values import Handle, HealthState, HostFunction, Point
from hal_plugin_remote.channel import TICK_S, Channel, Ended
from hal_plugin_remote.values import error, plain, value

SILENCE_S = 10.0
"""A server that says nothing for so long, and of which nobody says that it lives, is lost."""
_ASK_AFTER_S = 3.0
"""After so long a silence the client asks whether the server lives."""
_ASK_S = 5.0
"""How long the answer may take at the least."""
_ON_FAILED = frozenset({"health", "reset", "close", "settle", "abort", "async_error", "timestamps"})
"""What a failed device answers, too, as long as the connection lives."""


class Remote:
    """A handle's payload: the session of the server and the number there."""

    __slots__ = ("connection", "freed", "number")

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.freed = False

    def __del__(self) -> None:
        # Only noted: a collection may run while this thread sends.
        if not self.freed:
            self.connection.dropped.append(self.number)


class Progress(Remote):
    """A timeline's payload: how many operations it took, which value it is known to have reached,
    from which value on it failed."""

    __slots__ = ("__weakref__", "failed", "host_driven", "reached", "submitted", "watched")

    def __init__(self, connection: Connection, number: int, host_driven: bool) -> None:
        super().__init__(connection, number)
        self.host_driven = host_driven
        self.submitted = self.reached = 0
        self.failed: tuple[int, Failure] | None = None
        self.watched: set[int] = set()

    def failure_of(self, value: int) -> Failure | None:
        """The first cause of a value that failed."""
        if self.failed is None or value <= self.reached or value < self.failed[0]:
            return None
        return self.failed[1]


@dataclass(eq=False, slots=True)
class _Asked:
    """A request that waits for its answer."""

    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: Exception | None = None


class Connection:
    """A session on a server: requests are answered, submissions are not; what timelines reach is
    told when somebody asked to know. A thread reads for as long as the connection lives."""

    def __init__(
        self, channel: Channel, name: str, there: str, lives: Callable[[float], bool]
    ) -> None:
        """`name` is what this process calls the device that the server calls `there`; `lives` asks
        whether the server works although it is silent, until a moment of the monotonic clock."""
        self.name, self.there = name, there
        self._lives, self._lived_s = lives, 0.0
        self.session = -1
        self.changed = threading.Condition()
        self.cause: Failure | None = None
        self.state = HealthState.OK
        self.ended = False
        self.dropped: deque[int] = deque()
        self.functions: dict[int, HostFunction] = {}
        self.subscribers: list[Callable[[Failure], None]] = []
        self.order = threading.Lock()
        """Held from taking a timeline's next value until the submission is sent."""
        self._channel = channel
        self._asked: dict[int, _Asked] = {}
        self._timelines: WeakValueDictionary[int, Progress] = WeakValueDictionary()
        self._arriving: dict[int, tuple[Progress, int, memoryview]] = {}
        self._numbers = 0
        self._reader = threading.Thread(target=self._read, name=f"hal-{name}", daemon=True)
        self._reader.start()

    # what the device says

    def number(self) -> int:
        """A number that this connection has not used."""
        with self.changed:
            self._numbers += 1
            return self._numbers

    def post(self, body: Sequence[object], payload: memoryview | bytes = b"") -> None:
        """Send what has no answer. Raises DeviceLost when the connection is over."""
        try:
            if self.dropped:
                gone = [self.dropped.popleft() for _ in range(len(self.dropped))]
                self._channel.send(["drop", gone])
            self._channel.send([plain(item, self.named) for item in body], payload)
        except Ended as end:
            self.lose(str(end))
            assert self.cause is not None
            raise DeviceLost(self.cause) from None

    def ask(self, hook: str, *args: object, timeout_s: float | None = None) -> Any:
        """The result of a call on the server.

        Raises what the call raised there; DeviceLost when the connection ends; DeadlineExceeded
        after `timeout_s` (without it the connection's end is the only bound).
        """
        self.check_open(hook)
        if self.broken or hook not in _ON_FAILED:
            self.check_usable(hook)
        asked, number = _Asked(), self.number()
        with self.changed:
            self._asked[number] = asked
        try:
            self.post(["ask", number, hook, *args])
            until_s = None if timeout_s is None else time.monotonic() + timeout_s
            while not asked.done.wait(TICK_S if timeout_s is None else timeout_s):
                if until_s is not None and time.monotonic() >= until_s:
                    raise DeadlineExceeded(f"{self.name}.{hook}: no answer in {timeout_s} s")
        finally:
            with self.changed:
                self._asked.pop(number, None)
        if asked.error is not None:
            raise asked.error
        return asked.result

    def check_open(self, hook: str) -> None:
        """Raise StaleHandle when the session has ended."""
        if self.ended:
            raise StaleHandle(f"{self.name}.{hook}: {self.name} is closed")

    def check_usable(self, hook: str) -> None:
        """Raise StaleHandle when the session has ended, DeviceLost when the device has failed."""
        self.check_open(hook)
        if self.cause is not None:
            raise DeviceLost(self.cause)

    def named(self, handle: Handle) -> list[int]:
        """How a handle is named on the connection."""
        remote: Remote = handle.native
        return [remote.connection.session, remote.number]

    def track(self, progress: Progress) -> None:
        """Take note of a new timeline."""
        with self.changed:
            self._timelines[progress.number] = progress

    def expect(self, progress: Progress, at: int, into: memoryview) -> int:
        """Take note of bytes that arrive when a timeline reaches a value; gives their number."""
        number = self.number()
        with self.changed:
            self._arriving[number] = (progress, at, into)
        return number

    def wait(self, points: Sequence[Point], timeout_s: float, wait_all: bool) -> bool:
        """See the contract. What is not known yet is asked for, once for each value."""
        until_s = time.monotonic() + min(timeout_s, 1e9)
        settled = False
        while True:
            with self.changed:
                if self._over(points, wait_all):
                    return True
                unknown = [p for p in points if _unknown(p)]
                for point in unknown:
                    point.timeline.native.watched.add(point.value)
            if not self.ended:
                for point in unknown:
                    self.post(["watch", point.timeline.native.number, point.value])
            if not settled and timeout_s <= 0 and not self.ended:
                self.ask("settle")
                settled = True
                continue
            with self.changed:
                while not self._over(points, wait_all):
                    left_s = until_s - time.monotonic()
                    if left_s <= 0:
                        return False
                    self.changed.wait(min(left_s, TICK_S))
                return True

    def fail(self, progress: Progress, first: int, cause: Failure) -> None:
        """Values from `first` on fail (with `changed` held); an earlier failure stays."""
        if progress.failed is None or first < progress.failed[0]:
            progress.failed = (first, cause)
        self.changed.notify_all()

    def fail_all(self, cause: Failure) -> None:
        """Fail every value that is not known to be reached, and forget what was to arrive."""
        with self.changed:
            for progress in list(self._timelines.values()):
                if progress.failed is None:
                    self.fail(progress, progress.reached + 1, cause)
            self._timelines.clear()
            self._arriving.clear()
            self.changed.notify_all()

    def lose(self, text: str) -> None:
        """The connection is over: the device is lost to this side, and everybody hears it."""
        with self.changed:
            closing, first = self.ended, self.cause is None
            if first:
                message = f"the connection to the server ended: {text}"
                self.cause = Failure(
                    FailureKind.DEVICE_LOST, Scope.DEVICE, self.name, "connection", message
                )
                self.state = HealthState.LOST
            cause, asked = self.cause, list(self._asked.values())
            self._asked.clear()
        assert cause is not None
        self._channel.end()
        for waiting in asked:
            stale = StaleHandle(f"{self.name} was closed meanwhile")
            waiting.error = stale if closing else DeviceLost(cause)
            waiting.done.set()
        self.fail_all(cause)
        self.functions.clear()

    @property
    def broken(self) -> bool:
        """Whether the connection itself is over."""
        return self.cause is not None and self.cause.operation == "connection"

    def end(self) -> None:
        """Leave, without a word."""
        self.ended = True
        self.lose("this side closed it")
        if self._reader is not threading.current_thread():
            self._reader.join(SILENCE_S)

    # what the server says

    def _read(self) -> None:
        try:
            while True:
                self._hear(self._channel.receive(self._place, self._quiet))
        except (Ended, ValueError, TypeError, KeyError) as end:
            self.lose(str(end))
        finally:
            self._channel.close()

    def _quiet(self, silent_s: float) -> None:
        """A server that is too busy to say anything lives as long as it works."""
        if silent_s < _ASK_AFTER_S:
            return
        now_s = time.monotonic()
        heard_s = max(now_s - silent_s, self._lived_s)
        if self._lives(max(heard_s + SILENCE_S, now_s + _ASK_S)):
            self._lived_s = time.monotonic()
        elif time.monotonic() - heard_s >= SILENCE_S:
            raise Ended(f"it said nothing for {SILENCE_S:g} s, and does not work")

    def _place(self, body: Any, nbytes: int) -> memoryview:
        kind, number = body
        with self.changed:
            into = self._arriving[number][2] if kind == "data" else memoryview(b"")
        if len(into) != nbytes:
            raise ValueError(f"{nbytes} bytes came for {len(into)}")
        return into

    def _hear(self, body: Any) -> None:
        kind, *rest = body
        match kind:
            case "ok" | "error":
                self._answered(kind, *rest)
            case "reached":
                self._reached(*rest)
            case "failed":
                number, first, failure = rest
                with self.changed:
                    if (progress := self._timelines.get(number)) is not None:
                        self.fail(progress, first, value(failure, _nobody))
            case "data":
                with self.changed:
                    progress, at, _ = self._arriving.pop(rest[0])
                self._reached(progress.number, at)
            case "lost":
                with self.changed:
                    self.state, self.cause = (value(item, _nobody) for item in rest)
                    for progress in list(self._timelines.values()):
                        if progress.host_driven and progress.failed is None:
                            self.fail(progress, progress.reached + 1, self.cause)
                    self.changed.notify_all()
            case "call":
                self._aside(self._perform, *rest)
            case "signal":
                failure = value(rest[0], _nobody)
                for callback in tuple(self.subscribers):
                    self._aside(callback, failure)
            case "alive":
                pass
            case _:
                raise ValueError(f"an unknown message {kind!r}")

    def _answered(self, kind: str, number: int, result: Any) -> None:
        with self.changed:
            asked = self._asked.get(number)
        if asked is None:
            return  # its asker has gone at the deadline
        if kind == "ok":
            asked.result = value(result, _nobody)
        else:
            asked.error = error(result, lambda text: text.replace(self.there, self.name))
        asked.done.set()

    def _reached(self, number: int, at: int) -> None:
        with self.changed:
            if (progress := self._timelines.get(number)) is not None:
                progress.reached = max(progress.reached, at)
                progress.watched = {other for other in progress.watched if other > at}
                self.changed.notify_all()

    def _over(self, points: Sequence[Point], wait_all: bool) -> bool:
        there = [point.value <= point.timeline.native.reached for point in points]
        if not points or (all(there) if wait_all else any(there)):
            return True
        for point in points:
            cause = point.timeline.native.failure_of(point.value)
            if cause is not None:
                raise error_for(cause)
        return False

    def _aside(self, function: Callable[..., None], *args: Any) -> None:
        """Foreign code runs beside the reader: it may wait for what only the reader hears."""
        threading.Thread(target=function, args=args, name="hal-remote-call", daemon=True).start()

    def _perform(self, number: int) -> None:
        function = self.functions.pop(number, None)
        if function is None:
            return
        said: tuple[str, str] | None = None
        try:
            function()
        except BaseException as failure:  # noqa: BLE001  the caller's code: its error fails the point
            said = (type(failure).__name__, str(failure))
        try:
            self.post(["called", number, said])
        except DeviceLost:
            return  # everybody has heard it


def _unknown(point: Point) -> bool:
    progress: Progress = point.timeline.native
    known = point.value <= progress.reached or point.value in progress.watched
    return not known and progress.failure_of(point.value) is None


def _nobody(name: object) -> Handle:
    raise ValueError(f"an answer names the handle {name!r}")
