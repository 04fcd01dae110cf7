"""Composites of narrow floats are rounded once, at their end, as PyTorch's are."""

import numpy as np
import pytest
import torch

import stack.framework as ht
import stack.framework.functional as F


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["mean", "var", "std", "norm"])
def test_sums_beyond_the_type_are_divided_before_they_are_rounded(name, kind):
    data = np.linspace(100, 130, 1000, dtype=np.float32)
    ours = getattr(ht.tensor(data).to(getattr(ht, kind)), name)()
    theirs = getattr(torch.tensor(data).to(getattr(torch, kind)), name)()
    assert np.isfinite(ours.item())
    assert ours.dtype is getattr(ht, kind)
    np.testing.assert_allclose(ours.item(), theirs.item(), rtol=2e-3 if kind == "float16" else 1e-2)


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"])
def test_losses_of_narrow_floats_do_not_overflow(name):
    data = np.full((200, 200), 50, np.float16)
    x = ht.tensor(data, requires_grad=True)
    peer = torch.tensor(data, requires_grad=True)
    loss = getattr(F, name)(x, ht.zeros(200, 200).half())
    expected = getattr(torch.nn.functional, name)(peer, torch.zeros(200, 200).half())
    assert loss.dtype is ht.float16
    assert loss.item() == expected.item()
    (loss * 100).backward()
    (expected * 100).backward()
    np.testing.assert_allclose(x.grad.numpy(), peer.grad.numpy(), rtol=2e-2)


@pytest.mark.parametrize("name", ["tril", "triu"])
def test_triangles_keep_the_element_type(name):
    mask = np.ones((3, 3), bool)
    ours, theirs = getattr(ht.tensor(mask), name)(), getattr(torch.tensor(mask), name)()
    assert ours.dtype is ht.bool
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
