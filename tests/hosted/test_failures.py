"""How failures of hosted devices spread: as far as something depends on them."""

import pytest

from hal.core.errors import DeviceLost, Failure, FailureKind, OperationFailed, Scope
from hal.core.values import Fault, HealthState, Point

STUCK = Failure(FailureKind.HANG, Scope.QUEUE, "tiny:0", "fill", "stuck")
GONE = Failure(FailureKind.DEVICE_LOST, Scope.DEVICE, "tiny:0", "fill", "gone")


def cause(bench, point):
    with pytest.raises(OperationFailed) as caught:
        bench.wait(point)
    return caught.value.failure


def test_a_failure_reaches_everything_that_waits_for_it_unchanged(bench):
    first = bench.broken_launch(bench.timeline())
    chain = [first]
    for _ in range(5):
        chain.append(bench.fill(9, bench.timeline(), [chain[-1]]))
    causes = {cause(bench, point) for point in chain}
    assert len(causes) == 1
    (failure,) = causes
    assert failure.kind is FailureKind.LAUNCH_FAULT
    assert (failure.operation, failure.message) == ("launch fail", "ArithmeticError: never works")
    assert bench.content() == bytes(64)


def test_what_does_not_depend_on_a_failure_runs(bench):
    before, gate = bench.timeline(), bench.timeline(host_driven=True)
    done = bench.fill(1, before)
    failed = bench.broken_launch(before)
    later = bench.fill(2, before)
    apart = bench.fill(3, bench.timeline(), [Point(gate, 1), done])
    assert cause(bench, failed) == cause(bench, later)
    bench.device.signal(gate, 1, None)
    assert bench.wait(done, apart)
    assert bench.content() == bytes([3]) * 64


def test_a_point_that_nothing_owes_fails_with_its_timeline(bench):
    timeline = bench.timeline()
    bench.broken_launch(timeline)
    assert cause(bench, Point(timeline, 100)).kind is FailureKind.LAUNCH_FAULT


def test_a_hanging_operation_holds_up_nothing_and_fails(bench):
    bench.device.inject(Fault(STUCK, "fill"))
    hanging = bench.fill(1, bench.timeline())
    assert bench.wait(bench.fill(2, bench.timeline()))
    assert cause(bench, hanging) == STUCK
    assert bench.content() == bytes([2]) * 64


def test_a_lost_device_fails_every_point_and_refuses_work_until_reset(bench):
    gate = bench.timeline(host_driven=True)
    blocked = bench.fill(1, bench.timeline(), [Point(gate, 1)])
    bench.device.inject(Fault(GONE, "fill"))
    struck = bench.fill(2, bench.timeline())
    assert cause(bench, struck) == cause(bench, blocked) == cause(bench, Point(gate, 1)) == GONE
    with pytest.raises(DeviceLost, match="gone"):
        bench.fill(3, bench.timeline())
    assert bench.device.health().state is HealthState.LOST
    assert bench.device.reset() == 1
    assert bench.device.health().state is HealthState.OK
    assert bench.machine.released == 1


def test_a_partial_write_writes_a_part(bench):
    failure = Failure(FailureKind.PARTIAL_WRITE, Scope.OPERATION, "tiny:0", "fill", "half")
    bench.device.inject(Fault(failure, "fill"))
    assert cause(bench, bench.fill(7, bench.timeline())) == failure
    assert bench.content() == bytes([7]) * 32 + bytes(32)
