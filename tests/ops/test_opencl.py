"""Operations by both lowerings of OpenCL C: an instance as a group of work-items, and as one alone.

A driver's compiler takes long for each kernel, so an operation has one case and one element type
each way, and the two are chosen apart. Elementwise ones alone are in `tests/compiler/c`.
"""

from __future__ import annotations

import zlib

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import hal
from hal.core.values import OpenOptions
from stack.compiler.program import GraphRequest
from stack.ir.interpret import interpret
from stack.ops import OPS
from stack.runtime import engine_of
from tests.ops.cases import SAMPLED, Maker, drawn
from tests.ops.test_device import FEW
from tests.ops.tolerance import assert_close

LEAST = 8
"""Elements of the largest array of a case: the first cases that are drawn are scalars."""

pytest.importorskip("pyopencl", reason="the tests of OpenCL devices need pyopencl and a driver")


WAYS = [("64", op) for op in SAMPLED] + [("1", op) for op in SAMPLED if OPS[op].lower is None]


@pytest.fixture(scope="module")
def lanes(request):
    return request.param


@pytest.fixture(scope="module")
def engine(lanes):
    options = OpenOptions(settings={"lanes": lanes})
    with engine_of(hal.open("opencl:0", options=options)) as engine:
        yield engine


@pytest.mark.slow
@pytest.mark.parametrize(("lanes", "op"), WAYS, indirect=["lanes"], scope="module")
@settings(FEW, max_examples=1, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_both_lowerings_compute_what_the_reference_says(engine, lanes, op, data):
    dtypes = sorted(OPS[op].dtypes)
    dtype = dtypes[zlib.crc32(f"{op} {lanes}".encode()) % len(dtypes)]
    m = Maker(data.draw)
    n = drawn(m, op, dtype)
    assume(n.op == op or op in ("const", "input"))
    assume(max([n.type.size, *(x.size for x in m.inputs.values())]) > LEAST)
    (expected,) = interpret([n], m.inputs)
    plan = engine.plan(GraphRequest((n,), tuple(m.inputs)))
    (array,) = plan.run([engine.put(x, i.dtype) for i, x in m.inputs.items()])
    assert_close(engine.get(array), expected, n.dtype)
