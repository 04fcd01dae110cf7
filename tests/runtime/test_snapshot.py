"""What arrays held at a moment, read while later work goes on."""

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.core.errors import Failure, FailureKind, InvalidCall, OperationFailed, Scope
from hal.core.values import Point
from stack.runtime.plan import Plan
from stack.runtime.snapshot import SMALL

N = SMALL // 4 + 1
"""Elements of an array that is no small one."""


def read(snapshot, array, begin=0, count=None):
    out = np.empty(array.type.size if count is None else count, np.float32)
    half = out.nbytes // 8 * 4
    data = out.view(np.uint8)
    snapshot.read(array, [(4 * begin, data[:half]), (4 * begin + half, data[half:])])
    return out


def step(calls, r):
    """output 1 = 2 * input 0, as forward and backward; then input 0 += input 1 in place."""
    graph = [
        calls.scale(r("input", 0), 2.0, r("output", 1)),
        calls.add(r("input", 0), r("input", 1), r("output", 0)),
    ]
    return calls.graph(2, 2, graph, updates=((0, 0),))


def test_only_the_update_waits_for_a_snapshot(cpu, calls_for, random_arrays):
    calls = calls_for(cpu.device, N)
    plan = Plan(cpu.resources, step(calls, calls.ref))
    (a, b), (weights, change) = random_arrays(cpu, 2, N)
    for turn in range(3):
        first, second = cpu.snapshot([weights]), cpu.snapshot([weights, change])
        plan.run([weights, change])
        plan.run([weights, change])
        last = cpu.stream.submitted_value
        begun = Point(cpu.stream.timeline, last - 3)
        assert cpu.device.wait([begun], 20, True), "what comes before the update waited for it"
        np.testing.assert_array_equal(read(first, weights), a, str(turn))
        np.testing.assert_array_equal(read(second, weights, 7, 20), a[7:27])
        first.close()
        assert not cpu.device.wait([Point(cpu.stream.timeline, last - 2)], 0, True)
        np.testing.assert_array_equal(read(second, weights), a)
        np.testing.assert_array_equal(read(second, change), b)
        second.close()
        a = a + b + b
        np.testing.assert_array_equal(cpu.get(weights), a)
    with pytest.raises(InvalidCall, match="closed"):
        read(second, weights)


def test_what_is_small_is_copied_before_anything_later_and_holds_nothing_up(
    engine, calls, random_arrays
):
    plan = Plan(engine.resources, step(calls, calls.ref))
    (a, b), (weights, change) = random_arrays(engine, 2)
    nothing = engine.put(np.empty(0), DType.F32)
    snapshot = engine.snapshot([weights, change, nothing])
    plan.run([weights, change])
    np.testing.assert_array_equal(engine.get(weights), a + b)
    np.testing.assert_array_equal(read(snapshot, weights, 7, 20), a[7:27])
    np.testing.assert_array_equal(read(snapshot, change), b)
    snapshot.close()


def test_a_write_by_the_host_waits_for_a_snapshot(cpu):
    array = cpu.put(np.arange(N), DType.F32)
    snapshot = cpu.snapshot([array])
    cpu.write(array, np.zeros(N))
    np.testing.assert_array_equal(read(snapshot, array), np.arange(N))
    snapshot.close()
    snapshot.close()
    assert not cpu.get(array).any()


def test_a_plan_may_copy_into_what_a_snapshot_holds(cpu, calls_for, random_arrays):
    calls = calls_for(cpu.device, N)
    r = calls.ref
    graph = calls.graph(
        3,
        3,
        [
            calls.add(r("input", 0), r("input", 2), r("output", 0)),
            calls.copy(r("output", 1), r("output", 0)),
            calls.scale(r("input", 1), 2.0, r("output", 2)),
        ],
        updates=((0, 0), (1, 1)),
    )
    plan = Plan(cpu.resources, graph)
    (a, b, c), arrays = random_arrays(cpu, 3, N)
    for held in (arrays[:1], arrays[1:2], arrays[2:], arrays):
        snapshot = cpu.snapshot(held)
        *_, doubled = plan.run(arrays)
        for array in held:
            values = (a, b, c)[arrays.index(array)]
            np.testing.assert_array_equal(read(snapshot, array), values)
        snapshot.close()
        a = b = a + c
        np.testing.assert_array_equal(cpu.get(doubled), 2 * a)


def test_a_snapshot_of_what_fails_says_so_and_holds_nothing_up(cpu, calls_for, random_arrays):
    calls = calls_for(cpu.device, N)
    plan = Plan(cpu.resources, step(calls, calls.ref))
    (a, b), (weights, change) = random_arrays(cpu, 2, N)
    gate = cpu.device.create_timeline(True)
    with cpu.stream.lock:
        cpu.stream.submitted(
            cpu.device.fill(weights.region, b"\0", cpu.stream.timeline, [Point(gate, 1)])
        )
    plan.run([weights, change])
    snapshot = cpu.snapshot([weights, change])
    failure = Failure(FailureKind.LAUNCH_FAULT, Scope.OPERATION, "cpu:0", "launch f", "it broke")
    cpu.device.signal(gate, 1, failure)
    with pytest.raises(OperationFailed, match="it broke"):
        read(snapshot, weights)
    with pytest.raises(OperationFailed, match="it broke"):
        cpu.get(weights)
    with pytest.raises(OperationFailed, match="it broke"):
        read(snapshot, weights)
    np.testing.assert_array_equal(read(snapshot, change), b)
    cpu.write(weights, a)
    snapshot.close()
    np.testing.assert_array_equal(cpu.get(weights), a)
