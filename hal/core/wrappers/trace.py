"""Tracing, one wrapper for every device: what the host called and when the device worked.

The trace is the JSON that Perfetto and chrome://tracing open. Each host thread is a track with a
slice per hook call. Each lane of a device that declares `timestamps` is a track with a slice per
operation, and an arrow leads to it from the call that submitted it. A mark shows where the stack
did without a feature of the device. Times are of the host's monotonic clock.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Generator, Sequence
from types import SimpleNamespace, TracebackType
from typing import Any, Self

from hal.core.description import Feature
from hal.core.device import Device
from hal.core.errors import HalError, InvalidCall, OperationFailed
from hal.core.facts import dataclass
from hal.core.spec import NOTICES, DeviceSpec, hookimpl, hooks
from hal.core.values import Point
from hal.core.wrappers.trace_events import (
    HOST_PID,
    Event,
    arrow,
    call,
    failed,
    notice,
    operation,
    process,
    summary,
    thread,
    title,
)

_DRAIN_EVERY = 256
"""Submissions between two looks for reached points: devices keep only their newest spans."""

_CLOSE_WAIT_S = 10.0
"""How long a closing device's outstanding operations are waited for."""


class Tracer:
    """A trace in the making. `hal.open(name, wrappers=[tracer])` adds a device to it, also several.

    The file is written when one of its devices closes, by `save`, and at the end of a `with` block.
    Raises InvalidCall when the directory of `path` is missing.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        if not os.path.isdir(os.path.dirname(self._path) or "."):
            raise InvalidCall(f"there is no directory for the trace {self._path!r}; create it")
        self._events: list[Event] = [process(HOST_PID, "host")]
        self._devices: list[_DeviceTrace] = []
        self._threads: set[int] = set()

    def __call__(self, device: Device) -> object:
        """The wrapper plugin for one device."""
        traced = _DeviceTrace(self, device, HOST_PID + 1 + len(self._devices))
        self._devices.append(traced)
        self.add(process(traced.pid, device.name))
        hook_names = hooks(DeviceSpec)
        return SimpleNamespace(
            **{hook: hookimpl(wrapper=True)(_around(traced, hook)) for hook in hook_names}
        )

    def add(self, *events: Event) -> None:
        """Add events."""
        self._events.extend(events)

    def track(self) -> int:
        """The track of the calling thread."""
        tid = threading.get_native_id()
        if tid not in self._threads:
            self._threads.add(tid)
            self.add(thread(HOST_PID, tid, threading.current_thread().name))
        return tid

    def save(self) -> None:
        """Write what happened until now; an older file stays whole until the new one is."""
        for device in self._devices:
            device.drain()
        part = f"{self._path}.part"
        with open(part, "w", encoding="utf-8") as stream:
            json.dump({"traceEvents": list(self._events), "displayTimeUnit": "ns"}, stream)
        os.replace(part, self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.save()


@dataclass(frozen=True, slots=True)
class _Submitted:
    """An operation whose spans are not read yet, and the call that submitted it."""

    point: Point
    name: str
    tid: int
    start_ns: int


class _DeviceTrace:
    """One device's part of a trace: the operations that were submitted and not yet seen to end."""

    def __init__(self, tracer: Tracer, device: Device, pid: int) -> None:
        self.tracer = tracer
        self.pid = pid
        self._device = device
        self._pending: list[_Submitted] = []
        self._lanes: set[int] = set()
        self._flows = itertools.count(pid << 40)
        self._lock = threading.Lock()

    def called(
        self, hook: str, args: dict[str, object], start_ns: int, outcome: dict[str, object]
    ) -> None:
        """Add the slice of a call that just ended."""
        tid = self.tracer.track()
        if hook in NOTICES:
            self.tracer.add(notice(tid, start_ns, args))
            return
        said = {name: summary(value) for name, value in (args | outcome).items()}
        name = title(hook, args)
        self.tracer.add(call(tid, name, start_ns, time.monotonic_ns(), said))
        result = outcome.get("result")
        if isinstance(result, Point) and Feature.TIMESTAMPS in self._device.info.features:
            with self._lock:
                self._pending.append(_Submitted(result, name, tid, start_ns))

    def before(self, hook: str) -> None:
        """Read the spans that the call would make unreadable."""
        if hook == "close":
            self._settle()
        if hook in ("close", "free", "reset"):
            self.drain()

    def after(self, hook: str) -> None:
        """Read the spans of operations that ended."""
        if hook == "close":
            self.tracer.save()
        elif hook == "wait" or (self._pending and len(self._pending) % _DRAIN_EVERY == 0):
            self.drain()

    def drain(self) -> None:
        """Turn reached points into slices; points not reached stay."""
        with self._lock:
            self._pending = [one for one in self._pending if not self._read(one)]

    def _settle(self) -> None:
        try:
            self._device.wait([s.point for s in self._pending], _CLOSE_WAIT_S, True)
        except HalError:
            return  # `drain` reads the points one by one and keeps each failure

    def _read(self, submitted: _Submitted) -> bool:
        """Whether nothing more is to come of the operation."""
        try:
            if not self._device.wait((submitted.point,), 0.0, True):
                return False
            spans = sorted(self._device.timestamps(submitted.point), key=lambda span: span.start_ns)
            for span in spans:
                if span.lane not in self._lanes:
                    self._lanes.add(span.lane)
                    self.tracer.add(thread(self.pid, span.lane, f"lane {span.lane}"))
                self.tracer.add(operation(self.pid, span))
            if spans:
                flow = next(self._flows)
                self.tracer.add(*arrow(flow, submitted.tid, submitted.start_ns, self.pid, spans[0]))
        except OperationFailed as error:
            now = time.monotonic_ns()
            self.tracer.add(failed(self.pid, submitted.name, now, str(error.failure)))
        except InvalidCall:
            return True  # its timeline was freed: the spans are gone
        return True


def _around(traced: _DeviceTrace, hook: str) -> Callable[..., Generator[None, Any, Any]]:
    """A wrapper function with the hook's parameters, which pluggy reads from what `wraps` notes."""
    spec = DeviceSpec.__dict__[hook]
    names: Sequence[str] = spec.__code__.co_varnames[1 : spec.__code__.co_argcount]

    @functools.wraps(spec)
    def around(*values: object) -> Generator[None, Any, Any]:
        traced.before(hook)
        # Lists of points belong to the wrappers inside: they may change them.
        now = (tuple(value) if isinstance(value, list) else value for value in values)
        args = dict(zip(names, now, strict=True))
        start_ns = time.monotonic_ns()
        try:
            result = yield
        except BaseException as error:
            traced.called(hook, args, start_ns, {"error": f"{type(error).__name__}: {error}"})
            raise
        traced.called(hook, args, start_ns, {"result": result})
        traced.after(hook)
        return result

    return around
