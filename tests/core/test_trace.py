"""A trace is valid, shows calls and device work, and joins them."""

import json
import threading

import pytest

from hal.core.errors import InvalidCall, OperationFailed
from hal.core.values import AllocOptions, FillCommand, LaunchCommand, Point, Slot
from hal.core.wrappers.trace import Tracer


def events_of(path):
    events = json.loads(path.read_text())["traceEvents"]
    assert all({"ph", "pid", "tid"} <= event.keys() for event in events)
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")
    return events


def slices(events, cat):
    return [event for event in events if event["ph"] == "X" and event["cat"] == cat]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.json"


def run_add(device, add_source):
    queue = device.create_timeline(False)
    buffer = device.alloc(8, AllocOptions())
    launchable = device.bind(device.load(add_source), [buffer, 1])
    device.wait([device.launch(launchable, (1, 1, 1), queue, [])], 60.0, True)


def test_closing_a_device_writes_its_calls_and_its_work(registry, path, add_source):
    with registry.open("bytes:0", wrappers=["validate", f"trace:{path}"]) as device:
        run_add(device, add_source)
    events = events_of(path)
    calls = [event["name"] for event in slices(events, "host")]
    assert calls[-1] == "close"
    assert {"create_timeline", "alloc", "load", "bind", "launch add", "wait"} <= set(calls)
    [work] = slices(events, "device")
    [launch] = [e for e in slices(events, "host") if e["name"] == "launch add"]
    assert work["name"] == "add"
    assert launch["ts"] <= work["ts"]
    assert work["ts"] + work["dur"] <= launch["ts"] + launch["dur"]


def test_an_arrow_joins_a_submission_and_its_work(registry, path, add_source):
    with registry.open("bytes:0", wrappers=[f"trace:{path}"]) as device:
        run_add(device, add_source)
    events = events_of(path)
    [start], [end] = ([e for e in events if e["ph"] == ph] for ph in "sf")
    [work] = slices(events, "device")
    [launch] = [e for e in slices(events, "host") if e["name"] == "launch add"]
    assert start["id"] == end["id"]
    assert (start["pid"], start["tid"]) == (launch["pid"], launch["tid"])
    assert launch["ts"] <= start["ts"] <= launch["ts"] + launch["dur"]
    assert (end["pid"], end["tid"], end["ts"]) == (work["pid"], work["tid"], work["ts"])


def test_a_replay_shows_each_command_under_its_programs_name(registry, path, add_source):
    with registry.open("bytes:0", wrappers=[f"trace:{path}"]) as device:
        buffer, queue = device.alloc(4, AllocOptions()), device.create_timeline(False)
        launchable = device.bind(device.load(add_source), [Slot(0), 1])
        commands = [FillCommand(buffer.region(), b"1"), LaunchCommand(launchable, (1, 1, 1))]
        device.wait([device.replay(device.record(commands), [buffer], queue, [])], 60.0, True)
    events = events_of(path)
    first, second = slices(events, "device")
    assert (first["name"], second["name"]) == ("fill", "add")
    [end] = [event for event in events if event["ph"] == "f"]
    assert end["ts"] == first["ts"]


def test_work_that_nobody_waited_for_is_in_the_trace(registry, path):
    with registry.open("bytes:0", wrappers=[f"trace:{path}"]) as device:
        queue, buffer = device.create_timeline(False), device.alloc(8, AllocOptions())
        for _ in range(300):
            device.fill(buffer.region(), b"\0", queue, [])
        device.free(queue)
    assert len(slices(events_of(path), "device")) == 300


def test_arguments_results_and_errors_are_said(registry, path):
    with registry.open("bytes:0", wrappers=[f"trace:{path}", "validate"]) as device:
        device.alloc(8, AllocOptions())
        with pytest.raises(InvalidCall):
            device.alloc(-1, AllocOptions())
    good, bad = (e["args"] for e in slices(events_of(path), "host") if e["name"] == "alloc")
    assert good["nbytes"] == 8
    assert good["result"] == "buffer of 8 bytes in ram"
    assert bad["error"].startswith("InvalidCall: bytes:0.alloc: nbytes must be")


def test_a_failed_operation_is_marked_with_its_cause(registry, path, add_source):
    text = "def add(grid, data, n):\n    1 / 0\n"
    failing = type(add_source)(add_source.format, text, "add", add_source.params)
    device = registry.open("bytes:0", wrappers=[f"trace:{path}"])
    with device, pytest.raises(OperationFailed, match="division by zero"):
        run_add(device, failing)
    [mark] = [e for e in events_of(path) if e["ph"] == "i"]
    assert mark["name"] == "launch add"
    assert "division by zero" in mark["args"]["cause"]


def test_one_trace_holds_several_devices_and_threads(registry, path):
    with Tracer(path) as tracer:
        first, second = (registry.open(f"bytes:{i}", wrappers=[tracer]) for i in (0, 1))
        other = threading.Thread(target=second.health, name="watcher", daemon=True)
        other.start()
        other.join(60)
        first.health()
    names = {e["args"]["name"] for e in events_of(path) if e["ph"] == "M"}
    assert {"host", "bytes:0", "bytes:1", "watcher", "MainThread"} <= names
    tracks = {e["tid"] for e in slices(events_of(path), "host") if e["name"] == "health"}
    assert len(tracks) == 2


def test_a_point_not_reached_stays_out(registry, path):
    with Tracer(path) as tracer:
        device = registry.open("bytes:0", wrappers=[tracer])
        gate, queue = device.create_timeline(True), device.create_timeline(False)
        buffer = device.alloc(1, AllocOptions())
        device.fill(buffer.region(), b"\0", queue, [Point(gate, 1)])
        tracer.save()
        assert slices(events_of(path), "device") == []
        device.signal(gate, 1, None)
    assert len(slices(events_of(path), "device")) == 1


def test_a_trace_into_a_missing_directory_is_refused_at_once(registry, tmp_path):
    with pytest.raises(InvalidCall, match="no directory"):
        registry.open("bytes:0", wrappers=[f"trace:{tmp_path}/no/trace.json"])
