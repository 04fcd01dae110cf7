"""How hosted devices end, and how long memory lives."""

import threading

import pytest

from hal.core.errors import InvalidCall
from hal.core.values import AllocOptions, FillCommand, HealthState, KernelSource, Point
from tests.hosted.conftest import Bench


def test_close_lets_work_finish_and_fails_what_nobody_can_satisfy(bench):
    ran, gate = [], bench.timeline(host_driven=True)
    timeline = bench.timeline()
    bench.device.host_call(lambda: ran.append(1), timeline, ())
    bench.device.host_call(lambda: ran.append(2), timeline, ())
    bench.device.host_call(lambda: ran.append(3), bench.timeline(), [Point(gate, 1)])
    bench.device.close()
    assert ran == [1, 2]
    assert bench.machine.released == 1
    assert bench.device.health().state is HealthState.CLOSED


def test_a_closed_device_leaves_no_thread():
    before = {*threading.enumerate()}
    bench = Bench()
    bench.wait(bench.device.host_call(lambda: None, bench.timeline(), ()))
    bench.device.close()
    assert not [t for t in {*threading.enumerate()} - before if t.name.startswith("tiny:0")]


def test_close_waits_for_a_program_that_another_thread_loads(bench, monkeypatch):
    """A thread that is in a driver's code when the interpreter ends aborts the process."""
    begun, go_on, ended = threading.Event(), threading.Event(), []

    def compile(source):
        begun.set()
        assert go_on.wait(60)
        ended.append(source.entry)
        return source.text

    monkeypatch.setattr(bench.machine, "compile", compile)
    source = KernelSource("python/1", "", "held", ())
    loader = threading.Thread(target=bench.device.load, args=(source,), daemon=True)
    closer = threading.Thread(target=bench.device.close, daemon=True)
    loader.start()
    assert begun.wait(60)
    closer.start()
    closer.join(0.2)
    assert closer.is_alive()
    assert not ended
    go_on.set()
    closer.join(60)
    assert ended == ["held"]
    loader.join(60)


def test_memory_in_use_comes_back_when_its_operation_is_done(bench):
    gate = bench.timeline(host_driven=True)
    buffer = bench.device.alloc(100, AllocOptions())
    point = bench.device.fill(buffer.region(), b"a", bench.timeline(), [Point(gate, 1)])
    bench.device.free(buffer)
    assert bench.device.stats("").live_nbytes == 164
    bench.device.signal(gate, 1, None)
    bench.wait(point)
    assert bench.device.stats("").live_nbytes == 64


def test_a_graph_keeps_its_buffers_until_it_is_freed(bench):
    buffer = bench.device.alloc(100, AllocOptions())
    graph = bench.device.record([FillCommand(buffer.region(), b"a")])
    bench.device.free(buffer)
    bench.wait(bench.device.replay(graph, (), bench.timeline(), ()))
    assert bench.device.stats("").live_buffers == 2
    bench.device.free(graph)
    assert bench.device.stats("").live_buffers == 1


def test_a_reset_gives_back_what_graphs_and_blocked_work_keep(bench):
    gate = bench.timeline(host_driven=True)
    buffer = bench.device.alloc(100, AllocOptions())
    graph = bench.device.record([FillCommand(buffer.region(), b"a")])
    bench.device.free(buffer)
    bench.device.replay(graph, (), bench.timeline(), [Point(gate, 1)])
    bench.device.reset()
    stats = bench.device.stats("")
    assert (stats.live_nbytes, stats.live_buffers) == (0, 0)


def test_freed_timelines_make_room_for_new_ones(bench):
    timelines = [bench.timeline() for _ in range(bench.device.info.limits.queues)]
    with pytest.raises(InvalidCall, match="200 timelines already"):
        bench.timeline()
    bench.device.free(timelines[0])
    bench.wait(bench.fill(1, bench.timeline()))
