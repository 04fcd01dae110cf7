"""Mutants of waits, signals, host calls and timestamps."""

import contextlib
import ctypes
import threading
import time
from dataclasses import replace

from hal.core.errors import Failure, FailureKind, InvalidCall, OperationFailed, Scope
from hal.core.values import Point, Span, Timeline
from hal.hosted.lock import LOCK
from hal.hosted.queues import reached
from tests.mutants.zoo import hook, lax, mutant, unchecked


@mutant("wait-says-yes", "says that points are reached when the deadline passes", "wait.true")
def _(device):
    real = device.wait

    def wait(points, timeout_s, wait_all):
        return real(points, timeout_s, wait_all) or timeout_s > 0

    hook(device, wait)


@mutant("all-is-any", "waits for any point where it should for all", "wait.true")
def _(device):
    real = device.wait

    def wait(points, timeout_s, wait_all):
        return real(points, timeout_s, False)

    hook(device, wait)


@mutant("any-is-the-first", "waits for the first point where it should for any", "wait.true")
def _(device):
    real = device.wait

    def wait(points, timeout_s, wait_all):
        return real(points if wait_all else points[:1], timeout_s, wait_all)

    hook(device, wait)


@mutant("no-points-never", "waits for the deadline when there are no points", "wait.true")
def _(device):
    real = device.wait

    def wait(points, timeout_s, wait_all):
        return bool(points) and real(points, timeout_s, wait_all)

    hook(device, wait)


@mutant("gives-up-early", "waits for half of the time", "wait.deadline")
def _(device):
    real = device.wait

    def wait(points, timeout_s, wait_all):
        return real(points, timeout_s / 2, wait_all)

    hook(device, wait)


@mutant("gives-up-late", "looks at the deadline every 0.1 s", "wait.deadline")
def _(device):
    real = device.wait

    def wait(points, timeout_s, wait_all):
        done = real(points, timeout_s, wait_all)
        if not done and timeout_s:
            time.sleep(0.1)
        return done

    hook(device, wait)


@mutant("wait-holds-the-lock", "holds the interpreter lock while it waits", "wait.lock")
def _(device):
    real, libc = device.wait, ctypes.PyDLL(None)

    def wait(points, timeout_s, wait_all):
        end = time.monotonic() + timeout_s
        while not (done := real(points, 0, wait_all)) and time.monotonic() < end:
            libc.usleep(int(min(end - time.monotonic(), 1.2) * 1e6))
        return done

    hook(device, wait)


@mutant("failure-is-false", "returns False for a point that failed", "wait.raises")
def _(device):
    real = device.wait

    def wait(points, timeout_s, wait_all):
        try:
            return real(points, timeout_s, wait_all)
        except OperationFailed:
            return False

    hook(device, wait)


@mutant("failure-is-aborted", 'raises a generic "aborted" for every failure', "wait.raises")
def _(device):
    real, name = device.wait, device._session.name

    def wait(points, timeout_s, wait_all):
        try:
            return real(points, timeout_s, wait_all)
        except OperationFailed as error:
            failure = Failure(FailureKind.ABORTED, Scope.OPERATION, name, "wait", "aborted")
            raise OperationFailed(failure) from error

    hook(device, wait)


@mutant("signal-comes-late", "lets a signal be seen a second later", "signal.wakes")
def _(device):
    real = device.signal

    def signal(timeline, value, failure):
        later = threading.Timer(1.5, real, (timeline, value, failure))
        later.daemon = True
        later.start()

    hook(device, signal)


@mutant("signal-is-a-step", "advances a timeline by one, whatever the value", "signal.wakes")
def _(device):
    def signal(timeline, value, failure):
        real(timeline, timeline.native.value + 1 if failure is None else value, failure)

    real = device.signal
    hook(device, signal)


@mutant("last-failure-kept", "replaces a signalled failure by a later one", "signal.first")
def _(device):
    real = device.signal

    def signal(timeline, value, failure):
        if failure is not None:
            timeline.native.failures.clear()
        real(timeline, value, failure)

    hook(device, signal)


def _takes_any_value(device):
    def signal(timeline, value, failure):
        with LOCK:
            timeline.native.value = max(timeline.native.value, value)
            device._session.changed.notify_all()

    hook(device, signal)


@lax(
    "signals-anything",
    "ignores a value that does not grow, and advances device timelines",
    "signal.refused",
    device=_takes_any_value,
)
def _(checks):
    unchecked(checks, "signal")


@mutant(
    "freed-gate-forgotten", "leaves those waiting who wait for a freed timeline", "free.timeline"
)
def _(device):
    real = device.free

    def free(handle):
        if not isinstance(handle, Timeline) or not handle.host_driven:
            real(handle)

    hook(device, free)


@mutant("freed-gate-opens", "lets those go on who wait for a freed timeline", "free.timeline")
def _(device):
    real = device.free

    def free(handle):
        if isinstance(handle, Timeline) and handle.host_driven:
            handle.native.value = 1 << 60
        real(handle)

    hook(device, free)


@mutant("host-call-at-once", "calls a host function when it is submitted", "host_call.order")
def _(device):
    real = device.host_call

    def host_call(function, timeline, waits):
        function()
        return real(lambda: None, timeline, waits)

    hook(device, host_call)


@mutant("host-call-twice", "calls a host function twice", "host_call.order")
def _(device):
    real = device.host_call

    def host_call(function, timeline, waits):
        return real(lambda: (function(), function()), timeline, waits)

    hook(device, host_call)


@mutant("host-call-swallows", "takes no notice of a host function's exception", "host_call.fails")
def _(device):
    real = device.host_call

    def host_call(function, timeline, waits):
        def quiet():
            with contextlib.suppress(Exception):
                function()

        return real(quiet, timeline, waits)

    hook(device, host_call)


@mutant(
    "host-call-kind", "gives a host function's exception the kind LAUNCH_FAULT", "host_call.fails"
)
def _(device):
    session = device._session
    real = session.submit_tasks

    def submit_tasks(hook, tasks, timeline, waits, keeps=()):
        tasks = tuple(replace(task, kind=FailureKind.LAUNCH_FAULT) for task in tasks)
        return real(hook, tasks, timeline, waits, keeps)

    session.submit_tasks = submit_tasks


def _spans(device, change):
    real = device.timestamps

    def timestamps(point):
        return [change(span) for span in real(point)]

    hook(device, timestamps)


@mutant("spans-since-boot", "counts a span's nanoseconds from another clock", "timestamps.true")
def _(device):
    _spans(device, lambda s: Span(s.name, s.start_ns + 10**12, s.end_ns + 10**12))


@mutant("spans-in-microseconds", "gives a span's times in microseconds", "timestamps.true")
def _(device):
    _spans(device, lambda s: Span(s.name, s.start_ns // 1000, s.end_ns // 1000))


@mutant("spans-end-first", "swaps a span's start and end", "timestamps.true")
def _(device):
    _spans(device, lambda s: Span(s.name, s.end_ns, s.start_ns))


@mutant("spans-of-submission", "gives the time of submission as the start", "timestamps.true")
def _(device):
    began, submit, real = {}, device._session.submit_tasks, device.timestamps

    def submit_tasks(hook, tasks, timeline, waits, keeps=()):
        start_ns = time.monotonic_ns()
        point = submit(hook, tasks, timeline, waits, keeps)
        began[timeline, point.value] = start_ns
        return point

    def timestamps(point):
        start_ns = began[point.timeline, point.value]
        return [replace(span, start_ns=start_ns) for span in real(point)]

    device._session.submit_tasks = submit_tasks
    hook(device, timestamps)


@mutant(
    "spans-of-open-points", "gives no span where it should refuse an open point", "timestamps.true"
)
def _(device):
    real = device.timestamps

    def timestamps(point):
        return real(point) if reached(point) else []

    hook(device, timestamps)


@mutant("poll-raises", "raises InvalidCall for a poll of an open point", "wait.deadline")
def _(device):
    real = device.wait

    def wait(points, timeout_s, wait_all):
        done = real(points, timeout_s, wait_all)
        if not done and not timeout_s:
            raise InvalidCall(f"{len(points)} points are open")
        return done

    hook(device, wait)


@mutant("value-zero-is-open", "takes the value 0 for a point that is not reached", "wait.true")
def _(device):
    real = device.wait

    def wait(points, timeout_s, wait_all):
        moved = [Point(p.timeline, max(1, p.value)) for p in points]
        return real(moved, timeout_s, wait_all)

    hook(device, wait)
