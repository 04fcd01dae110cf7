from dataclasses import replace

import numpy as np
import pytest

from hal.core.description import Feature
from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.tile.node import Type
from stack.compiler.program import CarriedValue, CompiledGraph, LoopCall
from stack.runtime.plan import Plan


def test_a_chain_through_temporaries(engine, calls, random_arrays):
    r = calls.ref
    graph = calls.graph(
        2,
        1,
        [
            calls.add(r("input", 0), r("input", 1), r("temp", 0)),
            calls.mul(r("temp", 0), r("input", 0), r("temp", 1)),
            calls.scale(r("temp", 1), 0.5, r("temp", 2)),
            calls.copy(r("temp", 3), r("temp", 2)),
            calls.add(r("temp", 3), r("temp", 0), r("output", 0)),
        ],
        temps=4,
    )
    (a, b), arrays = random_arrays(engine, 2)
    plan = Plan(engine.resources, graph)
    for _ in range(3):
        (result,) = plan.run(arrays)
        np.testing.assert_array_equal(engine.get(result), (a + b) * a * np.float32(0.5) + (a + b))
    assert plan.launches == 4
    assert plan.arena_nbytes == 3 * 448
    assert plan.live_nbytes == 3 * 448 + 3 * 400


def test_temporaries_lie_in_outputs_until_these_are_written(cpu, calls_for, random_arrays):
    count = 1 << 15
    calls = calls_for(cpu.device, count)
    r = calls.ref
    steps = [
        calls.add(r("input", 0), r("input", 1), r("temp", 0)),
        calls.mul(r("temp", 0), r("input", 0), r("temp", 1)),
        calls.mul(r("temp", 0), r("temp", 1), r("output", 0)),
        calls.scale(r("temp", 1), 0.5, r("output", 1)),
    ]
    plan = Plan(cpu.resources, calls.graph(2, 2, steps, temps=2))
    assert plan.arena_nbytes == 4 * count  # the second one is read when the last output is written
    values = [np.arange(count, dtype=np.float32) + i for i in range(2)]
    arrays = [cpu.put(v, DType.F32) for v in values]
    total = values[0] + values[1]
    for _ in range(3):
        first, second = map(cpu.get, plan.run(arrays))
        np.testing.assert_array_equal(first, total * (total * values[0]))
        np.testing.assert_array_equal(second, total * values[0] * np.float32(0.5))


def test_temporaries_move_to_the_larger_memory_of_another_plan(cpu, calls_for):
    """What became too small is the device's again, though its plan is held; nobody runs it, or it
    runs in the larger one."""
    plans, values, arrays = [], [], []
    for count in (1 << 18, 1 << 19):
        calls = calls_for(cpu.device, count)
        r = calls.ref
        steps = [
            calls.scale(r("input", 0), 2.0, r("temp", 0)),
            calls.add(r("temp", 0), r("input", 0), r("output", 0)),
        ]
        values.append(np.arange(count, dtype=np.float32))
        arrays.append(cpu.put(values[-1], DType.F32))
        plans.append(Plan(cpu.resources, calls.graph(1, 1, steps, temps=1)))
        for plan, value, array in zip(plans, values, arrays, strict=True):
            (tripled,) = plan.run([array])
            np.testing.assert_array_equal(cpu.get(tripled), 3 * value)
        del tripled
        cpu.sync()
        held = cpu.pool.holders()
        assert held["temporaries of plans"] == plans[-1].arena_nbytes == 4 * count
    cpu.pool.trim()
    kept = sum(array.nbytes for array in arrays) + plans[1].arena_nbytes
    assert cpu.pool.stats().reserved_nbytes <= kept + (2 << 21)


def test_arrays_may_be_others_at_each_run(engine, calls, random_arrays):
    r = calls.ref
    graph = calls.graph(2, 1, [calls.mul(r("input", 0), r("input", 1), r("output", 0))])
    plan = Plan(engine.resources, graph)
    values, arrays = random_arrays(engine, 4)
    first, second = plan.run(arrays[:2])[0], plan.run(arrays[2:])[0]
    np.testing.assert_array_equal(engine.get(first), values[0] * values[1])
    np.testing.assert_array_equal(engine.get(second), values[2] * values[3])
    same = plan.run([arrays[0], arrays[0]])[0]
    np.testing.assert_array_equal(engine.get(same), values[0] ** 2)


def test_an_updated_input_stays_in_place(engine, calls, random_arrays):
    r = calls.ref
    graph = calls.graph(
        2,
        2,
        [
            calls.scale(r("input", 0), 2.0, r("output", 1)),
            calls.add(r("input", 0), r("input", 1), r("output", 0)),
        ],
        updates=((0, 0),),
    )
    plan = Plan(engine.resources, graph)
    (a, b), (weights, step) = random_arrays(engine, 2)
    for _ in range(3):
        updated, doubled = plan.run([weights, step])
        assert updated is weights
        np.testing.assert_array_equal(engine.get(doubled), 2 * a)
        a = a + b
        np.testing.assert_array_equal(engine.get(weights), a)
    with pytest.raises(InvalidCall, match="argument 0 of the plan is updated"):
        plan.run([weights, weights])


def test_outputs_that_are_inputs_or_other_outputs(engine, calls, random_arrays):
    r = calls.ref
    graph = calls.graph(
        1,
        3,
        [
            calls.copy(r("output", 0), r("input", 0)),
            calls.scale(r("input", 0), 3.0, r("output", 1)),
            calls.copy(r("output", 2), r("output", 1)),
        ],
    )
    (a,), arrays = random_arrays(engine, 1)
    same, tripled, again = Plan(engine.resources, graph).run(arrays)
    assert len({id(x) for x in (same, tripled, again, *arrays)}) == 4
    np.testing.assert_array_equal(engine.get(same), a)
    np.testing.assert_array_equal(engine.get(tripled), 3 * a)
    np.testing.assert_array_equal(engine.get(again), 3 * a)


def test_parts_of_arrays(engine, calls, random_arrays):
    r = calls.ref
    halves = [r("input", 0, 50, 50), r("input", 0, 0, 50)]
    graph = calls.graph(
        1,
        1,
        [
            calls.scale(halves[0], 2.0, r("output", 0, 0, 50)),
            calls.copy(r("output", 0, 50, 50), halves[1]),
        ],
    )
    (a,), arrays = random_arrays(engine, 1)
    (result,) = Plan(engine.resources, graph).run(arrays)
    np.testing.assert_array_equal(engine.get(result), np.concatenate([2 * a[50:], a[:50]]))


def test_nothing_to_do(engine):
    empty = Type((0, 3), DType.F32)
    graph = CompiledGraph((empty,), (empty, Type((), DType.I64)), (), (), ())
    results = Plan(engine.resources, graph).run([engine.put(np.zeros((0, 3)), DType.F32)])
    assert engine.get(results[0]).shape == (0, 3)
    assert engine.get(results[1]).dtype == np.int64


def test_arguments_that_do_not_fit_are_refused(engine, calls, random_arrays):
    r = calls.ref
    plan = Plan(
        engine.resources, calls.graph(1, 1, [calls.scale(r("input", 0), 2.0, r("output", 0))])
    )
    _, arrays = random_arrays(engine, 2)
    with pytest.raises(InvalidCall, match="takes 1 arrays, not 2"):
        plan.run(arrays)
    with pytest.raises(InvalidCall, match=r"argument 0 of the plan is f32\[100\], not f32\[3\]"):
        plan.run([engine.put([1, 2, 3], DType.F32)])
    assert plan.run(arrays[:1])


def test_arrays_of_another_engine_are_refused(engine, cpu, calls, random_arrays):
    r = calls.ref
    plan = Plan(
        engine.resources, calls.graph(1, 1, [calls.scale(r("input", 0), 2.0, r("output", 0))])
    )
    _, arrays = random_arrays(cpu, 1)
    with pytest.raises(InvalidCall, match="does not belong to the engine of this plan"):
        plan.run(arrays)


def test_a_device_without_graphs_is_counted(engine, calls, random_arrays):
    r = calls.ref
    plan = Plan(
        engine.resources, calls.graph(1, 1, [calls.scale(r("input", 0), 2.0, r("output", 0))])
    )
    _, arrays = random_arrays(engine, 1)
    plan.run(arrays)
    plan.run(arrays)
    graphs = Feature.GRAPH in engine.device.info.features
    assert engine.fallbacks.total() == (0 if graphs else 2)


def test_independent_calls_are_recorded_as_independent(cpu, calls_for, random_arrays):
    calls = calls_for(cpu.device, 100)
    r = calls.ref
    recorded = []

    class Spy:
        """The device, noting what is recorded."""

        def __init__(self, device):
            self._device = device

        def __getattr__(self, name):
            return getattr(self._device, name)

        def record(self, commands):
            recorded.extend(commands)
            return self._device.record(commands)

    resources = replace(cpu.resources, device=Spy(cpu.device))
    graph = calls.graph(
        2,
        1,
        [
            calls.scale(r("input", 0), 2.0, r("temp", 0)),
            calls.scale(r("input", 1), 3.0, r("temp", 1)),
            calls.add(r("temp", 0), r("temp", 1), r("output", 0)),
        ],
        temps=2,
    )
    (a, b), arrays = random_arrays(cpu, 2)
    (result,) = Plan(resources, graph).run(arrays)
    np.testing.assert_allclose(cpu.get(result), 2 * a + 3 * b, rtol=1e-6)
    assert [c.after for c in recorded] == [(), (), (0, 1)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 3, 8])
def test_short_loops_are_submitted_with_what_is_around(cpu, calls_for, steps, reverse):
    """Two carried values that change places, a row and a stack, of which the loop within a loop has
    parts of parts."""
    calls = calls_for(cpu.device, 4)
    r, n = calls.ref, 16
    recorded = []

    class Spy:
        """The device, noting how many commands are recorded as one."""

        def __getattr__(self, name):
            return getattr(cpu.device, name)

        def record(self, commands):
            recorded.append(len(commands))
            return cpu.device.record(commands)

    def loop(body, steps, carried, row, stack):
        """Of `steps` parts of a row and a stack; the carried values take new temporaries."""
        pairs = tuple(CarriedValue(*each) for each in carried)
        return LoopCall(body, steps, (), pairs, (row,), (stack,), reverse)

    both = (Type((4,), DType.F32),) * 2
    one = CompiledGraph(
        (*both, both[0]),
        (*both, both[0]),
        (),
        (),
        (
            calls.add(r("input", 1), r("input", 2), r("output", 0)),
            calls.scale(r("input", 0), 0.5, r("output", 1)),
            calls.scale(r("input", 0), 2.0, r("output", 2)),
        ),
    )
    whole = Type((steps * 4,), DType.F32)
    inner = loop(
        one,
        steps,
        [(r("input", i), r("output", i), r("temp", i)) for i in range(2)],
        r("input", 2, 0, steps * 4),
        r("output", 2, 0, steps * 4),
    )
    outer = loop(
        CompiledGraph((*both, whole), (*both, whole), (), (), (inner,)),
        2,
        [(r("input", i), r("output", i), r("temp", 2 + i)) for i in range(2)],
        r("input", 2, 0, 2 * steps * 4),
        r("output", 2, 0, 2 * steps * 4),
    )
    rows = Type((2 * steps * 4,), DType.F32)
    graph = CompiledGraph((*both, rows), (*both, rows), (), (n,) * 4, (outer,))
    arrays = [np.arange(t.size, dtype=np.float32) + 1 for t in graph.inputs]
    resources = replace(cpu.resources, device=Spy())
    got = [cpu.get(x) for x in Plan(resources, graph).run([cpu.put(a, DType.F32) for a in arrays])]
    assert recorded == [2 * steps * 3]
    a, b, given = arrays
    given, made = given.reshape(2, steps, 4), np.empty((2, steps, 4), np.float32)
    order = range(steps - 1, -1, -1) if reverse else range(steps)
    for i in (1, 0) if reverse else (0, 1):
        for j in order:
            made[i, j] = a * 2
            a, b = b + given[i, j], a * np.float32(0.5)
    for found, wanted in zip(got, (a, b, made.reshape(-1)), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_plans_share_one_arena(cpu, calls_for, random_arrays):
    calls = calls_for(cpu.device, 100)
    r = calls.ref

    def plan(factor):
        steps = [
            calls.scale(r("input", 0), factor, r("temp", 0)),
            calls.scale(r("temp", 0), factor, r("output", 0)),
        ]
        return Plan(cpu.resources, calls.graph(1, 1, steps, temps=1))

    (a,), arrays = random_arrays(cpu, 1)
    plans = [plan(2.0), plan(3.0), plan(4.0)]
    results = [p.run(arrays)[0] for p in plans]
    for result, factor in zip(results, (4, 9, 16), strict=True):
        np.testing.assert_allclose(cpu.get(result), factor * a, rtol=1e-6)
    assert cpu.pool.holders()["temporaries of plans"] == 448
    del plans, plan
    assert cpu.pool.stats().allocated_nbytes == 4 * 448
