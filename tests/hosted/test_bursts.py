"""Launches that come in bursts: the driver gets each once, and soon, whatever comes between."""

import threading
import time
from unittest.mock import patch

import pytest

from hal.core.errors import DeviceLost, Failure, FailureKind, Scope
from hal.core.values import Fault, LaunchCommand
from hal.hosted import bursts
from hal.hosted.lock import LOCK
from tests.hosted.bench import ONE, Bench, given_to, opened_bench  # noqa: F401  a fixture


@pytest.fixture
def rapid():
    """Every launch comes soon after the one before, however busy the machine is."""
    with patch.multiple(bursts, _RAPID_NS=1 << 62, _LONGEST_NS=1 << 62):
        yield


@pytest.mark.usefixtures("rapid")
def test_launches_of_a_burst_go_to_the_driver_without_another_call(bench):
    buffer, timeline = bench.buffer(), bench.timeline()
    last = [bench.launch("add", buffer, timeline) for _ in range(3)][-1]
    until_s = time.monotonic() + 60
    while given_to(bench.driver) < 3 and time.monotonic() < until_s:
        time.sleep(1e-3)
    assert given_to(bench.driver) == 3
    assert bench.wait(last)
    assert bench.content(buffer) == bytes([3] * 4)


@pytest.mark.usefixtures("rapid")
def test_a_refusal_in_a_burst_fails_it_and_what_follows(bench):
    buffer, timeline = bench.buffer(), bench.timeline()
    names = ("add", "add", "refused", "add", "add")
    bound = [bench.program(name, buffer) for name in names]
    points = [bench.device.launch(one, ONE, timeline, ()) for one in bound]
    assert bench.wait(*points[:2])
    assert {bench.failure(point).message for point in points[2:]} == {"no"}
    assert bench.content(buffer) == bytes([2] * 4)
    bench.device.free(buffer)
    assert bench.device.stats("").live_buffers == 0


@pytest.mark.usefixtures("rapid")
def test_a_loss_gives_back_what_a_burst_uses():
    """The loss that is told, not that of a driver that does not get on."""
    bench = Bench(progress_s=60.0)
    bench.driver.paused = True
    buffer, timeline = bench.buffer(), bench.timeline()
    points = [bench.launch("add", buffer, timeline) for _ in range(8)]
    failure = Failure(FailureKind.RESET_REQUIRED, Scope.RESET, "tiny:0", "health", "gone")
    bench.device.inject(Fault(failure, "health"))
    bench.device.health()
    for point in points:
        with pytest.raises(DeviceLost):
            bench.wait(point)
    bench.driver.paused = False
    assert bench.device.reset() == 1
    assert bench.device.stats("").live_buffers == 0
    bench.device.close()


@pytest.mark.usefixtures("rapid")
def test_a_burst_goes_to_the_driver_while_the_host_works(bench):
    """The session's thread copies between devices, which takes as long as the driver is paused."""
    other = Bench("tiny:1")
    copied, begun = threading.Event(), threading.Event()

    def read(memory, offset, nbytes):
        begun.set()
        assert copied.wait(60)
        return bytes(nbytes)

    other.driver.read = read
    buffer, timelines = bench.buffer(), [bench.timeline() for _ in range(2)]
    done = bench.device.copy(buffer.region(), other.buffer().region(), timelines[0], ())
    assert begun.wait(60)
    here = bench.buffer()
    points = [bench.launch("add", here, timelines[1]) for _ in range(3)]
    given = given_to(bench.driver)
    copied.set()
    assert given == 3
    assert bench.wait(done, *points)
    assert bench.content(here) == bytes([3] * 4)
    other.device.close()


@pytest.mark.usefixtures("rapid")
def test_an_interrupt_while_a_burst_is_handed_over(bench):
    """What the driver has runs once; the rest fails, and gives back what it uses."""
    buffer, timeline, launch = bench.buffer(), bench.timeline(), bench.driver.launch
    bound, calls = bench.program("add", buffer), []

    def interrupted(*args):
        calls.append(launch(*args))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return calls[-1]

    bench.driver.launch = interrupted
    with LOCK:  # until the last one is there nobody looks
        points = [bench.device.launch(bound, ONE, timeline, ()) for _ in range(5)]
        with pytest.raises(KeyboardInterrupt):
            bench.wait(points[-1])
    assert bench.wait(*points[:2])
    assert {bench.failure(point).kind for point in points[2:]} == {FailureKind.ABORTED}
    assert bench.content(buffer) == bytes([3] * 4)
    bench.device.free(buffer)
    assert bench.device.stats("").live_buffers == 0


@pytest.mark.usefixtures("rapid")
def test_a_burst_reaches_the_driver_when_another_timeline_is_waited_for(bench):
    buffer, other = bench.buffer(), bench.buffer()
    first, second = bench.timeline(), bench.timeline()
    with LOCK:
        points = [bench.launch("add", buffer, first) for _ in range(3)]
        assert given_to(bench.driver) < 3
        last = bench.launch("add", other, second, points[-1:])
        assert given_to(bench.driver) == 4
    assert bench.wait(last)
    assert bench.content(buffer) == bytes([3] * 4)


@pytest.mark.usefixtures("rapid")
@pytest.mark.parametrize("end", ["close", "free the timeline", "replay", "copy"])
def test_what_ends_a_burst_loses_nothing_of_it(bench, end):
    buffer, timeline, seen = bench.buffer(), bench.timeline(), []
    bound, out = bench.program("add", buffer), bytearray(4)
    graph = bench.device.record([LaunchCommand(bound, ONE)])
    bench.driver.release = lambda memory: seen.append(bytes(memory))
    with LOCK:
        points = [bench.device.launch(bound, ONE, timeline, ()) for _ in range(3)]
        assert given_to(bench.driver) < 3
        if end == "free the timeline":
            bench.device.free(timeline)
        elif end == "replay":
            points.append(bench.device.replay(graph, (), timeline, ()))
        elif end == "copy":
            points.append(bench.device.copy(out, buffer.region(), timeline, ()))
    if end in ("replay", "copy"):
        assert bench.wait(*points)
    bench.device.close()
    assert seen == [bytes([3 + (end == "replay")] * 4)]
    assert out == bytes([3 * (end == "copy")] * 4)
