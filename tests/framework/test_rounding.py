"""Composites of narrow floats are rounded once, at their end, as PyTorch's are."""

import numpy as np
import pytest
import torch

import stack.framework as ht
import stack.framework.functional as F
from tests import draw
from tests.framework import looked_programs


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


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_a_value_is_rounded_whether_it_is_looked_at_or_not(kind):
    """The same operations, each rounded to its type, as PyTorch's."""
    data = np.linspace(-3, 3, 999, dtype=np.float32)
    ours, theirs = (
        ht.tensor(data).to(getattr(ht, kind)),
        torch.tensor(data).to(getattr(torch, kind)),
    )
    expected = (theirs * theirs * 0.3 + theirs / 7).float() * 1.5
    found = (ours * ours * 0.3 + ours / 7).float() * 1.5
    np.testing.assert_array_equal(found.numpy(), expected.numpy())


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["tanh", "sqrt", "sin", "reciprocal"])
def test_derivatives_of_narrow_floats_are_rounded_once(kind, name):
    data = np.linspace(0.1, 2, 500, dtype=np.float32)
    ours = ht.tensor(data).to(getattr(ht, kind)).requires_grad_()
    theirs = torch.tensor(data).to(getattr(torch, kind)).requires_grad_()
    getattr(ours, name)().sum().backward()
    getattr(theirs, name)().sum().backward()
    ours, theirs = ours.grad.float().numpy(), theirs.grad.float().numpy()
    assert np.mean(ours != theirs) < 0.02  # exp, sin, ... may differ in the last bit before
    np.testing.assert_allclose(ours, theirs, rtol=2**-7)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [draw.stream("looked at").randrange(10**6)])
def test_nothing_depends_on_what_was_looked_at(seed):
    looked_programs.check(seed)
