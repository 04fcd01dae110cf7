"""Convolutions, pools and norms over channels agree with torch, with their gradients."""

import numpy as np
import pytest
import torch
import torch.nn.functional as TF

import stack.framework as ht
import stack.framework.functional as F

SIZES = {1: (9,), 2: (7, 8), 3: (5, 6, 4)}
TAPS = {1: (3,), 2: (3, 2), 3: (2, 3, 2)}
CONVOLUTIONS = [
    {},
    {"stride": 2, "padding": 1},
    {"dilation": 2, "padding": 2},
    {"groups": 2, "padding": 1},
    {"padding": "same"},
]
TRANSPOSED = [
    {},
    {"stride": 2, "padding": 1, "output_padding": 1},
    {"dilation": 2, "padding": 1},
    {"groups": 2, "stride": 3},
]
POOLS = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
]


def both(name, *args, **facts):
    """The function of that name, ours and torch's."""
    return tuple(lambda x, *xs, m=m: getattr(m, name)(x, *xs, *args, **facts) for m in (F, TF))


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("facts", CONVOLUTIONS, ids=str)
def test_convolutions(d, facts, agree, draw_floats):
    inner = 4 // facts.get("groups", 1)
    arrays = draw_floats((2, 4, *SIZES[d]), (6, inner, *TAPS[d]), (6,))
    agree(*both(f"conv{d}d", **facts), *arrays, atol=2e-5)
    agree(*both(f"conv{d}d", **facts), arrays[0][0], *arrays[1:], atol=2e-5)


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("facts", TRANSPOSED, ids=str)
def test_transposed_convolutions(d, facts, agree, draw_floats):
    outer = 6 // facts.get("groups", 1)
    arrays = draw_floats((2, 4, *SIZES[d]), (4, outer, *TAPS[d]), (6,))
    agree(*both(f"conv_transpose{d}d", **facts), *arrays, atol=2e-5)


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("facts", POOLS, ids=str)
def test_pools(d, facts, agree, draw_floats):
    (x,) = draw_floats((2, 3, *SIZES[d]))
    for padded in (True, False):
        agree(*both(f"avg_pool{d}d", count_include_pad=padded, **facts), x)
    pooled = both(f"max_pool{d}d", **facts)
    agree(*pooled, x)
    agree(*pooled, np.round(x))  # equal elements: the derivative goes to the first
    places = both(f"max_pool{d}d", return_indices=True, **facts)
    agree(*(lambda t, p=p: p(t)[1] for p in places), np.round(x), gradient=False)


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_adaptive_pools(d, size, agree, draw_floats):
    (x,) = draw_floats((2, 3, *SIZES[d]))
    agree(*both(f"adaptive_avg_pool{d}d", size), x)
    agree(*both(f"adaptive_max_pool{d}d", size), x)
    places = both(f"adaptive_max_pool{d}d", size, return_indices=True)
    agree(*(lambda t, p=p: p(t)[1] for p in places), x, gradient=False)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["batch_norm", "instance_norm"])
def test_norms_with_running_statistics(name, training, agree, draw_floats):
    x, mean, variance, *affine = draw_floats((2, 3, 4, 5), *[(3,)] * 4)
    variance = np.abs(variance)
    ours, theirs = (
        [make(np.copy(a)) for a in (mean, variance)] for make in (ht.tensor, torch.tensor)
    )
    agree(
        lambda x, *rest: getattr(F, name)(x, *ours, *rest, training),
        lambda x, *rest: getattr(TF, name)(x, *theirs, *rest, training),
        *(x, *affine),
        atol=3e-5,
    )
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5)


def test_norms_over_channels(agree, draw_floats):
    x, *affine = draw_floats((2, 6, 5), (6,), (6,))
    agree(*(lambda x, w, b, m=m: m.group_norm(x, 3, w, b) for m in (F, TF)), x, *affine, atol=3e-5)
    agree(*both("local_response_norm", 3), x)
    for p in (1.0, 2.0, 3.0, float("inf")):
        agree(*both("normalize", p), x)


def test_windows_that_do_not_fit_say_why():
    with pytest.raises(ht.TensorError, match="window of 9, stride 9, does not fit into 4"):
        F.max_pool1d(ht.ones(1, 1, 4), 9)
    with pytest.raises(ht.TensorError, match="3 channels in 1 groups do not fit weight"):
        F.conv1d(ht.ones(1, 3, 4), ht.ones(2, 2, 3))
