"""A machine that does not return, or is slow, or fails: what its device makes of it."""

import threading
import time

import pytest

from hal.core.dtypes import DType
from hal.core.errors import DeviceLost, Failure, FailureKind, OperationFailed, Scope
from hal.core.values import (
    AllocOptions,
    Fault,
    FillCommand,
    HealthState,
    KernelSource,
    LaunchCommand,
    Param,
    ParamKind,
    Point,
)
from hal.hosted import watch
from hal.hosted.driven import DrivenMachine
from tests.hosted.conftest import NAMES, PROGRAMS, Bench
from tests.hosted.test_groups import SUM, join, submit

PARAM = Param("x", ParamKind.BUFFER, DType.U8, writes=True)
PLAIN = AllocOptions()


@pytest.fixture
def event():
    """What the program "stuck" waits for."""
    made = threading.Event()
    PROGRAMS["stuck"] = lambda memory: made.wait(100)
    yield made
    made.set()
    del PROGRAMS["stuck"]


@pytest.fixture
def slow(event):
    """A bench whose machine takes its time until the event is set."""
    made = Bench()
    yield made
    event.set()
    made.device.close()


def bound(bench, text="stuck"):
    program = bench.device.load(KernelSource("python/1", text, text, (PARAM,)))
    return program, bench.device.bind(program, [bench.buffer])


def launched(bench):
    return bench.device.launch(bound(bench)[1], (1, 1, 1), bench.timeline(), ())


def test_a_launch_that_does_not_return_loses_the_device(slow, event):
    gate, blocked = slow.timeline(host_driven=True), slow.timeline()
    points = [
        launched(slow),
        slow.fill(1, slow.timeline()),
        slow.fill(2, blocked, [Point(gate, 1)]),
    ]
    for point in points:
        with pytest.raises(DeviceLost) as caught:
            slow.wait(point)
        failure = caught.value.failure
        assert (failure.kind, failure.scope) == (FailureKind.HANG, Scope.DEVICE)
        assert failure.operation == "launch stuck"
    assert slow.device.health().state is HealthState.LOST
    assert slow.machine.released == 0, "the launch still uses the memory"
    event.set()
    assert slow.device.reset() == 1
    assert slow.machine.released == 1
    slow.buffer = slow.device.alloc(64, PLAIN)
    assert slow.wait(slow.fill(7, slow.timeline()))
    assert slow.content() == bytes([7]) * 64


def test_beats_and_pieces_are_progress(slow, event, monkeypatch):
    """A launch and a copy that take longer than the limit, but get on."""
    monkeypatch.setattr("hal.hosted.work.PIECE_NBYTES", 8)
    write = slow.machine.write
    monkeypatch.setattr(slow.machine, "write", lambda *a: (threading.Event().wait(0.02), write(*a)))

    def run(program, args, grid):
        for _ in range(8):
            threading.Event().wait(0.02)
            slow.machine.beats += 1

    monkeypatch.setattr(slow.machine, "run", run)
    assert slow.wait(launched(slow), slow.fill(3, slow.timeline()))
    assert slow.content() == bytes([3]) * 64


def test_a_launch_that_waits_for_a_thread_without_a_processor_is_no_hang(slow, event, monkeypatch):
    """As one of Python does for whoever holds the interpreter: here a thread that is ready and gets
    no processor nine tenths of the time."""
    own = watch.waits_s
    other = threading.get_native_id()
    monkeypatch.setattr(watch, "waits_s", lambda: {**own(), other: 0.9 * time.monotonic()})
    point = launched(slow)
    threading.Timer(6 * slow.device.describe().limits.progress_s, event.set).start()
    assert slow.wait(point)
    event.clear()
    with pytest.raises(DeviceLost):
        slow.wait(launched(slow))


def test_what_comes_on_while_waits_are_counted_is_not_quiet():
    """Who counts may itself wait long for the interpreter."""
    seen, reads = [0], iter(range(1, 4))

    def look():
        """Comes on after it was looked at for the first time, as long as there is a next."""
        now = seen[0]
        seen[0] = next(reads, now)
        return now

    quiet = watch.Quiet(lambda: look() // 2)
    assert [quiet.lasts(0.0) for _ in range(4)] == [False, True, True, True]


def test_a_host_call_may_take_its_time(slow):
    point = slow.device.host_call(lambda: threading.Event().wait(0.2), slow.timeline(), ())
    assert slow.wait(point)
    assert slow.device.health().state is HealthState.OK


@pytest.mark.parametrize("how", ["hang", "loss", "well"])
def test_the_machine_is_closed_once_however_the_device_ends(how, event):
    bench, closed = Bench(), []
    bench.machine.close = lambda: closed.append(how)
    if how == "hang":
        point = launched(bench)
        with pytest.raises(DeviceLost):
            bench.wait(point)
    if how == "loss":
        gone = Failure(FailureKind.DEVICE_LOST, Scope.DEVICE, "tiny:0", "fill", "gone")
        bench.device.inject(Fault(gone, "fill"))
        with pytest.raises(DeviceLost):
            bench.wait(bench.fill(1, bench.timeline()))
    bench.device.close()
    bench.device.close()
    assert closed == [how]


def test_a_program_comes_back_when_nothing_uses_it(slow, event):
    unloaded = []
    slow.machine.unload = unloaded.append
    gate = slow.timeline(host_driven=True)
    PROGRAMS["quick"] = lambda memory: None
    program, launchable = bound(slow, "quick")
    graph = slow.device.record([LaunchCommand(launchable, (1, 1, 1))])
    point = slow.device.launch(launchable, (1, 1, 1), slow.timeline(), [Point(gate, 1)])
    for handle in (program, launchable, graph):
        assert unloaded == []
        slow.device.free(handle)
    assert unloaded == []
    slow.device.signal(gate, 1, None)
    slow.wait(point)
    slow.device.stats("")
    assert unloaded == [PROGRAMS["quick"]]
    dropped, _ = bound(slow, "quick")
    del dropped, _
    slow.device.stats("")
    assert len(unloaded) == 2, "a program that its owner only dropped"
    kept = bound(slow, "quick")
    slow.device.close()
    assert len(unloaded) == 3
    assert kept


def test_others_work_while_a_device_allocates(slow, event):
    other, begun = Bench("tiny:1"), threading.Event()

    def allocate(nbytes, options):
        begun.set()
        event.wait(100)
        return bytearray(nbytes)

    slow.machine.allocate = allocate
    thread = threading.Thread(target=slow.device.alloc, args=(8, PLAIN), daemon=True)
    thread.start()
    assert begun.wait(60)
    assert other.wait(other.fill(5, other.timeline()))
    assert slow.wait(slow.fill(6, slow.timeline())), "the device itself works on, too"
    event.set()
    thread.join(60)
    other.device.close()


def test_memory_that_is_asked_for_is_not_given_twice(slow, event):
    nbytes = slow.device.info.spaces[0].nbytes - 64
    begun = threading.Event()
    slow.machine.allocate = lambda n, options: (begun.set(), event.wait(100), bytearray(n))[2]
    thread = threading.Thread(target=slow.device.alloc, args=(nbytes, PLAIN), daemon=True)
    thread.start()
    assert begun.wait(60)
    with pytest.raises(MemoryError):
        slow.device.alloc(1, PLAIN)
    event.set()
    thread.join(60)
    assert slow.device.stats("").live_nbytes == nbytes + 64


def test_a_machine_that_cannot_take_memory_back_is_lost(slow):
    def release(memory):
        raise OSError("the driver is gone")

    slow.machine.release = release
    slow.device.free(slow.buffer)
    assert slow.device.health().state is HealthState.LOST
    assert "the driver is gone" in slow.device.health().cause.message


def test_a_fill_in_a_graph_keeps_its_pattern_over_pieces(slow, monkeypatch):
    monkeypatch.setattr("hal.hosted.work.PIECE_NBYTES", 8)
    graph = slow.device.record([FillCommand(slow.buffer.region(8, 48), b"abcd")])
    slow.wait(slow.device.replay(graph, (), slow.timeline(), ()))
    assert slow.content() == bytes(8) + b"abcd" * 12 + bytes(8)


def test_a_compiler_that_does_not_return_loses_the_device(slow, event, monkeypatch):
    monkeypatch.setattr(type(slow.machine), "compile_s", 0.1)
    monkeypatch.setattr(slow.machine, "compile", lambda source: event.wait(100))
    gate = slow.timeline(host_driven=True)
    open_point = slow.fill(1, slow.timeline(), [Point(gate, 1)])
    with pytest.raises(DeviceLost) as caught:
        bound(slow)
    failure = caught.value.failure
    assert (failure.kind, failure.operation) == (FailureKind.HANG, "load stuck")
    assert slow.device.health().state is HealthState.LOST
    with pytest.raises(DeviceLost):
        slow.wait(open_point)


def test_a_compiler_that_gets_on_may_take_its_time(slow, monkeypatch):
    monkeypatch.setattr(type(slow.machine), "compile_s", 0.1)

    def compile(source):
        for _ in range(10):
            threading.Event().wait(0.05)
            slow.machine.beats += 1
        return PROGRAMS[source.text]

    monkeypatch.setattr(slow.machine, "compile", compile)
    bound(slow)
    assert slow.device.health().state is HealthState.OK


@pytest.mark.parametrize("hook", ["read", "write"])
@pytest.mark.parametrize("stuck", [0, 1, 2])
def test_a_collective_in_which_a_machine_does_not_return_is_lost_for_all(event, hook, stuck):
    benches = [Bench(name) for name in NAMES]
    monkey = benches[stuck].machine
    right = getattr(monkey, hook)
    groups = join(benches, f"hang {hook} {stuck}")
    setattr(monkey, hook, lambda *given: event.wait(100) and right(*given))
    points = [submit(b, g, SUM) for b, g in zip(benches, groups, strict=True)]
    kinds = []
    for bench, point in zip(benches, points, strict=True):
        with pytest.raises(OperationFailed) as caught:
            bench.wait(point)
        kinds.append(caught.value.failure.kind)
    assert kinds[stuck] is FailureKind.HANG
    assert {*kinds} <= {FailureKind.HANG, FailureKind.PEER_LOST}
    assert benches[stuck].device.health().cause.kind is FailureKind.HANG
    event.set()
    for bench in benches:
        bench.device.close()


def test_a_collective_that_gets_on_may_take_its_time(monkeypatch):
    monkeypatch.setattr("hal.hosted.work.PIECE_NBYTES", 8)
    benches = [Bench(name) for name in NAMES[:2]]
    for bench in benches:
        write = bench.machine.write
        bench.machine.write = lambda *a, w=write: (threading.Event().wait(0.02), w(*a))
    groups = join(benches, "slow")
    points = [submit(b, g, SUM) for b, g in zip(benches, groups, strict=True)]
    assert all(b.wait(p) for b, p in zip(benches, points, strict=True))
    for bench in benches:
        bench.device.close()


class Late(DrivenMachine):
    """A driver that ends its only operation at the last of some looks."""

    def __init__(self, looks):
        self.looks = looks
        super().__init__("late:0", 0.05, None)

    def state(self, mark):
        self.looks -= mark == "slow"
        return int(mark == "slow" and self.looks > 0)

    def clock_ns(self, mark):
        return 0, 0, 0

    def open_stream(self):
        return "stream"

    def nothing(self, stream, after):
        return "done"


for name in Late.__abstractmethods__:
    setattr(Late, name, None)
Late.__abstractmethods__ = frozenset()


@pytest.mark.parametrize("starved", [True, False])
def test_a_driver_is_late_only_by_what_its_threads_could_run(monkeypatch, starved):
    """Its threads wait for a processor all the time, or never."""
    monkeypatch.setattr("hal.hosted.driven.waits_s", lambda: {1: starved * time.monotonic()})
    machine = Late(looks=200)
    if starved:
        machine.finish("copy", "slow")
        assert machine.looks == 0
    else:
        with pytest.raises(OperationFailed) as caught:
            machine.finish("copy", "slow")
        assert caught.value.failure.kind is FailureKind.HANG
