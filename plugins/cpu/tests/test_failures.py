import threading

import numpy as np
import pytest

from hal.core.errors import (
    CompileError,
    DeviceLost,
    FailureKind,
    OperationFailed,
    OutOfMemory,
    Scope,
    StaleHandle,
    Unsupported,
)
from hal.core.values import AllocOptions, Fault, HealthState, LaunchCommand, Point

PLAIN = AllocOptions()
LOST = (FailureKind.DEVICE_LOST, Scope.DEVICE)
MUST_RESET = (FailureKind.RESET_REQUIRED, Scope.RESET)


@pytest.fixture
def work(rig, texts):
    """Functions by hook name, each of which submits one harmless operation on a timeline."""
    device = rig.device
    cell = rig.upload(np.zeros(4, np.int64))
    other = rig.upload(np.zeros(4, np.int64))
    bound = device.bind(rig.load(texts["increment"], "increment", "bi"), (cell, 1))
    graph = device.record([LaunchCommand(bound, (4, 1, 1))])
    return {
        "launch": lambda t, waits=(): device.launch(bound, (4, 1, 1), t, waits),
        "copy": lambda t, waits=(): device.copy(other.region(), cell.region(), t, waits),
        "fill": lambda t, waits=(): device.fill(cell.region(), b"\0", t, waits),
        "replay": lambda t, waits=(): device.replay(graph, (), t, waits),
        "host_call": lambda t, waits=(): device.host_call(lambda: None, t, waits),
    }


def cause(rig, *points, kind=OperationFailed):
    with pytest.raises(kind) as caught:
        rig.device.wait(points, 10, True)
    return caught.value.failure


@pytest.mark.parametrize("hook", ["launch", "copy", "fill", "replay", "host_call"])
@pytest.mark.parametrize("nth", [1, 3])
def test_an_injected_failure_fails_its_point_and_what_depends_on_it(rig, work, failure, hook, nth):
    planted, later = failure(), failure()
    other, third, free = (rig.device.create_timeline(False) for _ in range(3))
    rig.device.inject(Fault(planted, hook, nth))
    before = [work[hook](rig.timeline) for _ in range(nth - 1)]
    failed = work[hook](rig.timeline)
    behind = work["fill"](rig.timeline)
    waiting = work["copy"](other, (failed,))
    far = work["launch"](third, (waiting,))
    independent = work["launch"](free)
    for point in (failed, behind, waiting, far):
        assert cause(rig, point) is planted
    if before:
        assert rig.device.wait(before, 10, True)
    assert rig.device.wait((independent,), 10, True)
    rig.device.inject(Fault(later, "launch"))
    assert cause(rig, work["launch"](rig.timeline)) is planted
    assert rig.device.health().state is HealthState.OK


def test_a_failed_launch_does_nothing(rig, texts, failure):
    cell = rig.upload(np.zeros(100, np.int64))
    bound = rig.device.bind(rig.load(texts["increment"], "increment", "bi"), (cell, 1))
    timeline = rig.device.create_timeline(False)
    rig.device.inject(Fault(failure(), "launch"))
    cause(rig, rig.device.launch(bound, (100, 1, 1), timeline, ()))
    assert not rig.download(cell, np.int64).any()


def test_a_partial_write_writes_a_part(rig, failure):
    source = rig.upload(np.full(1 << 20, 9, np.uint8))
    target = rig.upload(np.zeros(1 << 20, np.uint8))
    timeline = rig.device.create_timeline(False)
    rig.device.inject(Fault(failure(FailureKind.PARTIAL_WRITE), "copy"))
    point = rig.device.copy(target.region(), source.region(), timeline, ())
    assert cause(rig, point).kind is FailureKind.PARTIAL_WRITE
    got = rig.download(target, np.uint8)
    assert got[0] == 9
    assert got[-1] == 0


def test_memory_in_failed_work_is_given_back(rig, work, failure):
    base = rig.device.stats("").live_nbytes
    gate = rig.device.create_timeline(True)
    buffer = rig.device.alloc(1 << 20, PLAIN)
    point = rig.device.fill(buffer.region(), b"\1", rig.timeline, (Point(gate, 1),))
    rig.device.free(buffer)
    rig.device.signal(gate, 0, failure())
    cause(rig, point)
    assert rig.device.stats("").live_nbytes == base


def test_alloc_and_load_fail_at_once(rig, texts, failure):
    rig.device.inject(Fault(failure(FailureKind.OUT_OF_MEMORY), "alloc", 2))
    rig.device.alloc(8, PLAIN)
    with pytest.raises(OutOfMemory):
        rig.device.alloc(8, PLAIN)
    rig.device.alloc(8, PLAIN)
    planted = failure(FailureKind.COMPILE)
    rig.device.inject(Fault(planted, "load"))
    with pytest.raises(CompileError, match=planted.message):
        rig.load(texts["add"], "add", "bbb")
    rig.load(texts["add"], "add", "bbb")
    rig.device.inject(Fault(failure(*LOST), "alloc"))
    with pytest.raises(DeviceLost):
        rig.device.alloc(8, PLAIN)
    assert rig.device.health().state is HealthState.LOST


def test_what_cannot_be_injected_is_unsupported(rig, failure):
    for hook, kind in (("describe", FailureKind.LAUNCH_FAULT), ("alloc", FailureKind.HANG)):
        with pytest.raises(Unsupported):
            rig.device.inject(Fault(failure(kind), hook))


@pytest.mark.parametrize(
    ("how", "state"), [(LOST, HealthState.LOST), (MUST_RESET, HealthState.RESET_REQUIRED)]
)
@pytest.mark.parametrize("hook", ["launch", "copy", "fill", "replay", "host_call"])
def test_a_lost_device_fails_everything_until_reset(
    rig, work, failure, until_inside_wait, how, state, hook
):
    device = rig.device
    gate = device.create_timeline(True)
    other = device.create_timeline(False)
    blocked = work["fill"](other, (Point(gate, 1),))
    planted = failure(*how)
    waiters = [Caught(rig, blocked, until_inside_wait) for _ in range(4)]
    device.inject(Fault(planted, hook))
    point = work[hook](rig.timeline)
    for owed in (point, blocked, Point(gate, 1), Point(other, 7)):
        assert cause(rig, owed, kind=DeviceLost) is planted
    assert [waiter.failure() for waiter in waiters] == [planted] * 4
    assert (device.health().state, device.health().cause) == (state, planted)
    for again in (work[hook], work["launch"]):
        with pytest.raises(DeviceLost):
            again(rig.timeline)
    with pytest.raises(DeviceLost):
        device.alloc(8, PLAIN)
    assert device.reset() == 1
    assert device.health().state is HealthState.OK
    assert device.stats("").live_nbytes == 0
    with pytest.raises(StaleHandle):
        work[hook](rig.timeline)
    with pytest.raises(StaleHandle):
        device.wait((point,), 1, True)
    with pytest.raises(StaleHandle):
        device.free(rig.timeline)


class Caught:
    """A thread that waits and keeps what it got."""

    def __init__(self, rig, point, until_inside_wait):
        self._thread = threading.Thread(target=self._wait, args=(rig, point), daemon=True)
        self._thread.start()
        until_inside_wait(self._thread)

    def _wait(self, rig, point):
        self._failure = None
        try:
            rig.device.wait((point,), 10, True)
        except OperationFailed as error:
            self._failure = error.failure

    def failure(self):
        self._thread.join(15)
        return self._failure


def test_a_hanging_operation_hangs_until_reset(rig, work, failure, until_inside_wait):
    planted = failure(FailureKind.HANG)
    rig.device.inject(Fault(planted, "launch"))
    point = work["launch"](rig.timeline)
    behind = work["fill"](rig.timeline)
    assert not rig.device.wait((point,), 0.05, True)
    health = rig.device.health()
    assert (health.state, health.cause) == (HealthState.HANGING, planted)
    elsewhere = rig.device.create_timeline(False)
    rig.wait(work["launch"](elsewhere))
    waiter = Caught(rig, behind, until_inside_wait)  # a wait that begins after the reset is stale
    assert rig.device.reset() == 1
    assert waiter.failure().scope is Scope.RESET
    assert rig.device.health().state is HealthState.OK


def test_a_hanging_device_closes(open_cpu, failure):
    device = open_cpu()
    timeline = device.create_timeline(False)
    buffer = device.alloc(8, PLAIN)
    device.inject(Fault(failure(FailureKind.HANG), "fill"))
    device.fill(buffer.region(), b"\1", timeline, ())
    device.close()
    assert device.health().state is HealthState.CLOSED


def test_twenty_losses_and_resets(rig, texts, failure):
    device = rig.device
    for round_number in range(20):
        cell = device.alloc(4096, AllocOptions(zero=True))
        timeline = device.create_timeline(False)
        bound = device.bind(rig.load(texts["increment"], "increment", "bi"), (cell, 1))
        graph = device.record([LaunchCommand(bound, (512, 1, 1))] * 3)
        device.wait((device.replay(graph, (), timeline, ()),), 10, True)
        assert np.frombuffer(device.map(cell.region(), False), np.int64).tolist() == [3] * 512
        device.inject(Fault(failure(*LOST), "replay"))
        cause(rig, device.replay(graph, (), timeline, ()), kind=DeviceLost)
        assert device.reset() == round_number + 1
        assert device.stats("").live_buffers == 0


def test_losing_the_device_while_it_computes(rig, texts, failure):
    device = rig.device
    bound = device.bind(rig.load(texts["spin"], "spin", "i"), (30_000_000,))
    running = device.launch(bound, (3, 1, 1), rig.timeline, ())
    graph = device.record([LaunchCommand(bound, (1, 1, 1))] * 50)
    line, other = device.create_timeline(False), device.create_timeline(False)
    replaying = device.replay(graph, (), line, ())
    device.inject(Fault(failure(*LOST), "fill"))
    device.fill(device.alloc(8, PLAIN).region(), b"\0", other, ())
    cause(rig, running, kind=DeviceLost)
    cause(rig, replaying, kind=DeviceLost)
    device.reset()
    assert device.stats("").live_nbytes == 0


def test_subscribers_hear_of_failures_without_an_operation(rig, failure):
    heard = []
    rig.device.subscribe(heard.append)
    hot = failure(FailureKind.DATA_CORRUPTION, Scope.OPERATION)
    rig.device.inject(Fault(hot, "health", 2))
    assert [rig.device.health().state for _ in range(3)] == [HealthState.OK] * 3
    assert heard == [hot]
    dead = failure(*LOST)
    rig.device.inject(Fault(dead, "health"))
    assert rig.device.health().state is HealthState.LOST
    assert heard == [hot, dead]
