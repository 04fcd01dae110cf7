"""Derivatives on request, gradients that users write, and mixed precision, as PyTorch has them."""

import math

import numpy as np
import pytest
import torch

import stack.framework as ht
from stack.framework import nn
from stack.framework.errors import TensorError
from tests.draw import sample

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


def rows(x, w):
    return (w @ x).sin()


FUNCTIONS = {
    "grad of grad": lambda t, f, x, y, w: f.grad(f.grad(f.grad(lambda a: a**4)))(x[0]),
    "grad by two": lambda t, f, x, y, w: f.grad(lambda a, b: (a.sin() * b).sum(), (0, 1))(x, y),
    "grad of a tree": lambda t, f, x, y, w: f.grad_and_value(
        lambda p: (p["x"] ** 2).sum() + p["y"][0].sum()
    )({"x": x, "y": [y]}),
    "grad, more": lambda t, f, x, y, w: f.grad(lambda a: ((a * a).sum(), a * 2), has_aux=True)(x),
    "jacrev": lambda t, f, x, y, w: f.jacrev(rows)(x, w),
    "jacfwd": lambda t, f, x, y, w: f.jacfwd(rows)(x, w),
    "jacrev by two": lambda t, f, x, y, w: f.jacrev(lambda a, b: (a * b, b.sum()), (0, 1))(x, y),
    "jacfwd by two": lambda t, f, x, y, w: f.jacfwd(lambda a, b: (a * b, b.sum()), (0, 1))(x, y),
    "jacrev of jacrev": lambda t, f, x, y, w: f.jacrev(f.jacrev(rows))(x, w),
    "hessian": lambda t, f, x, y, w: f.hessian(lambda v: rows(v, w).sum() * v[0])(x),
    "hessian of a tree": lambda t, f, x, y, w: f.hessian(lambda d: (d["a"] * d["b"]).sum() ** 2)(
        {"a": x, "b": y}
    ),
    "jvp": lambda t, f, x, y, w: f.jvp(lambda a, b: (a * b, a.sin()), (x, y), (y, x)),
    "jvp of grad": lambda t, f, x, y, w: f.jvp(f.grad(lambda v: rows(v, w).sum()), (x,), (y,)),
    "vjp, more": lambda t, f, x, y, w: (lambda found: (found[0], found[1](y), found[2]))(
        f.vjp(lambda a: (a * a, a + 1), x, has_aux=True)
    ),
    "linearize": lambda t, f, x, y, w: f.linearize(lambda v: rows(v, w), x)[1](y),
    "vmap of grad": lambda t, f, x, y, w: f.vmap(
        f.grad(lambda p, a: (p["w"] * a).sum().sin()), in_dims=(None, 0)
    )({"w": x}, w),
    "vmap of trees": lambda t, f, x, y, w: f.vmap(
        lambda d, a, b: {"s": d["w"] + a, "t": (a.sum(), d["w"] * b)},
        in_dims=({"w": 1}, 0, None),
        out_dims={"s": 1, "t": (0, 0)},
    )({"w": w.T.contiguous()}, w, x),
    "jacobian": lambda t, f, x, y, w: t.autograd.functional.jacobian(
        lambda a, b: (a * b, a.sum()), (x, y)
    ),
    "hessians": lambda t, f, x, y, w: t.autograd.functional.hessian(
        lambda a, b: (a * b).sum() ** 2, (x, y)
    ),
    "functional": lambda t, f, x, y, w: [
        t.autograd.functional.vjp(lambda v: rows(v, w), x, w[:, 0].contiguous()),
        t.autograd.functional.jvp(lambda v: rows(v, w), x, y),
        t.autograd.functional.hvp(lambda v: (v**3).sum(), x, y),
        t.autograd.functional.vhp(lambda a, b: (a * b).sum() ** 2, (x, y), (y, x)),
    ],
}


def flat(value):
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in flat(v)] if isinstance(value, tuple | list) else [value]


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what torch.func imports
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr:UserWarning")  # its linearize
@pytest.mark.parametrize("name", sample("functions of functions", list(FUNCTIONS), 6))
def test_derivatives_of_functions_are_torchs(name, draw_floats):
    arrays, found = draw_floats((3,), (3,), (2, 3)), []
    for lib in (ht, torch):
        given = [lib.tensor(a) for a in arrays]
        made = flat(FUNCTIONS[name](lib, lib.func, *given))
        assert not any(x.requires_grad for x in made)
        found.append(made)
    for mine, theirs in zip(*found, strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=5e-5, atol=5e-6)


def test_derivatives_of_functions_go_on_outside_of_them():
    found = []
    for lib in (ht, torch):
        x, w = (lib.tensor(v, requires_grad=True) for v in ([0.5, -1.0], [2.0, 3.0]))
        lib.func.grad(lambda a, w=w: (a**3 * w).sum())(x).sum().backward()
        found.append([x.grad.tolist(), w.grad.tolist()])
        matrix = lib.autograd.functional.jacobian(lambda a: a**3, x, create_graph=True)
        matrix.sum().backward()
        found[-1].append(x.grad.tolist())
    assert found[0] == found[1]


def test_models_are_stacked_and_called_together():
    models = [nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).eval() for _ in range(2)]
    x = ht.randn(4, 2)
    states = ht.func.stack_module_state(models)
    made = ht.func.vmap(lambda p, b: ht.func.functional_call(models[0], (p, b), (x,)))(*states)
    for one, model in zip(made, models, strict=True):
        np.testing.assert_allclose(one.detach().numpy(), model(x).detach().numpy(), rtol=1e-5)
    ht.func.replace_all_batch_norm_modules_(models[0])
    assert list(models[0].buffers()) == []


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


def test_a_captured_scale_is_on_the_device_that_it_is_given():
    p = nn.Parameter(ht.ones(2, device="opencl:0"))
    optimizer = ht.optim.SGD([p], lr=1.0)
    scaler = ht.GradScaler("opencl:0", init_scale=8.0)

    @ht.jit
    def step(factor):
        optimizer.zero_grad()
        scaler.scale((p * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    for factor in (math.inf, 0.5):
        step(ht.tensor([factor, 1.0], device="opencl:0"))
    assert (p.tolist(), scaler.get_scale()) == ([0.5, 0], 4)


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_a_captured_step_is_left_out_where_gradients_are_not_finite(kind):
    """With its counts and moments, as the first one and later, and the scale goes on from there."""
    settings = {"SGD": {"lr": 0.5, "momentum": 0.9}, "AdamW": {"lr": 0.1}}[kind]
    found = []
    for lib in (ht, torch):
        p, q = (lib.nn.Parameter(lib.ones(n)) for n in (2, 3))
        optimizer = getattr(lib.optim, kind)([p, q], **settings)
        scaler = lib.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

        def step(factor, p=p, q=q, optimizer=optimizer, scaler=scaler):
            optimizer.zero_grad()
            loss = (p * factor).square().sum() + q.square().sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss

        run = ht.jit(step) if lib is ht else step
        seen = []
        for factor in (math.inf, 1.0, math.nan, 0.5, 0.25, 2.0):
            run(lib.tensor([factor, 1.0]))
            seen.append([*p.tolist(), *q.tolist(), scaler.get_scale()])
        found.append(seen)
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_a_step_of_ones_own_cannot_be_left_out_by_a_value_on_the_device():
    class Own(ht.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 1.0})

        def step(self):
            pass

    p = nn.Parameter(ht.ones(2))
    optimizer, scaler = Own([p]), ht.GradScaler()

    @ht.jit
    def step():
        scaler.scale(p.sum()).backward()
        scaler.step(optimizer)

    with pytest.raises(TensorError, match="Own has a step of its own"):
        step()


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


STRICT = {
    "all of it follows": lambda x, y: (x * x * y * y).sum(),
    "one input is not used": lambda x, y: (x * x).sum(),
    "no input is used": lambda x, y: x.detach().sum() + y.detach().sum(),
    "a second derivative is a constant": lambda x, y: (x * y).sum() + (x * x).sum(),
}


@pytest.mark.parametrize("case", STRICT)
@pytest.mark.parametrize("name", ["jacobian", "hessian", "vjp", "jvp", "vhp", "hvp"])
def test_strict_derivatives_refuse_what_pytorch_refuses(name, case):
    def called(lib):
        values = (lib.tensor([1.0, -2.0]), lib.tensor([0.5, 3.0]))
        along = lib.tensor(2.0) if name == "vjp" else values
        given = () if name in ("jacobian", "hessian") else (along,)
        try:
            found = getattr(lib.autograd.functional, name)(
                STRICT[case], values, *given, strict=True
            )
        except RuntimeError:
            return None
        return [np.asarray(x) for x in flat(found)]

    def flat(tree):
        return [x for part in tree for x in flat(part)] if isinstance(tree, tuple) else [tree]

    ours, theirs = called(ht), called(torch)
    assert (ours is None) == (theirs is None)
    for a, b in zip(ours or (), theirs or (), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_strict_forward_derivatives_are_refused():
    for lib in (ht, torch):
        with pytest.raises(RuntimeError, match="strict"):
            lib.autograd.functional.jacobian(
                lambda x: x * x, lib.tensor([1.0]), strict=True, strategy="forward-mode"
            )
