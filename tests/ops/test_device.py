"""Every operation and gradient compiled for a real device, against the records' references."""

import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

import hal
from hal.core.dtypes import DType
from hal.core.values import OpenOptions
from hal.tile.node import Type
from hal.tile.numeric import NUMPY
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.ir.interpret import interpret
from stack.ir.simplify import simplify
from stack.ops import OPS
from stack.ops.operator import OpKind
from stack.runtime import engine_of
from tests.draw import sample
from tests.ir.graphs import graphs
from tests.ops.cases import EVERY, SAMPLED, Maker, drawn, names
from tests.ops.tolerance import assert_close

DEVICES = ("cpu:0",)
SLOPED = sorted(name for name in SAMPLED if OPS[name].gradient is not None)
FEW = settings(
    derandomize=True, deadline=None, database=None, phases=(Phase.explicit, Phase.generate)
)
"""Each example compiles a kernel, so there are few, and failures are not shrunk."""


@pytest.fixture(scope="module", params=DEVICES)
def evaluate(request):
    """(outputs, input arrays by node) -> arrays, computed by the device."""
    with engine_of(hal.open(request.param)) as engine:

        def run(outputs, inputs):
            plan = engine.plan(GraphRequest(tuple(outputs), tuple(inputs)))
            arrays = plan.run([engine.put(x, n.dtype) for n, x in inputs.items()])
            return [engine.get(a) for a in arrays]

        yield run


CHOSEN = sample("on a device", EVERY, 40)
"""Drawn in each run: all of them cost minutes."""


@pytest.mark.parametrize(("op", "dtype"), CHOSEN, ids=names(CHOSEN))
@settings(FEW, max_examples=4)
@given(data=st.data())
def test_device_computes_what_the_reference_says(evaluate, op, dtype, data):
    m = Maker(data.draw)
    n = drawn(m, op, dtype)
    assume(n.op == op or op in ("const", "input"))
    (expected,) = interpret([n], m.inputs)
    (actual,) = evaluate([n], m.inputs)
    assert_close(actual, expected, n.dtype)


LEAST = 8
"""Elements of the largest array of a case: the first cases that are drawn are scalars."""

TARGETS = {
    "groups": ("opencl:0", "pyopencl", {"lanes": "64"}),
    "alone": ("opencl:0", "pyopencl", {"lanes": "1"}),
    "cores": ("sunway:0", "hal_plugin_sunway", {"memory_nbytes": str(256 << 20)}),
}
"""Devices whose compilers take long for each kernel: an instance as a group of work-items, as one
alone, and as a core that DMA feeds. An operator has one case and one element type on each."""

ONE_IN = {"groups": 1, "alone": 0, "cores": 3}
"""Elementwise operators lower to the same loops, and `tests/compiler` has random kernels of them:
of these one in so many has its turn; none at 0."""


MOST = 24
"""So many of these cases are drawn in each run."""


def has_turn(target, op):
    one_in = ONE_IN[target]
    turn = one_in and zlib.crc32(op.encode()) % one_in == 0
    return OPS[op].kind is not OpKind.ELEMENTWISE or turn


@pytest.fixture(scope="module")
def engine(request):
    device, needed, options = TARGETS[request.param]
    pytest.importorskip(needed, reason=f"the tests on {device} need its plugin and a driver")
    with engine_of(hal.open(device, options=OpenOptions(settings=options))) as engine:
        yield engine


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(
    ("engine", "op"),
    sample("on others", [(t, op) for t in TARGETS for op in SAMPLED if has_turn(t, op)], MOST),
    indirect=["engine"],
    scope="module",
)
@settings(
    FEW, max_examples=1, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
@given(data=st.data())
def test_other_devices_compute_what_the_reference_says(request, engine, op, data):
    dtypes = sorted(OPS[op].dtypes)
    dtype = dtypes[zlib.crc32(request.node.callspec.id.encode()) % len(dtypes)]
    m = Maker(data.draw)
    n = drawn(m, op, dtype)
    assume(n.op == op or op in ("const", "input"))
    assume(max([n.type.size, *(x.size for x in m.inputs.values())]) > LEAST)
    (expected,) = interpret([n], m.inputs)
    plan = engine.plan(GraphRequest((n,), tuple(m.inputs)))
    (array,) = plan.run([engine.put(x, i.dtype) for i, x in m.inputs.items()])
    assert_close(engine.get(array), expected, n.dtype)


@pytest.mark.parametrize("op", sample("gradients on a device", SLOPED, 20))
@settings(FEW, max_examples=3)
@given(data=st.data())
def test_device_computes_the_gradient_as_the_interpreter_does(evaluate, op, data):
    m = Maker(data.draw, gentle=True)
    n = drawn(m, op, DType.F32)
    assume(n.op == op and n.dtype.is_float)
    d = m.given(m.array(n.shape, n.dtype, False), n.dtype)
    found = [x for x in OPS[op].gradient(n, d) if x is not None]
    for actual, expected, x in zip(
        evaluate(found, m.inputs), interpret(found, m.inputs), found, strict=True
    ):
        assert_close(actual, expected, x.dtype)


def test_inputs_and_constants_come_back_as_they_are(evaluate):
    x = g.input(0, Type((2, 3), DType.F32))
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    same, full, one = evaluate([x, g.full_like(x, 7), g.const(2.5, DType.F64)], {x: value})
    assert_close(same, value, DType.F32)
    assert_close(full, np.full((2, 3), 7, np.float32), DType.F32)
    assert_close(one, np.array(2.5), DType.F64)


@pytest.mark.slow
@pytest.mark.turns
@settings(FEW, max_examples=40)
@given(graph=graphs())
def test_device_computes_random_graphs_as_the_interpreter_does(evaluate, graph):
    outputs, inputs = graph
    for outs in (outputs, simplify(outputs)):
        for actual, expected in zip(
            evaluate(outs, inputs), interpret(outputs, inputs), strict=True
        ):
            np.testing.assert_array_equal(actual, expected)


def _random(shape, dtype=DType.F32, slot=0):
    values = np.random.default_rng(slot).uniform(-1, 1, shape)
    return g.input(slot, Type(shape, dtype)), values.astype(NUMPY[dtype])


def _long_reduce(kind, shape, axes):
    x, value = _random(shape)
    return g.reduce(kind, x, axes), {x: value}


def _long_scan(kind, shape, axis):
    x, value = _random(shape)
    whole = np.rint(8 * value)  # whose sums are exact in any order
    return g.scan(kind, x, axis), {x: whole}


def _large_matmul(m, k, n, dtype, transposed):
    a, left = _random((2, m, k), dtype)
    b, right = _random((2, n, k) if transposed else (2, k, n), dtype, 1)
    return g.matmul(a, g.transpose(b) if transposed else b), {a: left, b: right}


def _many_rows():
    table, values = _random((50, 70))
    index = g.input(1, Type((300,), DType.I64))
    rows = np.random.default_rng(2).integers(-5, 55, 300)
    zeros = g.full_like(table, 0)
    return g.scatter("sum", zeros, index, g.gather(table, index, 0), 0), {
        table: values,
        index: rows,
    }


def _chosen_matrices(dtype, transposed):
    a, left = _random((9, 40, 33), dtype)
    b, right = _random((4, 70, 33) if transposed else (4, 33, 70), dtype, 1)
    index = g.input(2, Type((9,), DType.I64))
    some = g.gather(b, index, 0)
    return g.matmul(a, g.transpose(some) if transposed else some), {
        a: left,
        b: right,
        index: np.random.default_rng(3).integers(-1, 5, 9),
    }


def _chosen_on_both_sides():
    a, left = _random((4, 40, 300), DType.F32)
    b, right = _random((4, 300, 70), DType.F32, 1)
    numbers = [g.input(i, Type((9,), DType.I64)) for i in (2, 3)]
    chosen = np.random.default_rng(3).integers(-2, 6, (2, 9))
    some = (g.gather(x, i, 0) for x, i in zip((a, b), numbers, strict=True))
    return g.matmul(*some), {a: left, b: right, **dict(zip(numbers, chosen, strict=True))}


LARGE = {
    "sum of all": lambda: _long_reduce("sum", (300, 300), None),
    "max of all": lambda: _long_reduce("max", (70001,), None),
    "min of rows": lambda: _long_reduce("min", (5, 9000), 1),
    "prod of columns": lambda: _long_reduce("prod", (40, 600), 0),
    "sum of outer axes": lambda: _long_reduce("sum", (30, 40, 50), (0, 2)),
    "scan": lambda: _long_scan("sum", (3, 2000), 1),
    "scan in parts": lambda: _long_scan("sum", (2, 3 << 14, 1), 1),
    "greatest so far, in parts": lambda: _long_scan("max", (35000, 3), 0),
    "matmul": lambda: _large_matmul(130, 65, 97, DType.F32, False),
    "matmul of rows by rows": lambda: _large_matmul(65, 130, 33, DType.F32, True),
    "matmul in f64": lambda: _large_matmul(65, 33, 34, DType.F64, False),
    "matmul in bf16": lambda: _large_matmul(65, 64, 130, DType.BF16, True),
    "matmul in f16": lambda: _large_matmul(33, 64, 70, DType.F16, False),
    "matmul of one row": lambda: _large_matmul(1, 300, 200, DType.F32, False),
    "chosen matrices": lambda: _chosen_matrices(DType.F32, False),
    "chosen matrices in bf16": lambda: _chosen_matrices(DType.BF16, True),
    "matrices chosen on both sides": _chosen_on_both_sides,
    "gather and scatter": _many_rows,
}


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("name", LARGE)
def test_device_computes_large_cases(evaluate, name):
    n, inputs = LARGE[name]()
    (actual,), (expected,) = evaluate([n], inputs), interpret([n], inputs)
    assert_close(actual, expected, n.dtype)
