"""How long work takes on its device: by the device's own clock where it has one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hal.core.description import Feature
from hal.core.errors import PluginError
from hal.core.facts import dataclass
from hal.core.values import Point, Span
from stack.runtime import Engine

TRIES = 7


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Seconds of a run. `emulated`: by a clock of the device's own, and not the host's."""

    seconds: float
    emulated: bool


def time_of(engine: Engine, submit: Callable[[], object], tries: int = TRIES) -> DeviceTime:
    """The least of some runs after a first one, since other work on the machine only ever adds to
    one; a single run where the device has a clock of its own. `submit` gives work to the engine.

    It is the time on the device, from the first operation's start to the last one's end, where the
    device tells it (Feature.TIMESTAMPS); otherwise that from the call to the end of the wait.
    """
    _run(engine, submit)
    found = [_run(engine, submit)]
    while not found[0].emulated and len(found) < tries:
        found.append(_run(engine, submit))
    return min(found, key=lambda t: t.seconds)


def _run(engine: Engine, submit: Callable[[], object]) -> DeviceTime:
    engine.sync()
    before, begin_s = engine.stream.submitted_value, time.perf_counter()
    kept = submit()
    engine.sync()
    seconds = time.perf_counter() - begin_s
    del kept
    if Feature.TIMESTAMPS not in engine.device.info.features:
        return DeviceTime(seconds, False)
    line, last = engine.stream.timeline, engine.stream.submitted_value
    points = (Point(line, value) for value in range(before + 1, last + 1))
    return _of([span for point in points for span in engine.device.timestamps(point)])


def _of(spans: Sequence[Span]) -> DeviceTime:
    """Raises PluginError when some spans have a clock of their own and others have not."""
    own = [span.device_ns for span in spans if span.device_ns is not None]
    if own and len(own) < len(spans):
        raise PluginError("some timestamps of the device have a device_ns and others have none")
    if own:
        return DeviceTime(sum(own) / 1e9, True)
    begin_ns, end_ns = min(s.start_ns for s in spans), max(s.end_ns for s in spans)
    return DeviceTime((end_ns - begin_ns) / 1e9, False)
