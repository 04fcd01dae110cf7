"""Eigenvalues and singular values against numpy and PyTorch, with gradients."""

import numpy as np
import pytest
import torch

import stack.framework as ht
from tests.draw import stream

pytestmark = [pytest.mark.slow, pytest.mark.turns]
DEVICE = stream("spectral").choice(["cpu:0", "sunway:0"])


def drawn(*shape, seed=2):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def losses(run):
    """The value and the gradients that a program has by us and by PyTorch."""
    return run(ht, ht.tensor), run(torch, torch.tensor)


@pytest.mark.parametrize(("n", "which"), [(1, "L"), (2, "L"), (4, "L"), (5, "U")])
def test_eigh(n, which):
    x, weights = drawn(2, n, n), drawn(2, n, n, seed=3)

    def run(t, tensor):
        a = tensor(x, requires_grad=True)
        w, v = t.linalg.eigh(a, UPLO=which)
        ((v * v) * tensor(weights)).sum().backward(retain_graph=True)
        (w * w * w).sum().backward()
        return w.detach().numpy(), v.detach().numpy(), a.grad.numpy()

    (w, v, mine), (expected, _, theirs) = losses(run)
    np.testing.assert_allclose(w, expected, rtol=1e-5, atol=1e-5)
    whole = np.tril(x) + np.tril(x, -1).transpose(0, 2, 1)
    whole = whole if which == "L" else np.triu(x) + np.triu(x, 1).transpose(0, 2, 1)
    np.testing.assert_allclose(v * w[:, None] @ v.transpose(0, 2, 1), whole, atol=2e-5)
    np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (2, 4)])
def test_svd(shape):
    x = drawn(2, *shape)

    def run(t, tensor):
        a = tensor(x, requires_grad=True)
        u, s, vh = t.linalg.svd(a, full_matrices=False)
        (s.sum() + (u[..., :1] * s[:, None, :1] @ vh[:, :1]).square().mean() * 3).backward()
        full = t.linalg.svd(a.detach())
        return s.detach().numpy(), a.grad.numpy(), [p.numpy() for p in full]

    (s, mine, (u, _, vh)), (expected, theirs, _) = losses(run)
    np.testing.assert_allclose(s, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-3)
    k = min(shape)
    np.testing.assert_allclose(u[..., :k] * s[:, None] @ vh[:, :k], x, atol=1e-5)
    for q in (u, vh):
        both = np.broadcast_to(np.eye(q.shape[-1]), q.shape)
        np.testing.assert_allclose(q @ q.transpose(0, 2, 1), both, atol=1e-5)


def test_matrices_without_full_rank():
    x = drawn(4, 2) @ drawn(2, 5)
    u, s, vh = (v.numpy() for v in ht.linalg.svd(ht.tensor(x)))
    np.testing.assert_allclose(s, np.linalg.svd(x)[1], atol=1e-5)
    np.testing.assert_allclose(u.T @ u, np.eye(4), atol=1e-5)
    np.testing.assert_allclose(vh @ vh.T, np.eye(5), atol=1e-5)
    assert int(ht.linalg.matrix_rank(ht.tensor(x), rtol=1e-5)) == 2
    np.testing.assert_allclose(
        ht.linalg.pinv(ht.tensor(x), rtol=1e-5).numpy(), np.linalg.pinv(x, 1e-5), atol=1e-5
    )


def test_equal_eigenvalues_have_gradients_of_their_sum():
    a = ht.eye(3).requires_grad_()
    ht.linalg.eigvalsh(a).sum().backward()
    np.testing.assert_allclose(a.grad.numpy(), np.eye(3), atol=1e-6)


def test_gradients_can_be_differentiated():
    x = torch.tensor(np.diag([1.0, 2, 4]).astype(np.float32) + 0.1, requires_grad=True)
    results = []
    for t, a in ((ht, ht.tensor(x.detach().numpy(), requires_grad=True)), (torch, x)):
        w = t.linalg.eigvalsh(a)
        (d,) = t.autograd.grad((w**3).sum(), a, create_graph=True)
        (second,) = t.autograd.grad((d * d).sum(), a)
        results.append(second.numpy())
    np.testing.assert_allclose(*results, rtol=1e-3)


@pytest.mark.parametrize("device", [pytest.param(DEVICE, marks=pytest.mark.device(DEVICE))])
def test_a_device_finds_the_same(device):
    x = drawn(2, 2)
    w = ht.linalg.eigvalsh(ht.tensor(x, device=device)).numpy()
    np.testing.assert_allclose(w, np.linalg.eigvalsh(x), rtol=1e-4, atol=1e-5)
