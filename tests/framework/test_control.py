"""Loops and branches as data against PyTorch's own loops over the same functions."""

import numpy as np
import pytest
import torch

import stack.framework as ht
from hal.tile.node import toposort
from stack.framework import nn
from stack.framework.control import map as mapped
from tests.draw import stream


def unrolled(combine, init, xs, reverse=False):
    """What a scan means, in PyTorch."""
    carry, ys, steps = init, {}, range(len(xs[0]))
    for i in reversed(steps) if reverse else steps:
        carry, ys[i] = combine(carry, tuple(x[i] for x in xs))
    return carry, tuple(torch.stack([ys[i][k] for i in steps]) for k in range(len(ys[0])))


def both(program, arrays):
    """The program's results and gradients in PyTorch, ours, and ours captured."""
    found = []
    for space, captured in ((torch, False), (ht, False), (ht, True)):
        leaves = [space.tensor(a, requires_grad=True) for a in arrays]

        def run(space=space, leaves=leaves):
            results, loss = program(space, leaves)
            loss.backward()
            return results

        results = (ht.jit(run) if captured else run)()
        tensors = (*results, *(leaf.grad for leaf in leaves))
        found.append([t.detach().numpy() for t in tensors])
    return found


def assert_alike(found):
    expected, *ours = found
    for mine in ours:
        for a, b in zip(mine, expected, strict=True):
            assert a.dtype == b.dtype
            most = max(1.0, np.abs(b).max(initial=0))  # rounding is of the largest terms of a sum
            np.testing.assert_allclose(a, b, 3e-5, 3e-5 * most)


def arrays(*shapes):
    rng = np.random.default_rng(stream("control").getrandbits(32))
    return [rng.normal(size=s).astype(np.float32) for s in shapes]


@pytest.mark.parametrize("device", ["interpreter:0", "cpu:0"])
@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_has_the_values_and_gradients_of_the_unrolled_loop(device, reverse):
    """It carries two element types, reads a tensor from outside, once through a view, and takes two
    arrays."""
    ht.set_default_device(device)

    def program(space, leaves):
        w, h, x, u = leaves

        def combine(carry, row):
            (state, count), (a, b) = carry, row
            state = space.tanh(a @ w + state @ w.t()) * (b + 1)
            return (state, count + 1), (state.sum(0) * count, count)

        init, xs = (h, space.tensor(3)), (x, u)
        loop = unrolled if space is torch else ht.scan
        (state, count), (sums, counts) = loop(combine, init, xs, reverse=reverse)
        loss = (state * state).sum() + (sums * sums).mean()
        return (state, count, sums, counts), loss

    assert_alike(both(program, arrays((5, 5), (2, 5), (4, 2, 5), (4, 2, 1))))


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 64, 65, 96, 97, 101, 193, 290])
@pytest.mark.parametrize("reverse", [False, True])
def test_steps_that_are_submitted_at_once_change_places(steps, reverse):
    """Two carried values that change their roles in each step, around the numbers of steps that
    are calls of the graph around the loop, and beyond, of which several are one submission."""
    rows = np.arange(steps * 2, dtype=np.float32).reshape(steps, 2)
    (a, b), out = ht.scan(
        lambda c, x: ((c[1], c[0] * 0.5 + x), c[0] - x),
        (ht.tensor([1.0, 2.0]), ht.tensor([3.0, 4.0])),
        ht.tensor(rows),
        reverse=reverse,
    )
    x, y, each = np.float32([1, 2]), np.float32([3, 4]), np.zeros_like(rows)
    for i in reversed(range(steps)) if reverse else range(steps):
        each[i] = x - rows[i]
        x, y = y, x * np.float32(0.5) + rows[i]
    for got, want in ((a, x), (b, y), (out, each)):
        np.testing.assert_array_equal(got.numpy(), want)


def test_a_scan_within_a_scan_and_of_no_steps():
    def program(space, leaves):
        w, x = leaves

        def inner(carry, row):
            return carry * w + row[0], (carry,)

        def outer(carry, row):
            loop = unrolled if space is torch else ht.scan
            end, (each,) = loop(inner, carry, (row[0],))
            return end, (each.sum(0),)

        loop = unrolled if space is torch else ht.scan
        end, (sums,) = loop(outer, w * 0.5, (x,))
        return (end, sums), (end + sums.sum(0)).sum()

    assert_alike(both(program, arrays((3,), (2, 4, 3))))
    carry, y = ht.scan(lambda c, x: (c + x, x * 2), ht.ones(3), ht.zeros(0, 3))
    assert carry.tolist() == [1, 1, 1]
    assert y.shape == (0, 3)


def test_second_derivatives_flow_through_a_scan():
    def program(space, leaves):
        w, x = leaves

        def combine(carry, row):
            return space.sin(carry * w) + row[0], (carry * carry,)

        end, (ys,) = (unrolled if space is torch else ht.scan)(combine, w, (x,))
        grad = torch.autograd.grad if space is torch else ht.autograd.grad
        (first,) = grad((end.sum() + ys.sum(),), (w,), create_graph=True)
        return (first,), (first * first).sum()

    expected, eager, captured = both(program, arrays((3,), (3, 3)))
    for mine in (eager, captured):
        for a, b in zip(mine, expected, strict=True):
            np.testing.assert_allclose(a, b, 1e-3, 1e-4)


def test_a_scan_reads_parameters_that_an_optimizer_holds():
    w = nn.Parameter(ht.tensor([2.0]))
    optimizer = ht.optim.SGD([w, nn.Parameter(ht.ones(3))], lr=1.0)
    last, _ = ht.scan(lambda h, x: (h * w + x, h), ht.ones(1), ht.ones(2, 1))
    last.sum().backward()  # w^2 + w + 1
    optimizer.step()
    assert w.item() == -3


def test_random_numbers_reads_and_changes_are_refused_in_a_body():
    total, x = ht.zeros(()), ht.arange(3.0)

    def changes(carry, row):
        total.add_(row)
        return carry, row

    for body, error, text in (
        (lambda c, r: (c + float(r), r), ht.TracingError, "is needed"),
        (lambda c, r: (c + ht.randn(()), r), ht.TracingError, "draws random numbers"),
        (changes, ht.TracingError, "changes a tensor of f32"),
        (lambda c, r: (c.double(), r), ht.TensorError, "is f32, and f64 after"),
        (lambda c, r: ((c, c), r), ht.TensorError, "another structure"),
    ):
        with pytest.raises(error, match=text):
            ht.scan(body, ht.tensor(0.0), x)
    assert total.item() == 0


def test_a_while_loop_runs_as_often_as_its_values_say():
    def program(x, n):
        return ht.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * 2 + i), (ht.tensor(0), x))

    captured = ht.jit(program)
    for count in (5, 0, 2):
        expected = torch.tensor([1.0, 2.0])
        for i in range(count):
            expected = expected * 2 + i
        for run in (program, captured):
            i, y = run(ht.tensor([1.0, 2.0]), ht.tensor(count))
            assert (i.item(), y.tolist()) == (count, expected.tolist())
    assert captured.traced == 1
    weight = ht.ones(2, requires_grad=True)
    with pytest.raises(ht.TracingError, match="has no gradient"):
        ht.jit(lambda x: ht.while_loop(lambda y: y.sum() < 9, lambda y: y + weight, (x,)))(
            x := weight
        )
    assert ht.while_loop(lambda y: y.sum() < 9, lambda y: y + weight, (x,))[0].tolist() == [5, 5]


@pytest.mark.parametrize("device", ["interpreter:0", "cpu:0"])
def test_a_branch_is_chosen_when_the_plan_runs(device):
    ht.set_default_device(device)
    w = ht.tensor([1.0, 2.0, 3.0], requires_grad=True)

    def program(taken, x):
        y = ht.cond(taken, lambda x: (x * w).exp(), lambda x: (x / w).log(), (x,))
        y.sum().backward()
        return y

    captured = ht.jit(program)
    for x in ([1.0, 2.0, 0.5], [-1.0, -2.0, -3.0]):  # logarithms of which would be NaN
        peer = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        y = (torch.tensor(x) * peer).exp() if x[0] < 0 else (torch.tensor(x) / peer).log()
        y.sum().backward()
        for run in (program, captured):
            w.grad = None
            found = run(ht.tensor(x[0] < 0), ht.tensor(x))
            np.testing.assert_allclose(found.numpy(), y.detach().numpy(), 1e-6)
            np.testing.assert_allclose(w.grad.numpy(), peer.grad.numpy(), 1e-6)
    with pytest.raises(ht.TensorError, match="branches give the same"):
        ht.jit(lambda p, x: ht.cond(p, lambda x: x, lambda x: x.double(), (x,)))(ht.tensor(True), w)


def test_map_and_associative_scan_are_compositions():
    (x,) = arrays((5, 3))
    doubled = mapped(lambda row, factor: row * factor, ht.tensor(x), ht.tensor(2.0))
    np.testing.assert_array_equal(doubled.numpy(), x * 2)
    for reverse in (False, True):
        gates, values = ht.tensor(np.abs(x)), ht.tensor(x)
        _, found = ht.associative_scan(
            lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (gates, values), 0, reverse
        )
        total, expected = np.zeros(3, np.float32), np.empty_like(x)
        for i in reversed(range(5)) if reverse else range(5):
            total = total * np.abs(x[i]) + x[i]
            expected[i] = total
        np.testing.assert_allclose(found.numpy(), expected, 1e-5, 1e-5)


def test_an_lstm_compiles_as_many_kernels_for_many_steps_as_for_few():
    ht.set_default_device("cpu:0")
    layer, programs = nn.LSTM(3, 4), []
    for steps in (2, 9):
        engine = ht.devices.engine("cpu:0")
        step = ht.jit(lambda x: layer(x)[0].sum(), dynamic=False)
        before = engine.programs.count
        step(ht.ones(steps, 1, 3)).item()
        programs.append(engine.programs.count - before)
    assert programs[1] <= programs[0] + 3  # those of the inputs' part and of the sum


def test_products_of_all_steps_are_one_before_or_after_the_loop():
    """A body that reads its weights by what a row gives, and by what is carried, in several forms,
    one of which is their sum."""

    def program(space, leaves):
        w, u, b, h, x = leaves

        def combine(state, row):
            seen = space.tanh(row[0] @ w + b)
            state = space.sin(seen @ u.t() + state @ (u + w) + b)
            return state, ((state @ w).sum(0), seen.mean())

        end, (sums, means) = (unrolled if space is torch else ht.scan)(combine, h, (x,))
        return (end, sums, means), (end * end).sum() + (sums * means[:, None]).sum()

    shapes = ((9, 9), (9, 9), (9,), (3, 9), (4, 3, 9))
    assert_alike(both(program, [0.4 * a for a in arrays(*shapes)]))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_recurrent_layer_multiplies_once_a_step_in_each_direction(kind):
    """By the weights of what is carried: those of inputs, and the weights' gradients, are products
    over all steps, and a step backwards does not repeat the forward one's."""
    layer, x = getattr(nn, kind)(8, 8), ht.ones(5, 2, 8, requires_grad=True)
    layer(x)[0].sum().backward()
    gradients = [p.grad.node for p in (x, *layer.parameters())]
    loops = {n["body"] for n in toposort(gradients) if n.op == "loop"}
    products = [sum(n.op == "matmul" for n in toposort(body.outputs)) for body in loops]
    assert products == [1, 1]
