"""Devices whose driver has queues: what goes to the driver, what the host holds, and failures."""

import gc
import threading
import time
import weakref
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.core.device import Device
from hal.core.errors import (
    DeviceLost,
    Failure,
    FailureKind,
    OperationFailed,
    Scope,
    StaleHandle,
)
from hal.core.values import (
    AllocOptions,
    CopyCommand,
    Fault,
    FillCommand,
    HealthState,
    KernelSource,
    LaunchCommand,
    Point,
    Slot,
)
from hal.hosted import bursts
from hal.hosted.device import HostedDevice
from hal.hosted.order import Order
from tests.hosted.bench import ONE, PARAM, Bench, given_to, opened_bench  # noqa: F401  a fixture
from tests.hosted.conftest import describe
from tests.hosted.driver import Driver


def test_what_waits_for_the_driver_alone_goes_to_the_driver(bench):
    bench.driver.paused = True
    buffer, first, second = bench.buffer(), bench.timeline(), bench.timeline()
    point = bench.launch("add", buffer, first)
    last = bench.launch("add", buffer, second, [point])
    assert given_to(bench.driver) == 2
    assert not bench.wait(last, timeout_s=0)
    bench.driver.paused = False
    assert bench.wait(last)
    assert bench.content(buffer) == bytes([2] * 4)


def test_what_waits_for_the_host_is_held_and_what_follows_too(bench):
    buffer, gate, timeline = bench.buffer(), bench.timeline(True), bench.timeline()
    bench.launch("add", buffer, timeline, [Point(gate, 1)])
    last = bench.launch("add", buffer, timeline)
    assert given_to(bench.driver) == 0
    bench.device.signal(gate, 1, None)
    assert bench.wait(last)
    assert bench.content(buffer) == bytes([2] * 4)


def test_a_point_of_the_future(bench):
    buffer, first, second = bench.buffer(), bench.timeline(), bench.timeline()
    last = bench.launch("add", buffer, second, [Point(first, 1)])
    assert given_to(bench.driver) == 0
    bench.launch("add", buffer, first)
    assert bench.wait(last)
    assert bench.content(buffer) == bytes([2] * 4)


def test_a_host_call_between_two_launches(bench):
    buffer, timeline, seen = bench.buffer(), bench.timeline(), []
    data = buffer.native.memory
    bench.launch("add", buffer, timeline)
    bench.device.host_call(lambda: seen.append(bytes(data)), timeline, ())
    last = bench.launch("add", buffer, timeline)
    assert bench.wait(last)
    assert seen == [bytes([1] * 4)]


def test_the_first_cause_is_kept_where_the_driver_says_only_that_there_was_one(bench):
    bench.driver.paused = True
    buffer, timelines = bench.buffer(), [bench.timeline() for _ in range(3)]
    point = bench.launch("broken", buffer, timelines[0])
    same = bench.launch("add", buffer, timelines[0])
    for timeline in timelines[1:]:
        point = bench.launch("add", buffer, timeline, [point])
    bench.driver.paused = False
    failures = [bench.failure(point), bench.failure(same)]
    assert (
        failures
        == [
            Failure(FailureKind.LAUNCH_FAULT, Scope.OPERATION, "py:0", "launch broken", "status -5")
        ]
        * 2
    )
    assert bench.content(buffer) == bytes(4)


def test_what_the_driver_refuses_fails_its_point(bench):
    buffer, timeline, gate = bench.buffer(), bench.timeline(), bench.timeline(True)
    assert bench.failure(bench.launch("refused", buffer, timeline)).message == "no"
    held = bench.launch("refused", buffer, bench.timeline(), [Point(gate, 1)])
    bench.device.signal(gate, 1, None)
    assert bench.failure(held).message == "no"


def test_a_graph_of_which_the_driver_takes_a_part(bench):
    """What it took still runs, so its buffers live until it is over."""
    bench.driver.paused = True
    buffer, timeline = bench.buffer(), bench.timeline()
    add, refused = bench.program("add", buffer), bench.program("refused", buffer)
    graph = bench.device.record([LaunchCommand(add, ONE), LaunchCommand(refused, ONE)])
    point = bench.device.replay(graph, (), timeline, ())
    assert bench.failure(point).message == "no"
    bench.device.free(graph)
    bench.device.free(buffer)
    assert bench.driver.released == 0
    bench.driver.paused = False
    assert bench.device.stats("").live_buffers == 0


def test_an_interrupt_while_an_operation_is_handed_over(bench):
    """It may have run in part; nothing behind it runs, and other timelines go on."""
    buffer, timeline, fill = bench.buffer(), bench.timeline(), bench.driver.fill

    def interrupted(*args):
        fill(*args)
        raise KeyboardInterrupt

    first = bench.launch("add", buffer, timeline)
    bench.driver.fill = interrupted
    with pytest.raises(KeyboardInterrupt):
        bench.device.fill(buffer.region(), b"\7", timeline, ())
    bench.driver.fill = fill
    failure = bench.failure(bench.launch("add", buffer, timeline))
    assert (failure.kind, failure.operation) == (FailureKind.ABORTED, "fill")
    assert bench.wait(first, bench.launch("add", buffer, bench.timeline()))
    assert bench.content(buffer) == bytes([8] * 4)
    bench.device.free(buffer)
    assert bench.device.stats("").live_buffers == 0


def test_memory_lives_as_long_as_the_driver_uses_it(bench):
    bench.driver.paused = True
    buffer, timeline = bench.buffer(), bench.timeline()
    point = bench.launch("add", buffer, timeline)
    bench.device.free(buffer)
    assert bench.device.stats("").live_buffers == 1
    bench.driver.paused = False
    assert bench.wait(point)
    assert bench.device.stats("").live_buffers == 0
    assert bench.driver.released == 1


def test_what_has_ended_keeps_its_spans_alone(bench):
    """Not what it ran, nor the memory that this names."""
    timeline, bound = bench.timeline(), bench.program("add", bench.buffer())
    point, launched = (
        bench.device.launch(bound, ONE, timeline, ()),
        weakref.ref(bound.native.native),
    )
    assert bench.wait(point)
    bench.device.free(bound)
    del bound
    gc.collect()
    assert launched() is None
    assert [span.name for span in bench.device.timestamps(point)] == ["add"]


def test_an_injected_part(bench):
    """The successors wait until the part is done and then fail unrun."""
    buffer, timeline = bench.buffer(8), bench.timeline()
    failure = Failure(FailureKind.PARTIAL_WRITE, Scope.OPERATION, "tiny:0", "fill", "cut")
    bench.device.inject(Fault(failure, "fill"))
    bench.device.fill(buffer.region(), b"\7", timeline, ())
    assert bench.failure(bench.launch("add", buffer, timeline)) == failure
    assert bench.content(buffer) == bytes([7] * 4 + [0] * 4)


def test_a_hang_takes_the_device_and_a_reset_brings_it_back(bench):
    buffer, timeline, other = bench.buffer(), bench.timeline(), bench.timeline()
    points = [bench.launch("stuck", buffer, timeline), bench.launch("add", buffer, timeline)]
    points.append(bench.launch("add", buffer, other, points[:1]))
    failures = {bench.failure(point) for point in points}
    assert [(f.kind, f.operation) for f in failures] == [(FailureKind.HANG, "launch stuck")]
    assert bench.device.health().state is HealthState.LOST
    with pytest.raises(DeviceLost):
        bench.launch("add", buffer, other)
    assert bench.driver.abandoned
    assert bench.device.reset() == 1
    fresh = bench.buffer()
    assert bench.wait(bench.launch("add", fresh, bench.timeline()))
    assert bench.content(fresh) == bytes([1] * 4)


def test_patience_is_no_hang(bench):
    """A first launch may compile for long."""
    bench.driver.patient = bench.driver.paused = True
    point = bench.launch("add", bench.buffer(), bench.timeline())
    assert not bench.wait(point, timeout_s=4 * bench.device.info.limits.progress_s)
    bench.driver.paused = False
    assert bench.wait(point)


def test_a_loss_wakes_who_waits_for_the_driver(bench):
    bench.driver.paused = True
    point = bench.launch("add", bench.buffer(), bench.timeline())
    failure = Failure(FailureKind.DEVICE_LOST, Scope.DEVICE, "tiny:0", "health", "gone")
    heard = []
    waiter = threading.Thread(target=lambda: heard.append(bench.failure(point)), daemon=True)
    waiter.start()
    bench.device.inject(Fault(failure, "health"))
    bench.device.health()
    waiter.join(timeout=60)
    assert heard == [failure]


def test_graphs_take_their_slots_at_each_replay(bench):
    buffers, timeline = [bench.buffer() for _ in range(3)], bench.timeline()
    add = bench.program("add", Slot(0))
    fixed = buffers[2].region()
    commands = [
        FillCommand(fixed, b"\5"),
        LaunchCommand(add, ONE),
        LaunchCommand(bench.program("add", buffers[2]), ONE),
        CopyCommand(buffers[1].region(0, 2), buffers[2].region(0, 2)),
    ]
    graph, second = bench.device.record(commands), bench.device.record(commands[1:2])
    for slot in (buffers[0], buffers[0], buffers[1].region(2, 2)):
        bench.device.replay(graph, [slot], timeline, ())
        point = bench.device.replay(second, [buffers[0]], timeline, ())
    assert bench.wait(point)
    found = [bench.content(buffer) for buffer in buffers]
    assert found == [bytes([5] * 4), bytes([6, 6, 1, 1]), bytes([6] * 4)]


def test_spans_lie_between_submission_and_the_end_of_the_wait(bench):
    """Whatever the driver's clock says."""
    timeline, buffer = bench.timeline(), bench.buffer()
    begin_ns = time.monotonic_ns()
    points = [
        bench.launch("add", buffer, timeline),
        bench.device.fill(buffer.region(), b"\1", timeline, ()),
    ]
    assert bench.wait(*points)
    end_ns = time.monotonic_ns()
    for point, name in zip(points, ("add", "fill"), strict=True):
        (span,) = bench.device.timestamps(point)
        assert (span.name, begin_ns <= span.start_ns < span.end_ns <= end_ns) == (name, True)


def test_closing_finishes_what_the_driver_has(bench):
    bench.driver.patient = bench.driver.paused = True
    buffer = bench.buffer()
    data = buffer.native.memory
    bench.launch("add", buffer, bench.timeline())
    seen = []
    bench.driver.release = lambda memory: seen.append(bytes(memory))
    resume = threading.Timer(0.05, lambda: setattr(bench.driver, "paused", False))
    resume.start()
    bench.device.close()
    resume.join(timeout=60)
    assert seen == [bytes([1] * 4)]
    assert data is not None
    assert bench.driver.closed


def test_a_freed_buffer_is_refused_without_checks():
    """The shortest way of a launch looks itself."""
    driver = Driver()
    device = Device(HostedDevice(describe("tiny:0"), driver, Order()), "tiny:0")
    buffer = device.alloc(4, AllocOptions())
    source = KernelSource("python/1", "add", "add", (PARAM,))
    bound, timeline = device.bind(device.load(source), [buffer]), device.create_timeline(False)
    device.free(buffer)
    with pytest.raises(StaleHandle):
        device.launch(bound, ONE, timeline, ())
    device.close()


PLANS = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.integers(0, 60), max_size=2), st.booleans()),
    max_size=24,
)


@settings(max_examples=30, deadline=None)
@given(PLANS, st.sampled_from((0, 1 << 62)))
def test_any_order_of_waits_gives_each_operation_what_it_waits_for(plan, rapid_ns):
    """Launches on four timelines, some behind a gate that opens at the end: each adds one to the
    same buffer, and a copy behind it sees at least as many as it waits for."""
    with patch.object(bursts, "_RAPID_NS", rapid_ns):
        _run(Bench(), plan)


def _run(bench, plan):
    buffer, gate = bench.buffer(1), bench.timeline(True)
    timelines, points, outs, least = [bench.timeline() for _ in range(4)], [], [], []
    for queue, named, copied in plan:
        before = [n % (len(points) + 1) for n in named]
        waits = [points[n] if n < len(points) else Point(gate, 1) for n in before]
        points.append(bench.launch("add", buffer, timelines[queue], waits))
        least.append(1 + max((least[n] for n in before if n < len(least)), default=0))
        if copied:
            outs.append((bytearray(1), least[-1]))
            bench.device.copy(outs[-1][0], buffer.region(), timelines[queue], points[-1:])
    bench.device.signal(gate, 1, None)
    assert bench.wait(*points)
    assert bench.content(buffer) == bytes([len(plan)])
    bench.device.close()
    assert all(out[0] >= number for out, number in outs)


class Reaching(Driver):
    """One whose copies reach the memory of others of its kind, which its host does not."""

    def reaches(self, peer):
        return isinstance(peer, Reaching)

    def read(self, memory, offset, nbytes):
        raise AssertionError("the driver copies by itself")

    write = read


def test_the_driver_copies_between_devices_that_it_reaches():
    names, line_of = ("tiny:0", "tiny:1"), {}
    here, there = devices = [
        Device(HostedDevice(describe(name), Reaching(), Order()), name) for name in names
    ]
    ours, theirs = (device.alloc(4, AllocOptions()) for device in devices)
    for device in devices:
        line_of[device] = device.create_timeline(False)
    written = there.copy(theirs.region(), b"peer", line_of[there], ())
    copied = here.copy(ours.region(), theirs.region(), line_of[here], (written,))
    there.free(theirs)
    found = bytearray(4)
    here.wait((here.copy(found, ours.region(), line_of[here], (copied,)),), 60.0, True)
    assert found == b"peer"
    theirs = there.alloc(4, AllocOptions())
    there.inject(Fault(Failure(FailureKind.DEVICE_LOST, Scope.DEVICE, "", "", "gone"), "health"))
    there.health()
    lost = here.copy(ours.region(), theirs.region(), line_of[here], ())
    with pytest.raises(OperationFailed, match="tiny:1 is lost") as error:
        here.wait((lost,), 60.0, True)
    assert error.value.failure.kind is FailureKind.PEER_LOST
    for device in devices:
        device.close()
