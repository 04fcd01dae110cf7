"""Timelines: creation, signals, waits, host calls and the release of handles."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from hal.core.errors import Failure, FailureKind, InvalidCall, Scope, error_for
from hal.core.spec import hookimpl
from hal.core.values import HostFunction, Point, Span, Timeline, Waits
from hal_plugin_cpu import blocking
from hal_plugin_cpu._native import ffi, lib
from hal_plugin_cpu.kept import reached
from hal_plugin_cpu.session import SLICE_NS, Session

MAX_TIMELINES = 65536
_NULL = ffi.NULL
_MAX_SPANS = 65536


class Timelines:
    """The hooks of timelines. Each timeline with host calls has one Python thread that runs them
    in order, so a
    host call may wait for any other timeline."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._native = session.native
        self._name = session.names.span
        self._lock = threading.Lock()
        self._calls: dict[int, _HostCalls] = {}

    @hookimpl
    def create_timeline(self, host_driven: bool) -> Timeline:
        # The limit counts device timelines alone.
        code = (
            lib.hc_usable(self._native)
            if host_driven
            else lib.hc_timeline_room(self._native, MAX_TIMELINES)
        )
        if code:
            full = f"the device has {MAX_TIMELINES} timelines already; free some"
            self._session.refuse(code, "create_timeline", full)
        native = self._session.own(lib.hc_timeline_new(self._native, host_driven))
        return Timeline(self._session.name, self._session.epoch, native, host_driven)

    @hookimpl
    def signal(self, timeline: Timeline, value: int, failure: Failure | None) -> None:
        number = self._session.failures.number(failure) if failure is not None else 0
        try:
            code = lib.hc_signal(self._native, timeline.native, value, number)
        except TypeError as error:
            raise self._session.foreign("signal", error) from error
        if code == lib.HC_INVALID:
            now = lib.hc_value(timeline.native)
            raise InvalidCall(
                f"signal: the value of a host-driven timeline grows; it is {now}, asked was {value}"
            )
        if code:
            self._session.refuse(code, "signal")

    @hookimpl
    def wait(self, points: Sequence[Point], timeout_s: float, wait_all: bool) -> bool:
        if not points:
            return True
        array, cause = self._session.point_array(points), ffi.new("int64_t *")
        code = lib.hc_wait(self._native, len(points), array, wait_all, True, 0, cause)
        until_ns = time.monotonic_ns() + int(min(timeout_s, 1e9) * 1e9)
        while not code and (left_ns := until_ns - time.monotonic_ns()) > 0:
            slice_ns = min(left_ns, SLICE_NS)
            code = blocking.wait(self._native, len(points), array, wait_all, False, slice_ns, cause)
        if code == lib.HC_FAILED:
            raise error_for(self._session.failures.value(cause[0]))
        if code < 0:
            self._session.refuse(code, "wait")
        self._session.kept.let_go()
        return bool(code)

    @hookimpl
    def host_call(self, function: HostFunction, timeline: Timeline, waits: Waits) -> Point:
        code = lib.hc_check(self._native, timeline.native)
        if code:
            self._session.refuse(code, "host_call")
        with self._lock:
            key = _address(timeline.native)
            if key not in self._calls:
                self._calls[key] = _HostCalls(self._session, timeline)
            calls = self._calls[key]
        code = self._session.faults.code("host_call") if self._session.faults.pending else 0
        points = self._session.point_array(waits) if waits else _NULL
        value = calls.submit(self._native, function, timeline, len(waits), points, code)
        if value < 0:
            self._session.refuse(value, "host_call")
        return Point(timeline, value)

    @hookimpl
    def timestamps(self, point: Point) -> Sequence[Span]:
        code = lib.hc_check(self._native, point.timeline.native)
        if code:
            self._session.refuse(code, "timestamps")
        if not reached(point):
            raise InvalidCall(f"timestamps: value {point.value} is not reached; wait for it first")
        spans = ffi.new("hc_span[]", 1)
        n = lib.hc_spans(self._native, point.timeline.native, point.value, spans, 1)
        if n > 1:
            spans = ffi.new("hc_span[]", n)
            n = min(n, lib.hc_spans(self._native, point.timeline.native, point.value, spans, n))
        newest_last = sorted(spans[0:n], key=lambda s: (s.command, s.start_ns))
        return [Span(self._name(s.name), s.start_ns, s.end_ns, s.lane) for s in newest_last]

    def forget(self, timeline: Timeline) -> None:
        """The timeline was freed: its host calls end once those submitted are done."""
        with self._lock:
            self._calls.pop(_address(timeline.native), None)

    def forget_all(self) -> None:
        """The device was closed or reset: no host call can follow."""
        with self._lock:
            self._calls.clear()


class _HostCalls:
    """The host calls of one timeline and the thread that runs them."""

    def __init__(self, session: Session, timeline: Timeline) -> None:
        self._functions: dict[int, HostFunction] = {}
        self._lock = threading.Lock()
        self._device = session.name
        # The thread must not keep the session alive: it ends when the session does.
        target, failures = timeline.native, session.failures
        thread = threading.Thread(
            target=_run_calls,
            args=(target, self._take, session.name, failures),
            name=f"{session.name} host calls",
            daemon=True,
        )
        thread.start()

    def submit(
        self,
        native: Any,
        function: HostFunction,
        timeline: Timeline,
        nwaits: int,
        points: Any,
        code: int,
    ) -> int:
        """Submit; the function is in place before the thread can ask for it."""
        with self._lock:
            value = int(lib.hc_host_call(native, timeline.native, nwaits, points, code))
            if value > 0:
                self._functions[value] = function
            return value

    def _take(self, value: int) -> HostFunction:
        with self._lock:
            function = self._functions.pop(value)
            self._functions = {v: f for v, f in self._functions.items() if v > value}
            return function


def _run_calls(timeline: Any, take: Any, device: str, failures: Any) -> None:
    while value := blocking.host_next(timeline):
        failure = _call(take(value), device)
        lib.hc_host_done(timeline, failures.number(failure) if failure else 0)


def _call(function: HostFunction, device: str) -> Failure | None:
    try:
        function()
    except BaseException as error:  # noqa: BLE001  foreign code: its error is the point's failure
        text = f"{type(error).__name__}: {error}"
        return Failure(FailureKind.HOST_CALL, Scope.OPERATION, device, "host_call", text)
    return None


def _address(native: Any) -> int:
    return int(ffi.cast("uintptr_t", native))
