"""Every operation and gradient compiled for a real device, against the records' references."""

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

import hal
from hal.core.dtypes import DType
from stack.compiler.program import GraphRequest
from stack.ir import build as g
from stack.ir.interpret import interpret
from stack.ops import OPS
from stack.runtime import engine_of
from tests.ops.cases import CASES, EVERY, NAMES, Maker
from tests.ops.tolerance import assert_close

DEVICES = ("cpu:0",)
SLOPED = sorted(name for name, r in OPS.items() if r.gradient is not None)
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


@pytest.mark.parametrize(("op", "dtype"), EVERY, ids=NAMES)
@settings(FEW, max_examples=4)
@given(data=st.data())
def test_device_computes_what_the_reference_says(evaluate, op, dtype, data):
    m = Maker(data.draw)
    n = CASES[op](m, op, dtype)
    assume(n.op == op or op in ("const", "input"))
    (expected,) = interpret([n], m.inputs, OPS)
    (actual,) = evaluate([n], m.inputs)
    assert_close(actual, expected, n.dtype)


@pytest.mark.parametrize("op", SLOPED)
@settings(FEW, max_examples=3)
@given(data=st.data())
def test_device_computes_the_gradient_as_the_interpreter_does(evaluate, op, data):
    m = Maker(data.draw, gentle=True)
    n = CASES[op](m, op, DType.F32)
    assume(n.op == op and n.dtype.is_float)
    d = m.given(m.array(n.shape, n.dtype, False), n.dtype)
    found = [x for x in OPS[op].gradient(n, d) if x is not None]
    for actual, expected, x in zip(
        evaluate(found, m.inputs), interpret(found, m.inputs, OPS), found, strict=True
    ):
        assert_close(actual, expected, x.dtype)


def test_a_device_refuses_nothing_that_the_records_claim(evaluate):
    """A graph without operations: an input, a constant and a repeated constant come back as they are."""
    x = g.input(0, g.full((2, 3), 0, DType.F32).type)
    value = interpret([g.full((2, 3), 7, DType.F32)], {}, OPS)[0]
    same, full = evaluate([x, g.full((2, 3), 7, DType.F32)], {x: value})
    assert_close(same, value, DType.F32)
    assert_close(full, value, DType.F32)
