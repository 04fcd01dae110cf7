"""Derivatives on request, gradients that users write, and mixed precision, as PyTorch has them."""

import math

import numpy as np
import pytest
import torch

import stack.framework as ht
from stack.framework import nn

BOTH = pytest.mark.parametrize("lib", [ht, torch], ids=["here", "torch"])


def polar(lib):
    """A function of two outputs whose gradient is written by hand."""

    class Polar(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            r = (x * x + y * y).sqrt()
            ctx.save_for_backward(x, y, r)
            return r, x / r

        @staticmethod
        def backward(ctx, dr, dc):
            x, y, r = ctx.saved_tensors
            return dr * x / r + dc * y * y / r**3, dr * y / r - dc * x * y / r**3

    return Polar


@BOTH
def test_a_gradient_that_is_written_by_hand(lib):
    x, y = (lib.tensor(v, requires_grad=True) for v in ([3.0, 1.0], [4.0, -2.0]))
    r, c = polar(lib).apply(x * 2, y)
    (r * lib.tensor([1.0, 3.0]) + c * c).sum().backward()
    u, v = (lib.tensor(w, requires_grad=True) for w in ([3.0, 1.0], [4.0, -2.0]))
    r = (4 * u * u + v * v).sqrt()
    (r * lib.tensor([1.0, 3.0]) + (2 * u / r) ** 2).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), u.grad.numpy(), rtol=1e-5)
    np.testing.assert_allclose(y.grad.numpy(), v.grad.numpy(), rtol=1e-5)


@BOTH
def test_setup_context_and_second_derivatives(lib):
    class Cube(lib.autograd.Function):
        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, d):
            (x,) = ctx.saved_tensors
            return 3 * x * x * d

    x = lib.tensor([2.0, -1.0], requires_grad=True)
    (first,) = lib.autograd.grad(Cube.apply(x).sum(), x, create_graph=True)
    (second,) = lib.autograd.grad(first.sum(), x)
    assert first.tolist() == [12, 3]
    assert second.tolist() == [12, -6]


def test_a_wrong_backward_is_named():
    class Wrong(ht.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x + y

        @staticmethod
        def backward(ctx, d):
            return d

    x = ht.ones(2, requires_grad=True)
    with pytest.raises(
        ht.GradientError, match=r"Wrong\.backward gives 1 gradients for 2 arguments"
    ):
        Wrong.apply(x, x).sum().backward()


@BOTH
def test_inputs_that_do_not_count(lib):
    x, y = lib.ones(1, requires_grad=True), lib.ones(1, requires_grad=True)
    with pytest.raises(RuntimeError):
        lib.autograd.grad(x * 2, y)
    assert lib.autograd.grad(x * 2, [x, y], allow_unused=True)[1] is None
    assert lib.autograd.grad(x * 2, y, materialize_grads=True)[0].tolist() == [0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what torch.func imports
def test_derivatives_of_functions_are_torchs(draw_floats):
    a, b = draw_floats((3,), (3,))

    def f(x, y):
        return (x.sin() * y * y).sum()

    found = []
    for lib in (ht, torch):
        x, y = lib.tensor(a), lib.tensor(b)
        gradient = lib.func.grad(f, argnums=(0, 1))(x, y)
        value, along = lib.func.jvp(lambda x: x.sin() * x, (x,), (y,))
        matrix = lib.func.jacrev(lambda x: x.exp() * x.sum())(x)
        second = lib.func.hessian(lambda x: (x**3).sum() * x[0])(x)
        rows = lib.func.vmap(lambda u, v: (u * v).sum(), in_dims=(0, None))(lib.stack([x, y]), y)
        _, pull = lib.func.vjp(lambda x: x * x, x)
        found.append([*gradient, value, along, matrix, second, rows, *pull(y)])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=2e-5, atol=2e-6)


def test_a_module_is_called_with_other_parameters():
    model = nn.Linear(2, 1)
    before = model.weight
    state = {"weight": ht.ones(1, 2), "bias": ht.zeros(1)}
    assert ht.func.functional_call(model, state, (ht.ones(1, 2),)).tolist() == [[2]]
    assert model.weight is before


@BOTH
def test_the_scale_follows_gradients_that_are_not_finite(lib):
    p = lib.nn.Parameter(lib.ones(2))
    optimizer = lib.optim.SGD([p], lr=1.0)
    scaler = lib.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    seen = []
    for factor in (1.0, math.inf, 0.5, 0.25):
        optimizer.zero_grad()
        scaler.scale((p * lib.tensor([factor, 1.0])).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        seen.append((p.tolist(), scaler.get_scale()))
    assert seen == [([0, 0], 8), ([0, 0], 4), ([-0.5, -1], 4), ([-0.75, -2], 8)]


@BOTH
def test_modes_are_switches_blocks_and_decorators(lib):
    x = lib.ones(1, requires_grad=True)

    @lib.no_grad
    def bare():
        return (x * 2).requires_grad

    @lib.inference_mode()
    def called():
        return (x * 2).requires_grad

    assert (bare(), called(), lib.is_grad_enabled()) == (False, False, True)
    lib.set_grad_enabled(False)
    assert not (x * 2).requires_grad
    with lib.enable_grad():
        assert (x * 2).requires_grad
    lib.set_grad_enabled(True)
    with lib.set_grad_enabled(False):
        assert not lib.is_grad_enabled()
    assert lib.is_grad_enabled()


AT_ZERO = {
    "softplus": lambda F, x: F.softplus(x, beta=2.0),
    "logsigmoid": lambda F, x: F.logsigmoid(x),
    "mish": lambda F, x: F.mish(x),
    "cross entropy": lambda F, x: F.binary_cross_entropy_with_logits(x, x.detach() + 0.3),
    "soft margin": lambda F, x: F.soft_margin_loss(x, x.detach() + 1),
}


@pytest.mark.parametrize("name", AT_ZERO)
def test_what_is_smooth_has_its_first_and_second_derivative_at_zero(name):
    """Where a layer begins with zeros, as the last one of many models does."""
    found = []
    for lib in (ht, torch):
        x = lib.zeros(3, requires_grad=True)
        y = AT_ZERO[name](lib.nn.functional, x).sum()
        (first,) = lib.autograd.grad(y, x, create_graph=True)
        (second,) = lib.autograd.grad(first.sum(), x)
        found.append([first.detach().numpy(), second.numpy()])
    np.testing.assert_allclose(*found, 1e-5, 1e-6)


def test_the_derivative_of_x_log_y_by_a_zero_is_the_logarithm():
    for function in ("xlogy", "xlog1py"):
        grads = []
        for lib in (ht, torch):
            x, y = (lib.tensor(v, requires_grad=True) for v in ([0.0, 0.0, 2.0], [3.0, 0.7, 0.5]))
            getattr(lib.special, function)(x, y).sum().backward()
            grads.append(np.stack([x.grad.numpy(), y.grad.numpy()]))
        np.testing.assert_allclose(*grads, 1e-6)
