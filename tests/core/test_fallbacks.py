"""Fallbacks are counted by device, said at close, and shown in a trace."""

import io
import json

import pytest
from hal_plugin_bytes.device import BytesDevice

from hal.core.description import Feature
from hal.core.device import Device
from hal.core.wrappers.fallbacks import Fallbacks


def test_a_device_without_wrappers_hears_nothing(implementation):
    Device(implementation, "bytes:0").without(Feature.IPC, "copies through the host")


def test_each_notice_is_counted_by_device_feature_and_what_is_done(registry):
    fallbacks = Fallbacks()
    first, second = (registry.open(f"bytes:{i}", wrappers=[fallbacks]) for i in (0, 1))
    for _ in range(3):
        first.without(Feature.GRAPH, "launches one by one")
    second.without(Feature.GRAPH, "launches one by one")
    assert fallbacks.counts == {
        ("bytes:0", Feature.GRAPH, "launches one by one"): 3,
        ("bytes:1", Feature.GRAPH, "launches one by one"): 1,
    }


def test_a_closing_device_says_its_counts():
    report = io.StringIO()
    device = Device(BytesDevice(), "bytes:0", [Fallbacks(report)])
    device.without(Feature.IPC, "copies through the host")
    device.without(Feature.GRAPH, "launches one by one")
    device.without(Feature.GRAPH, "launches one by one")
    device.close()
    assert report.getvalue().splitlines() == [
        "bytes:0: fallbacks",
        "  2 x launches one by one (no 'graph')",
        "  1 x copies through the host (no 'ipc')",
    ]


def test_the_wrapper_by_name_says_them_on_the_standard_error(registry, capsys):
    registry.open("bytes:0", wrappers=["validate", "fallbacks"]).close()
    assert capsys.readouterr().err == "bytes:0: no fallbacks\n"


@pytest.mark.parametrize("wrappers", [["trace"], ["fallbacks", "trace"]])
def test_a_trace_marks_each_fallback(registry, tmp_path, wrappers):
    path = tmp_path / "trace.json"
    names = [f"trace:{path}" if name == "trace" else name for name in wrappers]
    with registry.open("bytes:0", wrappers=names) as device:
        device.without(Feature.GRAPH, "launches one by one")
    events = json.loads(path.read_text())["traceEvents"]
    [mark] = [event for event in events if event["name"] == "without graph"]
    assert mark["ph"] == "i"
    assert mark["args"] == {"feature": "graph", "instead": "launches one by one"}
