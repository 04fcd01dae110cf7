"""Reductions agree with torch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import stack.framework as ht

REDUCTIONS = {
    "sum": lambda x, d, k: x.sum(d, k),
    "mean": lambda x, d, k: x.mean(d, k),
    "amax": lambda x, d, k: x.amax(d, k),
    "amin": lambda x, d, k: x.amin(d, k),
    "logsumexp": lambda x, d, k: x.logsumexp(d, k),
}


def reduced(name):
    return REDUCTIONS[name], REDUCTIONS[name]


@st.composite
def shaped(draw):
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    dims = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    negative = draw(st.booleans())
    return tuple(shape), tuple(d - len(shape) if negative else d for d in dims), draw(st.booleans())


@pytest.mark.parametrize("name", REDUCTIONS)
@given(case=shaped())
def test_reductions_over_axes(name, case, agree):
    shape, dims, keepdim = case
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    ours, theirs = reduced(name)
    agree(lambda t: ours(t, dims, keepdim), lambda t: theirs(t, dims, keepdim), x)


@pytest.mark.parametrize("correction", [0, 1, 2])
def test_variance_and_deviation(correction, agree, draw_floats):
    for f in ("var", "std"):
        agree(
            lambda x, f=f: getattr(x, f)(1, correction=correction),
            lambda x, f=f: getattr(x, f)(1, correction=correction),
            *draw_floats((3, 5)),
        )
    assert np.isnan(ht.ones(1).var().item())


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "amax", "any", "all", "norm", "argmax"])
def test_reductions_of_everything(name, agree, draw_floats):
    agree(lambda x: getattr(x, name)(), lambda x: getattr(x, name)(), *draw_floats((2, 3)))
    agree(lambda x: getattr(x, name)(), lambda x: getattr(x, name)(), *draw_floats(()))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_extremes_along_an_axis_come_with_their_places(dim, draw_floats):
    (x,) = draw_floats((4, 5))
    for name in ("max", "min"):
        ours, theirs = getattr(ht.tensor(x), name)(dim), getattr(torch.tensor(x), name)(dim)
        assert ours.values.tolist() == theirs.values.tolist()
        assert ours.indices.tolist() == theirs.indices.tolist()


@pytest.mark.parametrize("dtype", [np.int32, np.bool_])
def test_integers_and_bools_are_added_as_int64(dtype, agree):
    x = np.array([[1, 0, 1], [1, 1, 1]], dtype)
    for name in ("sum", "prod", "cumsum"):
        agree(lambda t, n=name: getattr(t, n)(0), lambda t, n=name: getattr(t, n)(0), x)


def test_no_elements(agree):
    empty = np.zeros((0, 3), np.float32)
    agree(lambda x: x.sum(0), lambda x: x.sum(0), empty)
    agree(lambda x: x.mean(), lambda x: x.mean(), empty, gradient=False)
    with pytest.raises(ht.TensorError, match="no element to choose from"):
        ht.tensor(empty).amax(0)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "cumsum", "cumprod"])
@pytest.mark.parametrize("dim", [0, -1])
def test_operations_along_an_axis(name, dim, agree, draw_floats):
    agree(lambda x: getattr(x, name)(dim), lambda x: getattr(x, name)(dim), *draw_floats((3, 4)))


def test_softmax_neither_overflows_nor_loses_the_tail(agree):
    x = np.array([[1e4, 0.0, -1e4], [-np.inf, 0.0, 1.0]], np.float32)
    agree(lambda t: t.softmax(1), lambda t: t.softmax(1), x)
    agree(lambda t: t.log_softmax(1), lambda t: t.log_softmax(1), x)


def test_logsumexp_of_minus_infinity():
    assert ht.full((2,), -np.inf).logsumexp(0).item() == -np.inf


def test_mean_of_integers_is_refused():
    with pytest.raises(ht.TensorError, match=r"mean: .*\.float\(\)"):
        ht.tensor([1, 2]).mean()
