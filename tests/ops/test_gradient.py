"""Gradients against central differences in float64, and against PyTorch where derivatives jump."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.tile.node import Type
from stack import ops as g
from stack.ir.interpret import interpret
from stack.ir.verify import verify
from stack.ops import OPS
from tests.draw import sample
from tests.ops.cases import SAMPLED, Maker, drawn

SLOPED = sorted(name for name in SAMPLED if OPS[name].gradient is not None)
STOPPING = {"detached"}
"""Through which no derivative flows, whatever its slope."""
COMPARED = sample("slopes", [op for op in SLOPED if op != "cast"], 20)
"""Drawn in each run, as `TYPED` is: hypothesis alone takes seconds for all of them."""
TYPED = sample(
    "types of gradients",
    [(op, d) for op in SLOPED for d in sorted(d for d in DType if d.is_float)],
    60,
)
FLAT = [op for op in SAMPLED if op not in {*SLOPED, *STOPPING} and DType.F64 in OPS[op].dtypes]
STEP = 1e-6
settings.register_profile("exact", derandomize=True, deadline=None, database=None)
settings.load_profile("exact")


def gradients(n, d):
    """The gradient of each float operand, or None."""
    return OPS[n.op].gradient(n, d)


def seeded(m, n):
    """A derivative to start from, as an input."""
    return m.given(m.rng.uniform(-1, 1, n.shape).astype(np.float64), n.dtype)


def slope(n, d, inputs, direction):
    """The derivative of sum(d * n) along a direction of the inputs, by central differences."""

    def loss(step):
        moved = {k: x + step * direction[k] if k in direction else x for k, x in inputs.items()}
        value, weight = interpret([n, d], moved)
        return float(np.sum(value * weight))

    return (loss(STEP) - loss(-STEP)) / (2 * STEP)


@pytest.mark.parametrize("op", COMPARED)
@settings(max_examples=25)
@given(data=st.data())
def test_gradient_agrees_with_central_differences(op, data):
    m = Maker(data.draw, views=False, gentle=True)
    n = drawn(m, op, DType.F64)
    assume(n.op == op and n.dtype is DType.F64)
    operands = [s for s in n.srcs if s in m.inputs and s.dtype is DType.F64]
    d = seeded(m, n)
    found = dict(zip(n.srcs, gradients(n, d), strict=True))
    assert all(found[s].type == s.type for s in operands)
    arrays = interpret([found[s] for s in operands], m.inputs)
    direction = {s: m.rng.uniform(-1, 1, s.shape) for s in operands}
    along = sum(float(np.sum(a * direction[s])) for a, s in zip(arrays, operands, strict=True))
    np.testing.assert_allclose(along, slope(n, d, m.inputs, direction), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", FLAT)
@settings(max_examples=5)
@given(data=st.data())
def test_operators_without_a_gradient_are_flat_or_give_no_floats(op, data):
    m = Maker(data.draw, views=False, gentle=True)
    n = drawn(m, op, DType.F64)
    moved = {s: m.rng.uniform(-1, 1, s.shape) for s in n.srcs if s.dtype is DType.F64}
    if n.dtype.is_float and n.op == op and moved:
        assert slope(n, g.full_like(n, 1), m.inputs, moved) == 0


@pytest.mark.parametrize(("op", "dtype"), TYPED)
@settings(max_examples=5)
@given(data=st.data())
def test_gradients_have_the_operands_types_and_are_valid_graphs(op, dtype, data):
    m = Maker(data.draw)
    n = drawn(m, op, dtype)
    assume(n.op == op and n.dtype.is_float)
    found = gradients(n, g.full_like(n, 1))
    assert len(found) == len(n.srcs)
    for s, d in zip(n.srcs, found, strict=True):
        assert (d is not None) == s.dtype.is_float
        assert d is None or d.type == s.type
    verify([d for d in found if d is not None])


@pytest.mark.parametrize(("dtype", "into"), [(DType.F64, DType.BF16), (DType.F16, DType.F32)])
def test_gradient_of_a_cast_comes_back_in_the_operands_type(dtype, into):
    n = g.cast(of((3,), dtype=dtype), into)
    (d,) = gradients(n, of((3,), 1, into))
    assert (d.op, d.dtype, d.srcs[0].dtype) == ("cast", dtype, into)


def of(shape, slot=0, dtype=DType.F64):
    return g.input(slot, Type(shape, dtype))


def both(function, build, *arrays):
    """Gradients of the sum weighted by 1, 2, 3, ... by PyTorch and by the record."""
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    y = function(*tensors)
    weight = np.arange(1.0, y.numel() + 1).reshape(y.shape)
    y.backward(torch.from_numpy(weight))
    inputs = [of(np.shape(a), slot) for slot, a in enumerate(arrays)]
    n = build(*inputs)
    d = of(n.shape, len(inputs))
    values = {**dict(zip(inputs, map(np.asarray, arrays), strict=True)), d: weight.reshape(n.shape)}
    ours = interpret(gradients(n, d), values)
    return zip(ours, (t.grad.numpy() for t in tensors), strict=True)


TIES = np.array([[1.0, 3.0, 3.0, 2.0], [2.0, 2.0, 2.0, 2.0], [0.0, -1.0, 5.0, 5.0]])
ZEROS = np.array([[2.0, 0.0, 3.0, 4.0], [0.0, 5.0, 0.0, 6.0], [1.0, 2.0, 3.0, 0.0]])


def _reduced(kind, axes):
    return lambda x: g.reduce(kind, x, axes)


@pytest.mark.parametrize(
    ("function", "build", "arrays"),
    [
        (lambda x: x.amax(1), _reduced("max", 1), [TIES]),
        (lambda x: x.amin((0, 1)), _reduced("min", (0, 1)), [TIES]),
        (lambda x: x.prod(1), _reduced("prod", 1), [ZEROS]),
        (lambda x: x.prod(0), _reduced("prod", 0), [ZEROS]),
        (lambda x: x.prod(), _reduced("prod", None), [ZEROS]),
        (lambda x: x.cumprod(1), lambda x: g.scan("prod", x, 1), [ZEROS]),
        (lambda x: x.cumprod(0), lambda x: g.scan("prod", x, 0), [ZEROS]),
        (lambda x: x.cummax(1).values, lambda x: g.scan("max", x, 1), [TIES]),
        (lambda x: x.cummin(0).values, lambda x: g.scan("min", x, 0), [TIES]),
        (torch.maximum, g.maximum, [TIES, TIES[::-1].copy()]),
        (torch.minimum, g.minimum, [TIES, TIES[::-1].copy()]),
        (torch.abs, g.abs, [ZEROS - 2.0]),
        (torch.pow, g.pow, [ZEROS, np.abs(TIES)]),
        (torch.pow, g.pow, [np.zeros(3), np.array([0.0, 1.0, 2.0])]),
    ],
    ids=lambda x: None,
)
def test_gradients_at_ties_and_zeros_are_those_of_pytorch(function, build, arrays):
    for ours, theirs in both(function, build, *arrays):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_gradient_of_a_half_precision_maximum_counts_more_ties_than_the_type_can_hold():
    x = of((5000,), dtype=DType.F16)
    n = g.reduce("max", x)
    (d,) = gradients(n, g.full_like(n, 1))
    (value,) = interpret([d], {x: np.ones(5000, np.float16)})
    assert np.all(value == np.float16(1 / 5000))


def test_gradient_products_of_a_wide_result_run_in_the_operands_type():
    a, b = of((2, 3), 0, DType.BF16), of((3, 4), 1, DType.BF16)
    n = g.matmul(a, b, DType.F32)
    assert [d.srcs[0].dtype for d in gradients(n, g.full_like(n, 1))] == [DType.BF16, DType.BF16]
