"""Gradients stop, gather and repeat as they should."""

import copy

import numpy as np
import pytest
import stack.framework.nn.functional as F
import torch

import stack.framework as ht
from hal.core.dtypes import DType
from hal.tile.node import Type, toposort
from stack import ops as g
from stack.framework.reverse import gradients


def leaf(*values):
    return ht.tensor(np.array(values, np.float32), requires_grad=True)


def test_gradients_add_up_over_calls():
    x = leaf(1, 2)
    (x * x).sum().backward()
    first = x.grad
    (x * 3).sum().backward()
    assert x.grad is first
    assert x.grad.tolist() == [5, 7]


def test_equal_leaves_have_gradients_of_their_own():
    a, b = ht.zeros(3, requires_grad=True), ht.zeros(3, requires_grad=True)
    (a * 2 + b * 3).sum().backward()
    assert (a.grad.tolist(), b.grad.tolist()) == ([2] * 3, [3] * 3)


def test_leaves_that_have_one_gradient_add_to_it_both():
    found = []
    for lib in (ht, torch):
        x, y, both = (lib.ones(2) for _ in range(3))
        x.requires_grad_()
        y.requires_grad_()
        x.grad = y.grad = both
        (x * 3 + y * 5).sum().backward()
        found.append([t.tolist() for t in (both, x.grad, y.grad)])
    assert found[0] == found[1] == [[9, 9]] * 3


@pytest.mark.parametrize("read", ["twice", "itself", "a part", "a copy"])
def test_a_captured_function_adds_to_gradients_that_nothing_else_is(read):
    """Outside of it one backward pass, within it another one that adds to that: what the function
    knows by two names is refused with both."""
    x, y = leaf(1, 1), leaf(1, 1)
    (x * 3 + y * 5).sum().backward()
    held = {"itself": x.grad, "a part": x.grad[:1], "a copy": x.grad.clone()}.get(read)
    if read == "twice":
        y.grad = x.grad

    @ht.jit
    def step(by):
        loss = (x * by + y * by).sum()
        loss.backward()
        return loss if held is None else loss + held.sum()

    if read != "a copy":
        with pytest.raises(ht.GradientError, match=r"adds to a gradient of f32.2. .*by clone"):
            step(ht.ones(2))
        return
    assert [step(ht.ones(2)).item() for _ in range(2)] == [10, 10]
    assert [x.grad.tolist(), y.grad.tolist()] == [[5, 5], [7, 7]]


def test_nothing_flows_through_detach():
    x = leaf(3)
    (x * x.detach()).sum().backward()
    assert x.grad.tolist() == [3]


def test_nothing_flows_through_no_grad():
    x = leaf(3)
    with ht.no_grad():
        y = x * x
    assert not y.requires_grad
    (x * y).sum().backward()
    assert x.grad.tolist() == [9]


def test_no_grad_decorates_and_nests():
    @ht.no_grad()
    def twice(x):
        with ht.enable_grad():
            inside = x * 2
        return inside.requires_grad, (x * 2).requires_grad

    assert twice(leaf(1)) == (True, False)
    assert (leaf(1) * 2).requires_grad


def test_backward_works_after_the_loss_was_read():
    x = leaf(2, 3)
    y = (x * x).sum()
    assert y.item() == 13
    y.backward()
    assert x.grad.tolist() == [4, 6]


def test_a_vector_needs_its_derivative():
    x = leaf(1, 2)
    with pytest.raises(
        ht.GradientError, match=r"shape \[2\] needs the derivative.*\n.*test_autograd.py"
    ):
        (x * 2).backward()
    (x * 2).backward(ht.tensor([1.0, 10.0]))
    assert x.grad.tolist() == [2, 20]


def test_backward_from_a_constant_is_refused():
    with pytest.raises(ht.GradientError, match="nothing that requires a gradient"):
        ht.ones(()).backward()


def test_functional_gradients_touch_no_leaf():
    x, y = leaf(2), leaf(5)
    z = (x * x * y).sum()
    dx, dy = ht.grad(z, (x, y))
    assert (dx.tolist(), dy.tolist(), x.grad) == ([20], [4], None)


def test_gradient_by_a_value_in_between():
    x = leaf(2)
    y = x * 3
    z = (y * y).sum()
    dy, dx = ht.grad(z, (y, x))
    assert (dy.tolist(), dx.tolist()) == ([12], [36])


def test_second_derivative():
    x = leaf(0.3, -0.7)
    (first,) = ht.grad(x.tanh().sum(), x, create_graph=True)
    (second,) = ht.grad(first.sum(), x)
    t = np.tanh(x.numpy())
    np.testing.assert_allclose(second.numpy(), -2 * t * (1 - t * t), rtol=1e-5)


def test_a_leaf_that_requires_a_gradient_changes_only_under_no_grad():
    x = leaf(1)
    with pytest.raises(ht.GradientError, match=r"only under no_grad\(\).*\n.*test_autograd.py"):
        x += 1
    with ht.no_grad():
        x += 1
    assert x.is_leaf
    (x * x).sum().backward()
    assert (x.tolist(), x.grad.tolist()) == ([2], [4])


@pytest.mark.parametrize(
    "values", [lambda y: y, lambda y: y.detach(), lambda y: y[:], lambda y: -y]
)
def test_what_no_gradient_flows_from_is_copied_to_a_leaf_only_under_no_grad(values):
    x, source = leaf(1, 2), values(ht.tensor([3.0, 4.0]))
    for refused in (x, copy.deepcopy(x), x.detach().requires_grad_()):
        with pytest.raises(ht.GradientError, match=r"only under no_grad\(\)"):
            refused.copy_(source)
    assert x.tolist() == [1, 2]
    with ht.no_grad():
        x.copy_(source)
    assert (x.is_leaf, x.tolist()) == (True, source.tolist())


def test_in_place_on_a_computed_value_is_differentiated():
    x = leaf(3)
    y = x * 2
    y *= x
    y.sum().backward()
    assert x.grad.tolist() == [12]


def test_old_values_keep_their_gradient_when_the_leaf_changes():
    x = leaf(3)
    y = (x * x).sum()
    with ht.no_grad():
        x.copy_(ht.tensor([100.0]))
    assert ht.grad(y, x)[0].tolist() == [0]  # x is another value now
    assert y.item() == 9


def test_only_float_leaves_require_gradients():
    with pytest.raises(ht.GradientError, match="int64"):
        ht.arange(3).requires_grad_()
    with pytest.raises(ht.GradientError, match="only leaves"):
        (leaf(1) * 2).requires_grad_(False)


def test_a_deep_graph_needs_no_recursion():
    x = leaf(1)
    y = x
    for _ in range(3000):
        y = y * 1.0001
    (d,) = ht.grad(y.sum(), x)
    np.testing.assert_allclose(d.numpy(), 1.0001**3000, rtol=1e-3)


def test_shared_values_gather_all_paths(agree, draw_floats):
    def both(x):
        h = x * x
        return (h + h.transpose(0, 1) @ h).sum(0) * h.mean()

    agree(both, both, *draw_floats((3, 3)))


def test_an_unreached_leaf_has_no_gradient():
    x, y = leaf(1), leaf(2)
    x.sum().backward()
    assert y.grad is None
    assert torch.zeros(1, requires_grad=True).grad is None


def test_a_view_that_changes_nothing_is_detached_under_no_grad_too():
    w = leaf(2)
    with ht.no_grad():
        same = w.reshape(1)
    (w * same).sum().backward()
    assert w.grad.tolist() == [2]


@pytest.mark.parametrize(
    "asked", ["nobody", "a hook", "retain_grad", "grad", "another use", "both ways"]
)
def test_what_is_between_a_function_of_several_ways_and_its_argument_has_its_gradient(asked):
    found = []
    for lib in (ht, torch):
        x = lib.tensor(np.linspace(-3, 3, 13).astype(np.float32), requires_grad=True)
        between = lib.tanh(x * 0.5)
        if asked == "a hook":
            between.register_hook(lambda d: d * 3)
        if asked in ("retain_grad", "both ways"):
            between.retain_grad()
        y = x * between + lib.exp(between) * 0.25
        if asked in ("another use", "both ways"):
            y = y + lib.sin(between).flip(0)
        if asked == "grad":
            found.append([t.tolist() for t in lib.autograd.grad(y.sum(), [between, x])])
            continue
        y.sum().backward()
        asks = asked in ("retain_grad", "both ways")
        found.append([t.grad.tolist() for t in ([x, between] if asks else [x])])
    np.testing.assert_allclose(found[0], found[1], rtol=2e-6, atol=1e-6)


def test_the_derivative_of_an_activation_is_one_factor():
    """Of the forward pass alone, so that it can be kept in the place of what it is computed of."""
    x, d = (g.input(slot, Type((7,), DType.F32)) for slot in range(2))
    for activation in (F.gelu, F.silu, F.mish, F.softplus):
        y = activation(ht.Tensor(x, "cpu:0")).node
        (by,) = gradients([(y, d)], {x}.__contains__).values()
        assert by.op == "mul"
        assert d in by.srcs
        (factor,) = (s for s in by.srcs if s is not d)
        assert d not in toposort([factor])
