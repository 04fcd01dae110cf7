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
