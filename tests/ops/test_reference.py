"""The numpy references against PyTorch, over random shapes, layouts and awkward values."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.tile.numeric import NUMPY
from stack.ir.interpret import interpret
from tests.draw import sample
from tests.ops.cases import EVERY, Maker, drawn
from tests.ops.tolerance import assert_close
from tests.ops.torch_truth import TYPES, from_torch, to_torch, truth_of

EACH = [(op, d) for op, d in EVERY if d in TYPES and truth_of(op)]
KNOWN = sample("reference", EACH, 40)
"""Drawn in each run: all of them cost a minute."""


def _comparable(n, operands):
    """PyTorch has no answer of its own, or another one by choice, in these corners."""
    if n.op in ("cast", "bitcast"):
        finite = n.op == "bitcast" or _fits(operands[0], n.dtype)
        return n.dtype in TYPES and finite
    if n.op in ("reduce", "extreme") and n["kind"] in ("min", "max"):
        return n.srcs[0].type.size > 0
    if n.op in ("floordiv", "mod") and n.dtype.is_float:
        return all(np.isfinite(x.astype(np.float64)).all() for x in operands)
    if n.op in ("floordiv", "mod"):
        return not np.any((operands[0] == np.iinfo(operands[0].dtype).min) & (operands[1] == -1))
    if n.op == "scan" and n["kind"] in ("min", "max"):
        return n.dtype is not DType.BOOL and n.srcs[0].type.size > 0
    return True


def _fits(x, dtype):
    """Casts of floats out of an integer's range are undefined in PyTorch."""
    if not dtype.is_int or x.dtype.kind in "iub":
        return True
    wide = x.astype(np.float64)
    info = np.iinfo(NUMPY[dtype])
    return bool(np.all(np.isfinite(wide) & (wide > info.min) & (wide < info.max)))


@pytest.mark.parametrize(("op", "dtype"), KNOWN, ids=[f"{op}-{d.short}" for op, d in KNOWN])
@settings(max_examples=6, derandomize=True, deadline=None, database=None)
@given(data=st.data())
def test_reference_agrees_with_pytorch(op, dtype, data):
    m = Maker(data.draw)
    n = drawn(m, op, dtype)
    assume(n.op == op)
    operands = interpret(n.srcs, m.inputs)
    assume(_comparable(n, operands))
    tensors = [to_torch(x, s.dtype) for x, s in zip(operands, n.srcs, strict=True)]
    expected = from_torch(truth_of(op)(n, *tensors))
    (actual,) = interpret([n], m.inputs)
    assert_close(actual, expected.astype(NUMPY[n.dtype]), n.dtype)
