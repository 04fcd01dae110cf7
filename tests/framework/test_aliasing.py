"""Tensors that share memory, beside PyTorch's; `alias_programs` draws programs of them."""

import copy
import gc
import pickle

import numpy as np
import pytest
import torch

import stack.framework as ht
from stack.framework import nn, optim, store
from stack.framework.expr.public import METHODS
from stack.recorder.window import Window, steps_between
from tests.draw import stream
from tests.framework import alias_programs

SEED = stream("aliasing").randrange(10**6)


@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch's, of expanded tensors
@pytest.mark.parametrize("seed", range(SEED, SEED + 12))
def test_random_programs_agree_with_pytorch(seed):
    alias_programs.run(seed)


@pytest.mark.parametrize("name", ["view", "reshape"])
@pytest.mark.parametrize("shape", [(6, 4), (24,), (2, 3, 4), (4, 6), (3, 8), (1, 24, 1), (2, 12)])
@pytest.mark.parametrize(
    "move",
    [
        lambda x: x,
        lambda x: x.permute(1, 0, 2),
        lambda x: x.permute(0, 2, 1),
        lambda x: x.permute(2, 0, 1),
    ],
)
def test_another_shape_shares_memory_exactly_where_pytorch_does(name, shape, move):
    mine, theirs = move(ht.zeros(2, 3, 4)), move(torch.zeros(2, 3, 4))
    assert mine.stride() == theirs.stride()
    try:
        expected = getattr(theirs, name)(shape)
    except RuntimeError:
        with pytest.raises(ht.TensorError, match="use reshape"):
            mine.view(shape)
        return
    result = getattr(mine, name)(shape)
    assert result.link is not None or result.shape == mine.shape or not expected._is_view()
    if expected._is_view():
        assert result.stride() == expected.stride()
        result[(0,) * len(shape)] = 1
        assert mine.sum().item() == 1


@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch's, of old signatures
def test_every_operator_that_shares_memory_says_so():
    """Of the operators that only move elements, those that PyTorch makes views with."""
    x, peer = ht.zeros(2, 1, 4), torch.zeros(2, 1, 4)
    arguments = [(), (0,), (1,), (0, 1), (2, 0), ((1, 0, 2),), (0, 0, 1), (0, (2, 1)), ((8, 1),)]
    differ = []
    for name in METHODS:
        for args in arguments:
            try:
                expected, result = getattr(peer, name)(*args), getattr(x, name)(*args)
            except (TypeError, RuntimeError, IndexError, AttributeError, ValueError):
                continue
            pairs = [(expected, result)]
            if isinstance(expected, tuple | list):
                pairs = list(zip(expected, result, strict=True))
            for theirs, mine in pairs:
                if not isinstance(theirs, torch.Tensor) or not isinstance(mine, ht.Tensor):
                    continue
                shares = theirs.untyped_storage().data_ptr() == peer.untyped_storage().data_ptr()
                if shares != (mine is x or mine.link is not None):
                    differ.append((name, args))
    assert not differ


def test_a_window_writes_only_what_it_shows():
    whole = ht.tensor(np.arange(24, dtype=np.float32).reshape(4, 6))
    expected = whole.numpy()
    whole[1:4:2].t()[2:5].mul_(-1)
    expected[1:4:2].T[2:5] *= -1
    np.testing.assert_array_equal(whole.numpy(), expected)


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.detach()[:1], lambda x: x[0]])
def test_no_part_of_an_expanded_tensor_is_written(view):
    wide = ht.zeros(1, 3).expand(2, 3)
    with pytest.raises(ht.TensorError, match="lie in one place"):
        view(wide).add_(1)


@pytest.mark.parametrize("place", [[0, 2], [2, 1, 0], (slice(None), [2, 0]), ([0, 2], [1, 0])])
def test_what_lists_choose_of_a_window_is_written_there_alone(place):
    data = np.arange(12, dtype=np.float32).reshape(4, 3)
    x, truth = ht.tensor(data), torch.tensor(data)
    new = -truth[1:][place] - 1
    x[1:][place] = ht.tensor(new.numpy()) * 1
    truth[1:][place] = new
    np.testing.assert_array_equal(x.numpy(), truth.numpy())


def test_steps_are_found_between_values():
    x = ht.zeros(2, 3)
    y = x.t()[1:]
    steps = steps_between(x.node, y.node)
    window = Window.whole((2, 3)).through(steps)
    assert (window.shape, window.strides, window.offset) == ((2, 2), (1, 3), 1)
    assert window.read(x.node) is y.node
    assert steps_between(x.node, (x + 1).node) is None


@pytest.mark.parametrize("use", [lambda x: x.unbind(1)[0], lambda x: x + 1, lambda x: x[1:] * 2])
def test_a_copy_of_a_constant_that_has_a_history_is_used(use):
    results = []
    for api in (ht, torch):
        y = (api.ones(2, 3, requires_grad=True) * 2).reshape(3, 2)
        with api.no_grad():
            y.zero_()
        results.append(use(y.data.clone()).tolist())
    assert results[0] == results[1]


def test_a_jitted_function_writes_through_windows_on_outside_state():
    state = ht.zeros(4, 2)
    row, column = state[1], state.detach().t()[0]

    @ht.jit
    def step(x):
        row.add_(x)
        column.mul_(2)
        return state.sum()

    assert step(np.float32(1)).item() == 3
    assert step(np.float32(1)).item() == 8
    assert step.traced == 1
    assert state.tolist() == [[0, 0], [6, 2], [0, 0], [0, 0]]
    assert (row.tolist(), column.tolist()) == ([6, 2], [0, 6, 0, 0])


def test_a_window_that_a_jitted_function_changed_with_gradients_is_itself_again():
    w = ht.ones(2, requires_grad=True)
    state = ht.zeros(2)
    alias = state.detach()

    @ht.jit
    def step():
        (alias * w).sum().backward()
        w.grad = None
        alias.copy_(w * 3)
        return alias.sum()

    assert step().item() == 6
    assert not alias.requires_grad
    assert (alias.tolist(), state.tolist()) == ([3, 3], [3, 3])
    assert step().item() == 6
    state.zero_()
    assert alias.tolist() == [0, 0]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_of_models_learn_apart_and_keep_what_is_tied(copied):
    model = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    model.eval()
    tied = model.tied = model.children().__next__().weight
    twin = copied(model)
    assert twin.tied is next(iter(twin)).weight
    assert twin.tied is not tied
    optimizer = optim.SGD(twin.parameters(), lr=0.5)
    before = tied.numpy()
    np.testing.assert_array_equal(twin.tied.numpy(), before)

    @ht.jit
    def step(x):
        twin(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(2):
        step(np.ones((1, 2), np.float32))
    np.testing.assert_array_equal(tied.numpy(), before)
    assert (twin.tied.numpy() != before).any()
    twin.train()
    step(np.ones((1, 2), np.float32))
    assert step.traced == 2


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copied_optimizer_goes_on_with_the_copied_model(copied):
    model = nn.Linear(2, 1)
    optimizer = optim.AdamW(model.parameters(), lr=0.1, betas=(0.8, 0.9))

    def step(model, optimizer):
        optimizer.zero_grad()
        model(ht.ones(1, 2)).sum().backward()
        optimizer.step()

    step(model, optimizer)
    twin, again = copied((model, optimizer))
    for m, o in ((model, optimizer), (twin, again)):
        step(m, o)
    assert again.param_groups[0]["betas"] == (0.8, 0.9)
    assert twin.weight.tolist() == model.weight.tolist()
    step(twin, again)
    assert twin.weight.tolist() != model.weight.tolist()


def test_copies_share_memory_as_their_originals_do():
    x = ht.arange(6.0)
    y, z = copy.deepcopy([x[:3], x])
    z.fill_(1)
    assert (y.tolist(), x.tolist()) == ([1, 1, 1], [0, 1, 2, 3, 4, 5])
    y, z = pickle.loads(pickle.dumps([x[:3], x]))
    y.fill_(1)
    assert z.tolist() == [1, 1, 1, 3, 4, 5]
    w = ht.ones(2, requires_grad=True)
    for made in (copy.deepcopy, pickle.dumps):
        with pytest.raises(ht.GradientError, match="only leaves can be"):
            made(w * 2)


def test_copies_of_views_share_memory_and_no_gradient():
    w, x = ht.ones(2, requires_grad=True), ht.zeros(2)
    y, view = copy.deepcopy([x, x[:1]])
    y.copy_(w * 3)
    assert (y.requires_grad, view.requires_grad, view.tolist()) == (True, False, [3])
    computed = w * 2
    computed.data = w.data
    leaf, alias = copy.deepcopy([w, computed.detach()])
    leaf.data.mul_(5)
    assert alias.tolist() == [5, 5]


def test_parameters_state_dicts_and_moving_averages_share_memory():
    data = ht.zeros(2)
    p = nn.Parameter(data)
    data.add_(3)
    assert p.tolist() == [3, 3]
    model, average = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    state = model.state_dict()
    for a, m in zip(average.parameters(), model.parameters(), strict=True):
        a.data.copy_(m.data)
    model(ht.ones(1, 2)).sum().backward()
    optimizer.step()
    assert state["weight"].tolist() == model.weight.tolist()
    np.testing.assert_allclose(average.weight.numpy() - model.weight.numpy(), 1, rtol=1e-5)
    for a, m in zip(average.parameters(), model.parameters(), strict=True):
        a.data.mul_(0.5).add_(m.data * 0.5)
    np.testing.assert_allclose(average.weight.numpy() - model.weight.numpy(), 0.5, rtol=1e-5)


def test_the_flag_makes_a_computed_tensor_a_leaf():
    x = ht.zeros(2)
    x.requires_grad = True
    (x * 3).sum().backward()
    assert x.grad.tolist() == [3, 3]


def test_windows_hold_no_more_than_their_memory():
    x = ht.tensor(np.ones(8))
    gc.collect()
    before = len(store.arrays), len(store.origins)
    for _ in range(50):
        x[2:4].add_(1)
        x.detach()[1:].mul_(0.5)
        x.numpy()
    gc.collect()
    assert (len(store.arrays), len(store.origins)) == before
    assert len(x._windows) < 20


def test_views_that_look_alike_are_told_apart_when_they_come_again(draw_floats):
    """What a view does is remembered by its arguments and the type of what it shows."""
    (values,) = draw_floats((4, 6))
    places = [1, (1,), [1], slice(1, 3), (slice(None), 1), [1, 2], (1, 2), None, slice(1, None)]
    for dtype in (np.float32, np.float64):
        for _ in range(2):
            for place in places:
                x, y = ht.tensor(values.astype(dtype)), torch.tensor(values.astype(dtype))
                for lib in (x, y):
                    part = lib[place]
                    part.mul_(3)
                    part.view(-1)[0] = 7
                np.testing.assert_array_equal(x.numpy(), y.numpy(), err_msg=repr(place))
                rows = x.permute(1, 0).split(2), y.permute(1, 0).split(2)
                for mine, theirs in zip(*rows, strict=True):
                    mine.add_(1), theirs.add_(1)
                np.testing.assert_array_equal(x.numpy(), y.numpy())


def reshaped_in_place(t):
    """What programs see that change the shapes of tensors in place."""
    a = t.arange(12.0).reshape(1, 3, 4)
    b = a[0]
    a.squeeze_(0)
    a.t_()
    a[0] = 9
    b[1, 1] = -5
    a.unsqueeze_(1).transpose_(0, 2)
    x = t.ones(2, 3, requires_grad=True)
    y = x * 2
    z = y[0]
    y.t_()
    y.mul_(3)
    (y * y).sum().backward()
    q = t.arange(6.0)
    q.unsqueeze_(0)
    q += 1
    base = t.arange(6.0).view(2, 3)
    d = base.detach()
    row = d[0]
    d.data = t.zeros(2, 3)
    row.add_(10)
    return [each.tolist() for each in (a, b, y, z, x.grad, q, q.squeeze_(), base, d)]


def test_shapes_that_change_in_place_keep_the_memory():
    assert reshaped_in_place(ht) == reshaped_in_place(torch)
    x = ht.ones(1, 2, requires_grad=True)
    with pytest.raises(ht.GradientError, match="does not change in place"):
        x.squeeze_()
