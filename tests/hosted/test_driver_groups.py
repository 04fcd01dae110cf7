"""Collectives that a driver does itself, beside those that go through the host."""

import threading

import numpy as np
import pytest

from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.errors import (
    DeadlineExceeded,
    DeviceLost,
    Failure,
    FailureKind,
    OperationFailed,
    Scope,
    Unsupported,
)
from hal.core.values import AllocOptions, Collective, CollectiveKind, GroupSpec, HealthState
from hal.core.wrappers.validation import validate
from hal.hosted.device import HostedDevice
from hal.hosted.order import Order
from tests.hosted.conftest import NAMES, Bench, TinyMachine, describe
from tests.hosted.test_groups import SUM, join, submit, together, write

PLAIN = AllocOptions()
OTHER = Collective(CollectiveKind.ALL_GATHER, DType.F32, 16)


class Adding:
    """A driver's group that adds float32, and nothing else."""

    def __init__(self, machines):
        self.machines, self.calls, self.failure = machines, [], None

    def takes(self, call, rank, dst, src):
        return call.kind is CollectiveKind.ALL_REDUCE

    def collect(self, call, ends, goes_on):
        self.calls.append(call)
        rows = []
        for rank, (_, src) in ends.items():
            goes_on(rank)
            if self.failure is not None and rank == 1:
                raise OperationFailed(self.failure)
            end = src.offset + src.nbytes
            rows.append(np.frombuffer(src.memory[src.offset : end], np.float32))
        for dst, _ in ends.values():
            dst.memory[dst.offset : dst.offset + dst.nbytes] = sum(rows).tobytes()


class Joining(TinyMachine):
    """One that makes such groups, and says which were asked for."""

    def __init__(self, asked):
        super().__init__()
        self.asked, self.refuses = asked, False

    @property
    def seat(self):
        return str(id(self))

    def group(self, machines, to, goes_on):
        assert (to.size, to.words) == (len(machines), b"")
        self.asked.append(Adding(machines))
        if self.refuses:
            raise Unsupported("create_group: no cable")
        return self.asked[-1]


class JoiningBench(Bench):
    def __init__(self, name, asked):
        self.machine = Joining(asked)
        hosted = HostedDevice(describe(name), self.machine, Order())
        self.device = Device(hosted, name, [validate])
        self.buffer = self.device.alloc(64, PLAIN)


@pytest.fixture
def asked():
    """The groups that the drivers were asked for."""
    return []


@pytest.fixture
def joining(asked):
    made = [JoiningBench(name, asked) for name in NAMES]
    yield made
    for one in made:
        one.device.close()


def test_the_first_rank_s_machine_makes_one_group_of_all(joining, asked):
    join(joining, "once")
    (group,) = asked
    assert group.machines == dict(enumerate(bench.machine for bench in joining))


def test_a_driver_does_what_it_takes_and_the_host_the_rest(joining, asked):
    groups = join(joining, "both")
    values = np.arange(48, dtype=np.float32).reshape(3, 16)
    for bench, row in zip(joining, values, strict=True):
        write(bench, row)
    wide = [bench.device.alloc(192, PLAIN).region() for bench in joining]
    gathered = [
        b.device.collective(g, OTHER, dst, b.buffer.region(), b.timeline(), ())
        for b, g, dst in zip(joining, groups, wide, strict=True)
    ]
    summed = [submit(b, g, SUM, [p]) for b, g, p in zip(joining, groups, gathered, strict=True)]
    for bench, point, dst in zip(joining, summed, wide, strict=True):
        assert bench.wait(point)
        np.testing.assert_array_equal(np.frombuffer(bench.content(), np.float32), values.sum(0))
        found = bytearray(192)
        bench.wait(bench.device.copy(found, dst, bench.timeline(), ()))
        assert found == values.tobytes()
    assert asked[0].calls == [SUM]


def test_a_driver_that_refuses_refuses_every_rank(joining, asked):
    joining[0].machine.refuses = True
    specs = [GroupSpec("refused", rank, NAMES, 5.0) for rank in range(3)]

    def refused(bench, spec):
        with pytest.raises(Unsupported, match="no cable"):
            bench.device.create_group(spec)
        return True

    pairs = zip(joining, specs, strict=True)
    assert together([lambda b=b, s=s: refused(b, s) for b, s in pairs]) == [True] * 3
    assert len(asked) == 1
    joining[0].machine.refuses = False
    join(joining, "again")


@pytest.mark.slow
def test_members_do_not_wait_for_a_driver_for_ever(joining, asked):
    """Who gives up is gone for the one that asked, when the driver comes back at last."""
    slow, make, gave_up = threading.Event(), joining[0].machine.group, []
    joining[0].machine.group = lambda *given: slow.wait(100) and make(*given)

    def joined(bench, spec):
        try:
            return bench.device.create_group(spec)
        except DeadlineExceeded as error:
            gave_up.append(str(error))
            if len(gave_up) == 2:
                slow.set()

    specs = [GroupSpec("slow", rank, NAMES, 1.0) for rank in range(3)]
    pairs = zip(joining, specs, strict=True)
    groups = together([lambda b=b, s=s: joined(b, s) for b, s in pairs])
    assert gave_up == ["the group's driver did not connect it in 1.0 s"] * 2
    ((bench, group),) = [p for p in zip(joining, groups, strict=True) if p[1] is not None]
    with pytest.raises(OperationFailed, match="could not join"):
        bench.wait(submit(bench, group, SUM))
    assert len(asked) == 1


def test_a_broken_group_takes_no_more_calls(joining, asked):
    groups = join(joining, "broken")
    broken = Failure(FailureKind.ABORTED, Scope.PEER, NAMES[1], "collective", "a link is down")
    asked[0].failure = broken
    for _ in range(2):
        points = [submit(b, g, SUM) for b, g in zip(joining, groups, strict=True)]
        for bench, point in zip(joining, points, strict=True):
            with pytest.raises(OperationFailed) as caught:
                bench.wait(point)
            assert caught.value.failure == broken
    assert len(asked[0].calls) == 1
    for bench, group in zip(joining, groups, strict=True):
        assert bench.device.async_error(group) == broken
        assert bench.device.health().state is HealthState.OK


def test_a_device_that_is_lost_in_it_is_named(joining, asked):
    groups = join(joining, "lost")
    asked[0].failure = Failure(
        FailureKind.DEVICE_LOST, Scope.DEVICE, NAMES[1], "collective", "gone"
    )
    points = [submit(b, g, SUM) for b, g in zip(joining, groups, strict=True)]
    with pytest.raises(DeviceLost):
        joining[1].wait(points[1])
    for rank in (0, 2):
        with pytest.raises(OperationFailed, match="rank 1"):
            joining[rank].wait(points[rank])
        assert joining[rank].device.async_error(groups[rank]).kind is FailureKind.PEER_LOST
        assert joining[rank].device.health().state is HealthState.OK
    assert joining[1].device.health().state is HealthState.LOST
