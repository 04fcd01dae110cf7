"""Operations on slave cores that DMA feeds.

The host's C compiler takes a while for each kernel, so an operation has one case and one element
type. Elementwise operations lower to the same loops: of these one in three has its turn here, and
`tests/compiler/scratchpad` has random kernels.
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
ONE_IN = 3

pytest.importorskip("hal_plugin_sunway", reason="the tests of slave cores need their emulator")


def chosen(op: str) -> bool:
    """Whether an operation has its turn."""
    return OPS[op].lower is None or zlib.crc32(op.encode()) % ONE_IN == 0


@pytest.fixture(scope="module")
def engine():
    options = OpenOptions(settings={"memory_nbytes": str(256 << 20)})
    with engine_of(hal.open("sunway:0", options=options)) as engine:
        yield engine


@pytest.mark.slow
@pytest.mark.parametrize("op", [op for op in SAMPLED if chosen(op)])
@settings(FEW, max_examples=1, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_slave_cores_compute_what_the_reference_says(engine, op, data):
    dtypes = sorted(OPS[op].dtypes)
    dtype = dtypes[zlib.crc32(f"{op} cores".encode()) % len(dtypes)]
    m = Maker(data.draw)
    n = drawn(m, op, dtype)
    assume(n.op == op or op in ("const", "input"))
    assume(max([n.type.size, *(x.size for x in m.inputs.values())]) > LEAST)
    (expected,) = interpret([n], m.inputs)
    plan = engine.plan(GraphRequest((n,), tuple(m.inputs)))
    (array,) = plan.run([engine.put(x, i.dtype) for i, x in m.inputs.items()])
    assert_close(engine.get(array), expected, n.dtype)
