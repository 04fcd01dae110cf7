"""Calls among the work of devices: what they wait for, what waits for them, how they fail."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from hal.core.description import Feature
from hal.core.dtypes import DType
from hal.core.errors import (
    DeviceLost,
    Failure,
    FailureKind,
    InvalidCall,
    OperationFailed,
    OutOfMemory,
    Scope,
)
from hal.core.values import AllocOptions, Collective, CollectiveKind, Fault, Point, ReduceKind
from hal.core.wrappers.fallbacks import Fallbacks
from stack.comm.choose.override import parse_override
from stack.comm.device.group import DeviceGroup
from stack.comm.device.through import COPIED
from stack.comm.plan.error import PlanError
from tests.comm.device.devices import FAR, open_device
from tests.comm.device.seats import WAIT_S, seated
from tests.comm.engine.crew import crews
from tests.comm.engine.test_operations import numbers

N = 100
I32, F32 = np.dtype(np.int32), np.dtype(np.float32)
SUM = Collective(CollectiveKind.ALL_REDUCE, DType.I32, N)
PAIR = ["cpu:0", FAR]


@pytest.fixture
def pair():
    """Two ranks, one of whose memory the host sees, and a buffer of each."""
    with seated(PAIR) as seats:
        buffers = [seat.put(np.full(N, rank + 1, I32))[0] for rank, seat in enumerate(seats)]
        for seat, buffer in zip(seats, buffers, strict=True):
            seat.get(buffer, I32)
        yield list(zip(seats, buffers, strict=True))


def begin(seat, buffer, *waits, call=SUM):
    return seat.parts[0, 1].start(call, buffer.region(), buffer.region(), waits)


def failure(seat, point):
    with pytest.raises(OperationFailed) as caught:
        seat.device.wait([point], WAIT_S, True)
    return caught.value.failure


def cause(seat):
    return Failure(FailureKind.ABORTED, Scope.OPERATION, seat.device.name, "test", "it is a test")


def test_a_call_waits_for_points_and_is_waited_for(pair):
    (one, a), (two, b) = pair
    gate = one.device.create_timeline(True)
    late = one.device.fill(a.region(), b"\x05\0\0\0", one.timeline, [Point(gate, 1)])
    first, second = begin(one, a, late), begin(two, b)
    again = begin(two, b)
    assert not one.device.wait([first], 0.01, True)
    one.device.signal(gate, 1, None)
    assert one.get(a, I32, begin(one, a, first))[0] == 14
    assert two.get(b, I32, again)[0] == 14
    two.done(second)


def test_calls_run_in_the_order_in_which_they_began(pair):
    points = [[begin(seat, buffer) for _ in range(20)] for seat, buffer in pair]
    for (seat, buffer), own in zip(pair, points, strict=True):
        assert seat.get(buffer, I32, own[-1])[0] == 3 << 19


def test_a_failed_wait_fails_the_call_unchanged_and_ends_the_group_for_others(pair):
    (one, a), (two, b) = pair
    gate = one.device.create_timeline(True)
    first, second = begin(one, a, Point(gate, 1)), begin(two, b)
    one.device.signal(gate, 1, cause(one))
    assert failure(one, first) == cause(one)
    found = failure(two, second)
    assert (found.scope, found.kind) == (Scope.PEER, FailureKind.ABORTED)
    assert "rank 0 has aborted the group" in found.message
    assert found.device == two.device.name
    assert found.ranks == (two.parts[0, 1].group.failure.rank,) == (0,)
    assert failure(one, begin(one, a)) == cause(one)


def test_abort_wakes_waiters_with_its_cause(pair):
    (one, a), (two, b) = pair
    point = begin(one, a)
    threading.Timer(0.02, one.parts[0, 1].abort, [cause(one)]).start()
    assert failure(one, point) == cause(one)
    assert one.parts[0, 1].failure == cause(one)
    told = failure(two, begin(two, b))
    assert "rank 0" in told.message
    assert told.ranks == (0,)


@pytest.mark.parametrize("wrong", [None, "rank 1 is slow", RuntimeError("rank 1 is slow")])
def test_abort_wants_a_failure_as_its_cause(pair, wrong):
    (one, a), (two, b) = pair
    with pytest.raises(InvalidCall, match=r"the cause is .*, not a Failure"):
        one.parts[0, 1].abort(wrong)
    points = begin(one, a), begin(two, b)  # nothing has ended
    for seat, point in zip((one, two), points, strict=True):
        seat.done(point)


def test_ranks_that_make_other_calls_are_told_both(pair):
    (one, a), (two, b) = pair
    other = Collective(CollectiveKind.ALL_REDUCE, DType.I32, N, ReduceKind.MAX)
    points = begin(one, a), begin(two, b, call=other)
    for (seat, _), point in zip(pair, points, strict=True):
        found = failure(seat, point)
        assert "all-reduce (sum) of 100 i32" in found.message
        assert "all-reduce (max) of 100 i32" in found.message
        assert sorted(found.ranks) == [0, 1]


def test_a_lost_device_is_told_to_ranks_that_wait_for_it(pair):
    (one, a), (two, b) = pair
    point = begin(two, b)
    lost = Failure(FailureKind.DEVICE_LOST, Scope.DEVICE, "cpu:0", "fill", "a test loses it")
    one.device.inject(Fault(lost, "fill"))
    with pytest.raises(DeviceLost):
        one.done(one.device.fill(a.region(), b"\0", one.timeline, ()))
    assert "rank 0" in failure(two, point).message
    assert failure(one, begin(one, a)) == lost


def test_survivors_go_on_in_a_smaller_group():
    with seated([*PAIR, "reference:0"]) as seats:
        three = [seat.parts[0, 1, 2] for seat in seats]
        put = [seat.put(np.full(N, rank + 1, I32)) for rank, seat in enumerate(seats)]
        begun = [
            part.start(SUM, buffer.region(), buffer.region(), (there,))
            for part, (buffer, there) in zip(three[:2], put, strict=False)
        ]
        three[2].leave(three[2].group.close)
        for seat, point in zip(seats, begun, strict=False):
            assert "rank 2 has left the group" in failure(seat, point).message
        with ThreadPoolExecutor(2) as pool:
            going_on = [pool.submit(smaller_sum, *each) for each in zip(seats, three, strict=True)]
            assert [ended.result(WAIT_S) for ended in going_on[:2]] == [3, 3]


def smaller_sum(seat, part):
    """What a rank's sum with the other survivors gives."""
    if part.rank == 2:
        return None
    part.close()
    with part.group.shrink() as left, DeviceGroup(left, seat.device) as members:
        buffer, there = seat.put(np.full(N, part.rank + 1, I32))
        point = members.start(SUM, buffer.region(), buffer.region(), (there,))
        return seat.get(buffer, I32, point)[0]


def test_a_copy_that_fails_fails_the_call(pair):
    (one, a), (two, b) = pair
    broken = Failure(FailureKind.PARTIAL_WRITE, Scope.OPERATION, "tiny:0", "copy", "a test")
    two.device.inject(Fault(broken, "copy"))
    points = begin(one, a), begin(two, b)
    assert failure(two, points[1]) == broken
    assert "rank 1" in failure(one, points[0]).message


def test_a_rank_that_does_not_come_is_named_at_the_deadline():
    with seated(PAIR, deadline_s=0.3) as (one, _two):
        buffer, there = one.put(np.ones(N, I32))
        found = failure(one, begin(one, buffer, there))
        assert found.kind is FailureKind.HANG
        assert "rank 1 did not come to call" in found.message
        assert found.ranks == (1,)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (Collective(CollectiveKind.ALL_REDUCE, DType.I32, N + 1), "404 bytes of dst"),
        (Collective(CollectiveKind.BROADCAST, DType.I32, N, root=2), "root 2 is no rank"),
        (Collective(CollectiveKind.ALL_TO_ALL_V, DType.I32, 0), "not 2 rows of 2"),
        (Collective(CollectiveKind.ALL_GATHER, DType.I32, 0, parts=(1, 2, 3)), "no parts of"),
        (Collective(CollectiveKind.ALL_REDUCE, DType.I32, 0, parts=(50, 50)), "no parts of"),
        (
            Collective(CollectiveKind.ALL_REDUCE, DType.BOOL, 4 * N, ReduceKind.AVG),
            "no average of bools",
        ),
    ],
)
def test_wrong_calls_are_refused_before_they_begin(pair, call, text):
    (one, a), (two, b) = pair
    with pytest.raises(InvalidCall, match=text):
        one.parts[0, 1].start(call, a.region(), a.region())
    begin(two, b)
    assert one.get(a, I32, begin(one, a))[0] == 3


def test_long_calls_go_through_host_memory_in_pieces():
    count = 700_001
    call = Collective(CollectiveKind.ALL_REDUCE, DType.F32, count)
    given = [numbers(3, rank, count, F32) for rank in range(2)]
    results = []
    for names in (["cpu:0", "cpu:0"], PAIR, [FAR, FAR]):
        with seated(names) as seats:
            put = [seat.put(array) for seat, array in zip(seats, given, strict=True)]
            points = [begin(s, b, p, call=call) for s, (b, p) in zip(seats, put, strict=True)]
            for seat, (buffer, _), point in zip(seats, put, points, strict=True):
                results.append(seat.get(buffer, F32, point))
    for result in results:
        np.testing.assert_array_equal(result, given[0] + given[1])


@pytest.mark.parametrize("kind", [k for k in CollectiveKind if k is not CollectiveKind.BARRIER])
def test_a_plugins_own_group_gives_what_the_engine_gives(kind):
    size, count = 2, 51
    counts = ((7, 9), (0, 30)) if kind is CollectiveKind.ALL_TO_ALL_V else ()
    call = Collective(kind, DType.F32, 0 if counts else count, ReduceKind.SUM, 1, counts)
    results = {}
    for way in ("device", "engine"):
        rules = parse_override(f"{kind.value.replace('-', '_')}={way}")
        with seated(["cpu:0"] * size, rules=rules) as seats:
            results[way] = [*outputs(seats, call, count * size)]
    assert results["device"] == results["engine"]


def outputs(seats, call, count):
    """What the call makes of a destination of zeros on each rank, as bytes."""
    begun = []
    for rank, seat in enumerate(seats):
        sizes = (4 * (n or 0) for n in call.elements(rank, len(seats)))
        src, _ = seat.put(numbers(5, rank, count, F32))
        dst, there = seat.put(np.zeros(count, F32))
        to, of = (buffer.region(0, n) for buffer, n in zip((dst, src), sizes, strict=True))
        begun.append((seat, dst, seat.parts[0, 1].start(call, to, of, (there,))))
    for seat, dst, point in begun:
        yield seat.get(dst, F32, point).tobytes()


def test_memory_for_calls_is_reduced_in_place():
    rules = parse_override("all_reduce=engine")
    with seated(["cpu:0", "reference:0"], rules=rules) as seats:
        call, full = replace(SUM, count=10**5), np.full(10**5, 1, I32)
        made = [seat.put(full * (r + 1), seat.parts[0, 1]) for r, seat in enumerate(seats)]
        points = [begin(s, b, there, call=call) for s, (b, there) in zip(seats, made, strict=True)]
        for seat, (buffer, _), point in zip(seats, made, points, strict=True):
            assert seat.get(buffer, I32, point)[0] == 3
            assert seat.parts[0, 1].group.way == "mapped"
            seat.device.free(buffer)


def test_a_word_of_rank_0s_environment_chooses_for_all(monkeypatch):
    with crews(1) as [crew], open_device(FAR) as device:
        monkeypatch.setenv("HAL_COMM_PLANS", "all_reduce=nonsense")
        with pytest.raises(PlanError, match="all-reduce has"):
            crew.do(lambda g: DeviceGroup(g, device))
        monkeypatch.setenv("HAL_COMM_PLANS", "all_reduce=engine:0-1K;device:1K-")
        crew.do(lambda g: DeviceGroup(g, device).close())


def test_copies_through_the_host_are_noticed():
    fallbacks = Fallbacks()
    with open_device(FAR, (fallbacks,)) as device, crews(1) as [crew]:
        buffer = device.alloc(4 * N, AllocOptions())
        part = crew.do(lambda g: DeviceGroup(g, device, parse_override("all_reduce=engine")))[0]
        with part:
            point = part.start(SUM, buffer.region(), buffer.region())
            assert device.wait([point], WAIT_S, True)
    assert fallbacks.counts == {("tiny:0", Feature.MAP, COPIED): 1}


def test_nothing_is_left_of_a_closed_group():
    with seated(["cpu:0"]) as (seat,), crews(1) as [crew]:
        before = {*threading.enumerate()}
        part = crew.do(lambda g: DeviceGroup(g, seat.device))[0]
        assert len({*threading.enumerate()} - before) == 1
        part.close()
        part.close()
        assert not {*threading.enumerate()} - before


def test_more_memory_for_calls_than_there_is_is_refused_at_once():
    with seated(["cpu:0", "cpu:0"]) as [one, two]:
        for seat in (one, two):
            with pytest.raises(OutOfMemory) as raised:
                seat.parts[0, 1].alloc(1 << 40)
            assert raised.value.requested == 1 << 40 > raised.value.available > 0
