"""Work on several queues of the driver, in graphs and behind the host's points."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pyopencl as cl
from hal_plugin_opencl.plugin import open_device
from hypothesis import given, settings
from hypothesis import strategies as st

import hal
from hal.core.dtypes import DType
from hal.core.values import LaunchCommand, OpenOptions, Point, Slot
from plugins.opencl.tests.conftest import Bench, buffer, scalar, source

MULTIPLY_ADD = """
__kernel void f(__global uchar *y_base, ulong y_offset, __global uchar *x_base, ulong x_offset,
                int by) {
  __global int *x = (__global int *)(x_base + x_offset);
  __global int *y = (__global int *)(y_base + y_offset);
  size_t i = get_global_id(0);
  y[i] = x[i] * by + 1;
}
"""
STEP = source(
    MULTIPLY_ADD, buffer("y", DType.I32, True), buffer("x", DType.I32), scalar("by", DType.I32)
)
COUNT = 1000


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-3, 3)), max_size=20), st.booleans())
def test_chains_across_timelines(plan: list[tuple[int, int]], gated: bool) -> None:
    """Each launch reads what the one before wrote, on whichever timeline that was."""
    with hal.open("opencl:0") as device:
        bench = Bench(device)
        x, wanted = bench.put(np.arange(COUNT, dtype=np.int32)), np.arange(COUNT, dtype=np.int32)
        timelines = [device.create_timeline(False) for _ in range(3)]
        program, gate = device.load(STEP), device.create_timeline(True)
        last = Point(gate, 1)
        if not gated:
            device.signal(gate, 1, None)
        for timeline, by in plan:
            step = device.bind(program, [x, x, by])
            last = device.launch(step, (COUNT, 1, 1), timelines[timeline], [last])
            wanted = wanted * np.int32(by) + np.int32(1)
        if gated:
            device.signal(gate, 1, None)
        bench.done(last)
        np.testing.assert_array_equal(bench.get(x, np.int32), wanted)


def test_a_graph_is_the_same_at_each_replay(bench: Bench) -> None:
    device, start = bench.device, np.arange(COUNT, dtype=np.int32)
    a, b, c = (bench.put(start) for _ in range(3))
    program = device.load(STEP)
    bound = [device.bind(program, args) for args in ([Slot(1), Slot(0), 2], [b, Slot(1), Slot(2)])]
    graph = device.record([LaunchCommand(one, (COUNT, 1, 1)) for one in bound])
    once = start * 2 + 1
    for x, by, wanted in ((a, 3, once), (a, -1, once), (c, -1, once * 2 + 1)):
        bench.done(device.replay(graph, [x, c, by], bench.timeline, ()))
        np.testing.assert_array_equal(bench.get(c, np.int32), wanted)
        np.testing.assert_array_equal(bench.get(b, np.int32), wanted * by + 1)


def test_launches_that_nobody_waits_for_are_let_go(bench: Bench) -> None:
    """What ended is taken note of by the way, so that it does not pile up."""
    device, x = bench.device, bench.put(np.zeros(1, np.int32))
    step = device.bind(device.load(STEP), [x, x, 1])
    for _ in range(3000):
        point = device.launch(step, (1, 1, 1), bench.timeline, ())
    until_s = time.monotonic() + 60
    queue = bench.timeline.native
    while queue.started and time.monotonic() < until_s:
        time.sleep(0.01)
    assert queue.value == point.value
    assert list(bench.get(x, np.int32)) == [3000]


def test_every_first_launch_has_the_time_to_compile() -> None:
    """Also one that is still compiling when a later one, on another timeline, is over."""
    device = open_device(0, OpenOptions())
    machine = device._session.machine
    compiling = cl.UserEvent(machine._context)
    machine.expect_long(compiling)
    over = machine.nothing(machine.own, None)
    machine.finish("marker", over)
    machine.expect_long(over)
    assert machine.is_patient()
    compiling.set_status(cl.command_execution_status.COMPLETE)
    assert not machine.is_patient()
    device.close()


def test_spans_of_a_graph_follow_each_other(bench: Bench) -> None:
    device, x = bench.device, bench.put(np.zeros(COUNT, np.int32))
    step = device.bind(device.load(STEP), [x, x, 1])
    graph = device.record([LaunchCommand(step, (COUNT, 1, 1))] * 5)
    begin_ns = time.monotonic_ns()
    point = device.replay(graph, (), bench.timeline, ())
    bench.done(point)
    spans = device.timestamps(point)
    times = [t for span in spans for t in (span.start_ns, span.end_ns)]
    assert len(spans) == 5
    assert begin_ns <= times[0]
    assert times[-1] <= time.monotonic_ns()
    assert all(a.start_ns <= b.start_ns and a.end_ns <= b.end_ns for a, b in pairwise(spans))
