"""Factors and solutions of matrices of more columns than are written out, against PyTorch in
float64, with gradients; and graphs that do not grow with the number of columns."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import stack.framework as ht
from hal.core.dtypes import DType
from hal.tile.node import Node, Type, toposort
from stack import ops as g
from stack.framework.expr import linear, spectral
from stack.framework.expr.steps import BLOCK, BLOCKS, PANEL, STEPS_WRITTEN_OUT
from tests.draw import sample

N = STEPS_WRITTEN_OUT + 4
RNG = np.random.default_rng(7)
ANY = RNG.normal(size=(2, N, N))
HEAVY = ANY + N * np.eye(N)
POSITIVE = ANY @ ANY.transpose(0, 2, 1) + N * np.eye(N)
APART = np.diag(3.0 * np.arange(N)) + (ANY + ANY.transpose(0, 2, 1)) / 10
"""Eigenvalues that are near each other have vectors that a rounding turns."""
BLOCKED = 2 * BLOCK + 21
MANY = np.random.default_rng(8).normal(size=(2, BLOCKED, BLOCKED)) / 4
MANY = MANY @ MANY.transpose(0, 2, 1) + BLOCKED * np.eye(BLOCKED)
"""Of blocks, halves of which are of several."""
TALL = np.random.default_rng(9).normal(size=(2, BLOCKED, 3))
RIGHT = RNG.normal(size=(2, N, 3))


def _triangle(t: Any, a: Any, b: Any, **how: bool) -> Any:
    # PyTorch's gradient is by the triangle alone, too
    return t.linalg.solve_triangular(a, b, **how)


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "cholesky": (lambda t, a: t.linalg.cholesky(a), (POSITIVE,)),
    "upper": (lambda t, a: t.linalg.cholesky(a, upper=True), (POSITIVE,)),
    "lower triangle": (lambda t, a, b: _triangle(t, a, b, upper=False), (HEAVY, RIGHT)),
    "upper triangle": (
        lambda t, a, b: _triangle(t, a, b, upper=True, unitriangular=True),
        (ANY / N, RIGHT),
    ),
    "from the right": (
        lambda t, a, b: _triangle(t, a, b.transpose(-1, -2), upper=True, left=False),
        (HEAVY, RIGHT),
    ),
    "factor of blocks": (lambda t, a: t.linalg.cholesky(a), (MANY,)),
    "lower triangle of blocks": (lambda t, a, b: _triangle(t, a, b, upper=False), (MANY, TALL)),
    "upper triangle of blocks": (
        lambda t, a, b: _triangle(t, a, b, upper=True, unitriangular=True),
        (MANY / BLOCKED, TALL),
    ),
    "solve": (lambda t, a, b: t.linalg.solve(a, b), (ANY + 3 * np.eye(N), RIGHT)),
    "inv": (lambda t, a: t.linalg.inv(a), (HEAVY,)),
    "slogdet": (lambda t, a: t.linalg.slogdet(a)[1], (ANY,)),
    "sign": (lambda t, a: t.linalg.slogdet(a)[0] + 0 * a.sum(), (ANY,)),
    "det": (lambda t, a: t.linalg.det(a / N), (HEAVY,)),
    "lu": (lambda t, a: t.linalg.lu(a)[0] @ t.linalg.lu(a)[1] + t.linalg.lu(a)[2], (HEAVY,)),
    "tall lu": (lambda t, a: t.linalg.lu(a)[1] @ t.linalg.lu(a)[2] ** 2, (ANY[..., : N - 2],)),
    "wide lu": (lambda t, a: t.linalg.lu(a)[1] ** 2 @ t.linalg.lu(a)[2], (ANY[:, : N - 2],)),
    "qr": (lambda t, a: t.linalg.qr(a)[0] ** 2, (HEAVY,)),
    "tall qr": (lambda t, a: t.linalg.qr(a)[0] ** 2 @ t.linalg.qr(a)[1] ** 2, (ANY[..., :-2],)),
    "wide qr": (lambda t, a: t.linalg.qr(a)[0] ** 2 @ t.linalg.qr(a)[1] ** 2, (ANY[:, :-2],)),
    "singular values": (lambda t, a: t.linalg.svdvals(a), (HEAVY,)),
    "eigenvalues": (lambda t, a: t.linalg.eigvalsh(a) ** 2, (APART,)),
}


@pytest.mark.parametrize("name", sample("factors", CASES, 9))
def test_values_and_gradients(name: str) -> None:
    run, arrays = CASES[name]
    mine = [ht.tensor(a.astype(np.float32), requires_grad=True) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    got, want = run(ht, *mine), run(torch, *theirs)
    np.testing.assert_allclose(
        got.detach().numpy(),
        want.detach().numpy(),
        rtol=0,
        atol=2e-5 * float(want.detach().abs().max()),
    )
    weights = RNG.normal(size=want.shape)
    (got * ht.tensor(weights.astype(np.float32))).sum().backward()
    (want * torch.tensor(weights)).sum().backward()
    for a, b in zip(mine, theirs, strict=True):
        size = float(b.grad.detach().abs().max()) or 1.0
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=0, atol=1e-4 * size)


@pytest.mark.parametrize("n", [3, PANEL, PANEL + 1])
def test_cholesky_reads_the_lower_triangle(n: int) -> None:
    """As PyTorch, whose gradient is symmetric all the same."""
    a = POSITIVE[0, :n, :n].copy()
    a[np.triu_indices(n, 1)] = np.nan
    mine, theirs = ht.tensor(a.astype(np.float32), requires_grad=True), torch.tensor(a)
    theirs.requires_grad_()
    for t, x in ((ht, mine), (torch, theirs)):
        (t.linalg.cholesky(x) ** 3).sum().backward()
    want = torch.linalg.cholesky(theirs).detach().numpy()
    np.testing.assert_allclose(ht.linalg.cholesky(mine).detach().numpy(), want, atol=1e-4)
    size = float(theirs.grad.abs().max())
    np.testing.assert_allclose(mine.grad.numpy(), theirs.grad.numpy(), atol=1e-4 * size)


@pytest.mark.parametrize("n", [PANEL, 2 * PANEL + 1])
def test_sizes_around_panels(n: int) -> None:
    a = RNG.normal(size=(n, n))
    x = ht.tensor(a.astype(np.float32))
    np.testing.assert_allclose((ht.linalg.inv(x) @ x).numpy(), np.eye(n), atol=1e-3)
    packed, swaps = ht.linalg.lu_factor(x)
    want, theirs = torch.linalg.lu_factor(torch.tensor(a))
    np.testing.assert_array_equal(swaps.numpy(), theirs.numpy())
    np.testing.assert_allclose(packed.numpy(), want.numpy(), atol=1e-3)
    q, up = ht.linalg.qr(x)
    np.testing.assert_allclose((q @ up).numpy(), a, atol=1e-4)
    np.testing.assert_allclose((q.T @ q).numpy(), np.eye(n), atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (2, 0, 3), (0, N, N)])
def test_factors_of_nothing_have_their_shapes(shape: tuple[int, ...]) -> None:
    for name in ("qr", "lu"):
        got, want = (getattr(t.linalg, name)(t.zeros(shape)) for t in (ht, torch))
        assert [tuple(x.shape) for x in got] == [tuple(x.shape) for x in want]


def test_matrices_of_zeros_and_factors_without_exchanges() -> None:
    a = RNG.normal(size=(3, 2 * N, N))
    a[1], a[2, :, 5] = 0, 0
    x = ht.tensor(a.astype(np.float32))
    for factors in (ht.linalg.qr(x), ht.linalg.lu(x)):
        np.testing.assert_allclose(ht.linalg.multi_dot([*factors]).numpy(), a, atol=1e-4)
    _, low, up = ht.linalg.lu(ht.tensor(HEAVY.astype(np.float32)), pivot=False)
    np.testing.assert_allclose((low @ up).numpy(), HEAVY, atol=1e-4)


def test_the_gradient_of_a_determinant_of_zero() -> None:
    a = HEAVY[0] / N
    a[:, -1] = 0
    x = ht.tensor(a.astype(np.float32), requires_grad=True)
    ht.linalg.det(x).backward()
    want = [np.linalg.det(np.where(np.arange(N) == N - 1, np.eye(N)[:, [i]], a)) for i in range(N)]
    np.testing.assert_allclose(x.grad.numpy()[:, -1], want, rtol=1e-3, atol=1e-4)


def test_a_second_derivative() -> None:
    def run(t: Any, a: Any) -> Any:
        (first,) = t.autograd.grad(t.linalg.inv(a).sum(), a, create_graph=True)
        return t.autograd.grad((first * first).sum(), a)[0]

    got = run(ht, ht.tensor(HEAVY[0].astype(np.float32), requires_grad=True))
    want = run(torch, torch.tensor(HEAVY[0], requires_grad=True)).numpy()
    np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize(
    "factors",
    [
        linear.cholesky,
        linear.inv,
        lambda a: linear.qr(a).R,
        lambda a: linear.slogdet(a).logabsdet,
        lambda a: spectral.eigh(a).eigenvalues,
        lambda a: spectral.svd(a).S,
    ],
)
def test_graphs_do_not_grow_with_columns(factors: Callable[[Any], Any]) -> None:
    def size(n: int) -> int:
        return len(list(toposort([factors(g.input(0, Type((n, n), DType.F32)))])))

    many = BLOCK * BLOCKS  # of fewer there are a few blocks
    assert size(many) == size(2 * many)


def _multiplications(outputs: Sequence[Node]) -> int:
    """Those of products, also in the steps of loops."""
    found = 0
    for n in toposort(outputs):
        if n.op == "loop":
            found += n["steps"] * _multiplications(n["body"].outputs)
        elif n.op == "matmul":
            found += n.type.size * n.srcs[0].shape[-1]
    return found


def test_products_are_of_what_is_left() -> None:
    n, right = 8 * BLOCK, 100
    a, b = (g.input(i, Type((n, k), DType.F32)) for i, k in enumerate((n, right)))
    assert _multiplications([linear.cholesky(a)]) < 0.55 * n**3
    solved = linear.solve_triangular(a, b, upper=False)
    assert _multiplications([solved]) < 0.55 * n * n * right
