"""The order in which hosted devices run: what the waits say, and the nasty one where they are
silent."""

import resource
import threading

import pytest

from hal.core.errors import FailureKind, OperationFailed
from hal.core.values import AllocOptions, CopyCommand, FillCommand, Point

SEEDS = range(12)


def fill_twice(bench, with_wait):
    one = bench.fill(1, bench.timeline())
    two = bench.fill(2, bench.timeline(), [one] if with_wait else ())
    bench.wait(one, two)
    return bench.content()[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_waits_order_timelines_under_every_seed(nasty, seed):
    bench = nasty(seed)
    assert {fill_twice(bench, with_wait=True) for _ in range(5)} == {2}


def test_a_forgotten_wait_shows(nasty):
    bench = nasty(0)
    assert 1 in {fill_twice(bench, with_wait=False) for _ in range(50)}


@pytest.mark.parametrize("seed", SEEDS)
def test_operations_of_a_timeline_run_in_order_under_every_seed(nasty, seed):
    bench, ran = nasty(seed), []
    timelines = [bench.timeline() for _ in range(3)]
    points = [
        bench.device.host_call(lambda at=(t, i): ran.append(at), timelines[t], ())
        for i in range(5)
        for t in range(3)
    ]
    bench.wait(*points)
    assert sorted(ran) == [(t, i) for t in range(3) for i in range(5)]
    for t in range(3):
        assert [i for which, i in ran if which == t] == list(range(5))


@pytest.mark.parametrize("seed", SEEDS)
def test_commands_of_a_graph_run_after_those_that_they_name(nasty, seed):
    bench = nasty(seed)
    other = bench.device.alloc(64, AllocOptions(zero=True))
    commands = [
        FillCommand(bench.buffer.region(0, 32), b"\x01", ()),
        FillCommand(bench.buffer.region(32, 32), b"\x02", ()),
        CopyCommand(other.region(0, 32), bench.buffer.region(32, 32), (1,)),
        CopyCommand(bench.buffer.region(32, 32), bench.buffer.region(0, 32), (0, 2)),
        CopyCommand(other.region(32, 32), bench.buffer.region(32, 32)),
    ]
    graph = bench.device.record(commands)
    point = bench.device.replay(graph, (), bench.timeline(), ())
    out = bytearray(64)
    bench.wait(bench.device.copy(out, other.region(), bench.timeline(), [point]))
    assert bytes(out) == bytes([2]) * 32 + bytes([1]) * 32


def test_a_host_call_may_wait_for_another_timeline(bench):
    other = bench.timeline()
    waited = []
    call = bench.device.host_call(
        lambda: waited.append(bench.wait(bench.fill(1, other))), bench.timeline(), ()
    )
    assert bench.wait(call)
    assert waited == [True]


def test_a_point_of_the_future_is_waited_for(bench):
    gate, timeline = bench.timeline(host_driven=True), bench.timeline()
    waiting = bench.fill(1, bench.timeline(), [Point(timeline, 2)])
    bench.fill(5, timeline)
    assert not bench.device.wait([waiting], 0.0, True)
    bench.fill(6, timeline, [Point(gate, 3)])
    bench.device.signal(gate, 3, None)
    assert bench.wait(waiting)
    assert bench.content() == bytes([1]) * 64


def test_a_host_call_for_which_there_is_no_thread_fails_and_the_device_goes_on(bench):
    """Stacks of 1 GiB do not fit into an address space that may grow by 256 MiB."""
    with open("/proc/self/statm") as pages:
        used = int(pages.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        threading.stack_size(1 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), before[1]))
        call = bench.device.host_call(lambda: None, bench.timeline(), ())
        with pytest.raises(OperationFailed, match=r"ulimit -u") as raised:
            bench.wait(call)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        threading.stack_size(0)
    assert raised.value.failure.kind is FailureKind.HOST_CALL
    assert bench.wait(bench.device.host_call(lambda: None, bench.timeline(), ()))
