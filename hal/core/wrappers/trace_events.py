"""The events of a trace, as the JSON values of the Chrome trace format; times come in as ns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import shorten

from hal.core.description import DeviceInfo, Feature
from hal.core.values import (
    Argument,
    Buffer,
    Graph,
    Handle,
    KernelSource,
    Launchable,
    Point,
    Program,
    Region,
    Span,
)

Event = dict[str, object]
HOST_PID = 1
_SHOWN = 4
_LONGEST = 160


def process(pid: int, name: str) -> Event:
    """Names the group of tracks `pid`."""
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}


def thread(pid: int, tid: int, name: str) -> Event:
    """Names the track `tid` of a group."""
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def call(tid: int, name: str, start_ns: int, end_ns: int, args: Mapping[str, object]) -> Event:
    """A slice on a host thread's track."""
    return _slice(HOST_PID, tid, name, start_ns, end_ns) | {"cat": "host", "args": dict(args)}


def operation(pid: int, span: Span) -> Event:
    """A slice on the track of a device's lane."""
    event = _slice(pid, span.lane, span.name, span.start_ns, span.end_ns)
    return event | {"cat": "device"}


def failed(pid: int, name: str, at_ns: int, cause: str) -> Event:
    """A mark on a device: an operation failed."""
    head: Event = {"ph": "i", "s": "p", "cat": "device", "name": name, "pid": pid, "tid": 0}
    return head | {"ts": at_ns / 1000, "args": {"cause": cause}}


def notice(tid: int, at_ns: int, args: Mapping[str, object]) -> Event:
    """A mark on a host thread: the stack did without a feature."""
    feature, instead = args["feature"], args["instead"]
    assert isinstance(feature, Feature), "the notice names a feature of the contract"
    said = {"feature": feature.value, "instead": instead}
    head: Event = {"ph": "i", "s": "t", "cat": "host", "name": f"without {feature.value}"}
    return head | {"pid": HOST_PID, "tid": tid, "ts": at_ns / 1000, "args": said}


def arrow(flow: int, tid: int, call_ns: int, pid: int, span: Span) -> tuple[Event, Event]:
    """An arrow from the call that began at `call_ns` to the operation that it submitted."""
    both: Event = {"cat": "submit", "name": "submit", "id": flow}
    start: Event = {"ph": "s", "pid": HOST_PID, "tid": tid, "ts": call_ns / 1000}
    end: Event = {"ph": "f", "bp": "e", "pid": pid, "tid": span.lane, "ts": span.start_ns / 1000}
    return both | start, both | end


def title(hook: str, args: Mapping[str, object]) -> str:
    """A call's name on its track, with the program that it launches."""
    launchable = args.get("launchable")
    if isinstance(launchable, Launchable):
        return f"{hook} {launchable.program.entry}"
    return hook


def summary(value: object) -> object:
    """An argument or result in a few words."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes() | bytearray() | memoryview():
            return f"host memory of {memoryview(value).nbytes} bytes"
        case Point(timeline=timeline, value=at):
            return f"{_queue(timeline)} at {at}"
        case KernelSource(format=format, text=text, entry=entry):
            return f"{entry}: {len(text)} characters of {format}"
        case Buffer() | Region():
            return _memory(value)
        case Program(entry=entry) | Launchable(program=Program(entry=entry)):
            return entry
        case Graph(commands=commands, slots=slots):
            return f"graph of {commands} commands, {slots} slots"
        case Handle():
            return _queue(value)
        case Sequence():
            more = ["..."] if len(value) > _SHOWN else []
            return [summary(item) for item in value[:_SHOWN]] + more
        case DeviceInfo(name=name):
            return f"description of {name}"
        case _:
            return shorten(repr(value), _LONGEST)


def _slice(pid: int, tid: int, name: str, start_ns: int, end_ns: int) -> Event:
    times: Event = {"ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000}
    return {"ph": "X", "name": name, "pid": pid, "tid": tid} | times


def _memory(value: Argument) -> str:
    if isinstance(value, Region):
        return f"{value.nbytes} bytes at {value.offset} of {_memory(value.buffer)}"
    assert isinstance(value, Buffer), "callers pass memory"
    return f"buffer of {value.nbytes} bytes in {value.space}"


def _queue(value: Handle) -> str:
    return f"{type(value).__name__.lower()} {id(value):x} of {value.device}"
