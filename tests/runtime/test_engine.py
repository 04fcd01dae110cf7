import gc
import subprocess
import sys
import threading
import weakref
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hal_plugin_bytes.device import BytesDevice
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import hal
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.errors import (
    DeadlineExceeded,
    Failure,
    FailureKind,
    InvalidCall,
    OperationFailed,
    OutOfMemory,
    Scope,
)
from hal.core.values import Point
from hal.tile.node import Type
from hal.tile.numeric import NUMPY
from stack import ops as build
from stack.compiler.program import GraphRequest
from stack.runtime.canonical import structure
from stack.runtime.engine import Engine
from stack.runtime.plan import Plan


def no_compiler(request):
    raise AssertionError("these tests bring compiled graphs")


FAILURE = Failure(FailureKind.LAUNCH_FAULT, Scope.OPERATION, "cpu:0", "launch f", "it broke")


@pytest.fixture(scope="module")
def shared_cpu():
    with Engine(hal.open("cpu:0"), no_compiler) as engine:
        yield engine


@given(st.data(), st.sampled_from(list(DType)))
def test_what_is_put_is_got(shared_cpu, data, dtype):
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    bits = data.draw(hnp.arrays(np.uint8, (*shape, dtype.nbytes)))
    value = (bits & (1 if dtype is DType.BOOL else 255)).view(NUMPY[dtype]).reshape(shape)
    array = shared_cpu.put(value, dtype)
    assert array.type == Type(shape, dtype)
    assert array.nbytes == value.nbytes
    got = shared_cpu.get(array)
    assert got.dtype == value.dtype
    assert got.shape == shape
    assert got.tobytes() == value.tobytes()


def test_values_are_converted_and_copied_at_once(engine):
    value = np.arange(6.0).reshape(2, 3)
    array = engine.put(value.T, DType.BF16)
    value[:] = -1
    got = engine.get(array)
    assert got.dtype == ml_dtypes.bfloat16
    assert got.astype(int).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert engine.get(engine.put(2.5, DType.F64)).item() == 2.5
    assert engine.get(engine.put([True, False], DType.I32)).tolist() == [1, 0]


def test_write_overwrites_in_place(engine):
    array = engine.put(np.zeros((2, 2)), DType.F32)
    engine.write(array, [[1, 2], [3, 4]])
    assert engine.get(array).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(InvalidCall, match=r"shape \(3,\) to <Array f32\[2,2\]"):
        engine.write(array, [1, 2, 3])


def test_a_large_array_survives_the_loss_of_its_host_value(cpu):
    arrays = [cpu.put(np.full(1 << 20, i), DType.F32) for i in range(6)]
    gc.collect()
    for i, array in enumerate(arrays):
        assert np.all(cpu.get(array) == i)


def test_memory_comes_from_the_pool_and_goes_back(engine):
    raw = []
    for _ in range(4):
        arrays = [engine.put(np.zeros(n), DType.F32) for n in (10, 1000, 400_000)]
        raw.append(engine.pool.stats().raw_allocations)
        del arrays
    assert raw == [raw[0]] * 4
    stats = engine.pool.stats()
    assert stats.allocated_nbytes == 0
    assert 1_600_000 <= stats.peak_nbytes <= 1_700_000


def test_a_training_loop_allocates_nothing_raw_after_its_second_run(cpu, calls_for):
    calls = calls_for(cpu.device, 1000)
    r = calls.ref
    graph = calls.graph(
        2,
        2,
        [
            calls.mul(r("input", 0), r("input", 1), r("temp", 0)),
            calls.scale(r("temp", 0), 0.5, r("output", 1)),
            calls.add(r("input", 0), r("temp", 0), r("output", 0)),
        ],
        temps=1,
        updates=((0, 0),),
    )
    plan = Plan(cpu.resources, graph)
    weights = cpu.put(np.ones(1000), DType.F32)
    counts = []
    for _ in range(1000):
        batch = cpu.put(np.zeros(1000), DType.F32)
        loss = plan.run([weights, batch])[1]
        counts.append(cpu.device.stats("").allocations)
    assert cpu.get(loss).sum() == 0
    assert counts[1:] == [counts[1]] * 999
    del batch, loss
    cpu.sync()
    assert cpu.pool.holders().keys() == {"array f32[1000]", "temporaries of plans"}


def test_the_device_gets_back_what_a_plan_held(cpu, calls_for, random_arrays):
    calls = calls_for(cpu.device, 100)
    r = calls.ref
    _, arrays = random_arrays(cpu, 1)
    freed = []

    class Spy:
        def __getattr__(self, name):
            return getattr(device, name)

        def free(self, handle):
            freed.append(type(handle).__name__)
            device.free(handle)

    device = cpu.device
    plan = Plan(cpu.resources, calls.graph(1, 1, [calls.scale(r("input", 0), 2.0, r("output", 0))]))
    plan.run(arrays)
    cpu.programs._device = Spy()
    del plan
    gc.collect()
    cpu.sync()
    assert sorted(freed) == ["Graph", "Launchable", "Program"]


def compiled(calls):
    """A compiler of nothing but `input * 2`, and the requests that it saw."""
    seen = []

    def compile(request):
        seen.append(request)
        r = calls.ref
        return calls.graph(1, 1, [calls.scale(r("input", 0), 2.0, r("output", 0))])

    return compile, seen


def request(slot, calls):
    leaf = build.input(slot, calls.type)
    return GraphRequest((build.add(leaf, leaf),), (leaf,))


def test_plans_of_equal_structure_are_compiled_once(engine, calls, monkeypatch):
    compile, seen = compiled(calls)
    monkeypatch.setattr(engine.families, "_compile", compile)
    first = engine.plan(request(3, calls))
    assert engine.plan(request(5, calls)) is first
    (only,) = seen
    assert structure(only) == structure(request(0, calls))
    assert engine.get(first.run([engine.put(np.ones(100), DType.F32)])[0]).sum() == 200


def test_the_plans_least_recently_used_are_forgotten(engine, calls, monkeypatch):
    compile, seen = compiled(calls)
    monkeypatch.setattr(engine.families, "_compile", compile)
    monkeypatch.setattr("stack.runtime.engine.PLANS", 2)

    def other(n):
        leaf = build.input(0, Type((n,), DType.F32))
        return GraphRequest((leaf,), (leaf,))

    first, second, third = other(1), other(2), other(3)
    held = weakref.ref(engine.plan(second))
    engine.plan(first)
    kept = weakref.ref(engine.plan(first))
    engine.plan(third)
    gc.collect()
    assert held() is None
    assert kept() is engine.plan(first)
    assert len(seen) == 3


def blocked(engine):
    """Everything submitted from here on waits for a signal to this timeline."""
    gate = engine.device.create_timeline(True)
    region = engine.empty(Type((8,), DType.F32)).region
    waits = [Point(gate, 1)]
    with engine.stream.lock:
        engine.stream.submitted(
            engine.device.fill(region, b"\0", engine.stream.timeline, waits),
        )
    return gate


def test_a_wait_ends_at_its_deadline_and_says_for_what(cpu):
    array = cpu.put([1, 2], DType.F32)
    gate = blocked(cpu)
    cpu.stream.timeout_s = 0.02
    with pytest.raises(DeadlineExceeded, match=r"reading f32\[2\] did not end within 0.02 s"):
        cpu.get(array)
    with pytest.raises(DeadlineExceeded, match=r"submitted work did not end within 0\.01 s"):
        cpu.sync(0.01)
    cpu.device.signal(gate, 1, None)
    cpu.stream.timeout_s = 20
    assert cpu.get(array).tolist() == [1, 2]


def test_a_failure_reaches_what_was_owed_and_the_engine_goes_on(cpu, calls_for, random_arrays):
    calls = calls_for(cpu.device, 100)
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
    plan = Plan(cpu.resources, graph)
    (a, b), (weights, step) = random_arrays(cpu, 2)
    before = plan.run([weights, step])[1]
    cpu.sync()
    gate = blocked(cpu)
    owed = plan.run([weights, step])[1]
    cpu.device.signal(gate, 1, FAILURE)
    for lost in (owed, weights, owed):
        with pytest.raises(OperationFailed) as caught:
            cpu.get(lost)
        assert caught.value.failure is FAILURE
    with pytest.raises(OperationFailed, match="it broke"):
        plan.run([weights, step])
    np.testing.assert_array_equal(cpu.get(before), 2 * a)
    np.testing.assert_array_equal(cpu.get(step), b)
    cpu.write(weights, a)
    doubled = plan.run([weights, step])[1]
    np.testing.assert_array_equal(cpu.get(doubled), 2 * a)
    np.testing.assert_array_equal(cpu.get(weights), a + b)


def test_a_program_that_fails_leaves_the_engine_usable(calls_for, random_arrays):
    with Engine(Device(BytesDevice(), "bytes:0"), no_compiler) as engine:
        calls = calls_for(engine.device, 100)
        r = calls.ref
        args = (r("input", 0), 2.0, r("output", 0))
        good = calls.scale(*args)
        text = good.source.text.replace("    x =", "    1 / 0\n    x =")
        bad = replace(good, source=replace(good.source, text=text))
        (a,), arrays = random_arrays(engine, 1)
        (lost,) = Plan(engine.resources, calls.graph(1, 1, [bad])).run(arrays)
        with pytest.raises(OperationFailed, match="division by zero"):
            engine.get(lost)
        (result,) = Plan(engine.resources, calls.graph(1, 1, [good])).run(arrays)
        np.testing.assert_array_equal(engine.get(result), 2 * a)


def test_out_of_memory_reclaims_what_nobody_can_reach(engine, monkeypatch):
    limit = 64 << 20
    real = engine.device

    class Small:
        """The device with little memory."""

        def __init__(self):
            self.used = 0

        def __getattr__(self, name):
            return getattr(real, name)

        def alloc(self, nbytes, options):
            if self.used + nbytes > limit:
                raise OutOfMemory("full", nbytes, limit - self.used)
            self.used += nbytes
            return real.alloc(nbytes, options)

        def free(self, buffer):
            self.used -= buffer.nbytes
            real.free(buffer)

    monkeypatch.setattr(engine.pool, "device", Small())
    cycle = [engine.empty(Type((48 << 20,), DType.U8))]
    cycle.append(cycle)
    del cycle
    kept = engine.empty(Type((32 << 20,), DType.U8))
    with pytest.raises(OutOfMemory, match=r"33,554,432 array u8\[33554432\]"):
        engine.empty(Type((40 << 20,), DType.U8))
    assert engine.empty(Type((16 << 20,), DType.U8)).nbytes + kept.nbytes == 48 << 20


def test_threads_may_share_an_engine(cpu, calls_for, random_arrays):
    calls = calls_for(cpu.device, 100)
    r = calls.ref
    steps = [
        calls.scale(r("input", 0), 2.0, r("temp", 0)),
        calls.add(r("temp", 0), r("input", 0), r("output", 0)),
    ]
    plan = Plan(cpu.resources, calls.graph(1, 1, steps, temps=1))
    values, arrays = random_arrays(cpu, 4)
    wrong = []

    def work(value, array):
        for _ in range(100):
            got = cpu.get(plan.run([array])[0])
            if not np.array_equal(got, 2 * value + value):
                wrong.append(got)

    pairs = zip(values, arrays, strict=True)
    threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_arrays_that_live_until_the_interpreter_ends(tmp_path):
    text = """
import hal, numpy
from stack.runtime.engine import Engine
engine = Engine(hal.open("cpu:0"), None)
kept = [engine.put(numpy.ones(1000), hal.DType.F32) for _ in range(10)]
kept.append(kept)
print(engine.get(kept[0]).sum())
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1000.0\n", "")
