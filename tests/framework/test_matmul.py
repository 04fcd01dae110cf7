"""Matrix products agree with torch."""

import numpy as np
import pytest
import torch

import stack.framework as ht
import stack.framework.functional as F

SHAPES = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((5, 1, 2, 3), (6, 3, 4)),
    ((5, 2, 3), (3,)),
    ((3,), (5, 3, 4)),
    ((2, 0), (0, 4)),
    ((0, 2, 3), (3, 4)),
]


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_products(a, b, agree, draw_floats):
    agree(lambda x, y: x @ y, lambda x, y: x @ y, *draw_floats(a, b))


@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 2, 3)])
def test_linear(shape, agree, draw_floats):
    agree(F.linear, torch.nn.functional.linear, *draw_floats(shape, (5, 3), (5,)))
    agree(F.linear, torch.nn.functional.linear, *draw_floats(shape, (5, 3)))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_products_of_integers_wrap_in_their_own_type(dtype):
    rng, info = np.random.default_rng(3), np.iinfo(dtype)
    a, b = (
        rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        for shape in ((5, 70), (70, 3))
    )
    found = ht.tensor(a) @ ht.tensor(b)
    wanted = torch.tensor(a) @ torch.tensor(b)
    assert found.dtype is getattr(ht, dtype)
    np.testing.assert_array_equal(found.numpy(), wanted.numpy())


def test_autocast_gives_products_in_bfloat16_and_norms_in_float32(draw_floats):
    x, w = map(ht.tensor, draw_floats((4, 8), (8, 8)))
    with ht.autocast(ht.bfloat16):
        y = F.linear(x, w)
        assert y.dtype is ht.bfloat16
        assert (x @ w).dtype is ht.bfloat16
        assert F.layer_norm(y, (8,)).dtype is ht.float32
        assert y.softmax(-1).dtype is ht.float32
        assert F.cross_entropy(y, ht.arange(4)).dtype is ht.float32
    assert (x @ w).dtype is ht.float32


def test_autocast_gives_masters_float32_gradients(draw_floats):
    x, w = draw_floats((4, 8), (3, 8))
    mine, peer = ht.tensor(w, requires_grad=True), torch.tensor(w, requires_grad=True)
    with ht.autocast(ht.bfloat16):
        F.linear(ht.tensor(x), mine).float().square().sum().backward()
    with torch.autocast("cpu", torch.bfloat16):
        torch.nn.functional.linear(torch.tensor(x), peer).float().square().sum().backward()
    assert mine.grad.dtype is ht.float32
    np.testing.assert_allclose(mine.grad.numpy(), peer.grad.numpy(), rtol=2e-2, atol=2e-2)


CDIST_MODES = (
    "use_mm_for_euclid_dist_if_necessary",
    "use_mm_for_euclid_dist",
    "donot_use_mm_for_euclid_dist",
)


@pytest.mark.parametrize(
    ("a", "b", "p", "mode"),
    [
        ((25, 4), (25, 4), 2.0, 0),
        ((26, 4), (3, 4), 2.0, 0),
        ((2, 1, 5, 4), (3, 30, 4), 2.0, 0),
        ((5, 4), (6, 4), 2.0, 1),
        ((30, 4), (30, 4), 2.0, 2),
        ((30, 4), (30, 4), 1.0, 0),
    ],
)
def test_distances(a, b, p, mode):
    """By products from 26 rows on, or where that is asked for; two rows are equal."""
    rng = np.random.default_rng(len(a) + mode)
    x, y = rng.normal(size=a), rng.normal(size=b)
    y[..., 1, :] = x[..., 1, :] if x.ndim == y.ndim else y[..., 1, :]
    mine = [ht.tensor(v.astype(np.float32), requires_grad=True) for v in (x, y)]
    theirs = [torch.tensor(v, requires_grad=True) for v in (x, y)]
    got, want = (t.cdist(*v, p, CDIST_MODES[mode]) for t, v in ((ht, mine), (torch, theirs)))
    np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), atol=2e-3)
    far = want.detach().numpy() > 1e-2  # what is next to nothing has a gradient of its errors
    weights = rng.normal(size=want.shape) * far
    (got * ht.tensor(weights.astype(np.float32))).sum().backward()
    (want * torch.tensor(weights)).sum().backward()
    for v, w in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(v.grad.numpy(), w.grad.numpy(), atol=1e-4)


def test_distances_of_pairs_are_one_graph_of_any_size():
    rng = np.random.default_rng(0)
    for n in (1, 2, 60):
        a = rng.normal(size=(n, 3))
        x, y = ht.tensor(a.astype(np.float32), requires_grad=True), torch.tensor(a)
        y.requires_grad_()
        got, want = F.pdist(x), torch.nn.functional.pdist(y)
        np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), atol=1e-5)
        if n > 1:
            (got * got).sum().backward()
            (want * want).sum().backward()
            np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-4, atol=1e-4)
