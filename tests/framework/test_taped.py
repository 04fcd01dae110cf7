"""Operations on a tape: what they give is what nodes give, whoever asks for a node and when."""

import gc
import threading

import numpy as np
import pytest
import torch

import stack.framework as ht
from stack.framework import recorded, store
from stack.recorder.tape import LONGEST

DATA = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def x():
    return ht.tensor(DATA)


def is_on_tape(value):
    return value.recording is not None


def test_a_path_that_comes_again_has_its_plan(engine, x):
    for _ in range(3):
        y = (x * 2 + x).sum(0, keepdim=True)
        assert is_on_tape(y)
        assert (y.shape, y.dtype) == ((1, 4), ht.float32)
        assert is_on_tape(y), "to look at a type makes no node"
        np.testing.assert_array_equal(y.numpy(), (DATA * 3).sum(0, keepdims=True))
        assert not is_on_tape(y)
    assert len(engine.cache) == 1
    assert engine.nodes_run == [1, 1, 1], "what died is not computed"


def test_what_is_on_a_tape_keeps_the_values_that_it_was_given(x):
    before = x + 1
    x.add_(10)
    after = x + 1
    assert is_on_tape(before), "and so is the change"
    np.testing.assert_array_equal(before.numpy(), DATA + 1)
    np.testing.assert_array_equal(after.numpy(), DATA + 11)
    np.testing.assert_array_equal(x.numpy(), DATA + 10)


def test_windows_are_written_on_the_tape_and_seen_by_all():
    expected = DATA.copy()
    expected[1] *= 2
    expected[:, 0] += 100
    expected[0] -= expected[2]
    for _ in range(2):
        x = ht.tensor(DATA)
        row, turned = x[1], x.t()
        row.mul_(2)
        turned[0].add_(100)
        x[0:1].sub_(x[2])
        recorded = is_on_tape(x)
        np.testing.assert_array_equal(row.numpy(), expected[1])
        np.testing.assert_array_equal(turned.numpy(), expected.T)
        np.testing.assert_array_equal(x.numpy(), expected)
    assert recorded, "where views like these came before"


def test_gradients_flow_through_nodes_that_a_tape_has_become(x):
    weight = ht.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    scaled = x * 3
    assert is_on_tape(scaled)
    (scaled * weight).sum().backward(create_graph=True)
    assert not is_on_tape(scaled)
    np.testing.assert_array_equal(weight.grad.numpy(), (DATA * 3).sum(0))


@pytest.mark.parametrize("read", [False, True])
def test_what_another_tape_computed_is_no_input(read):
    """The scale is an equal node both times; what the first tape has of it is none of the second's
    inputs."""

    def program(t):
        mean = t.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, 1.0]])
        p = t.nn.Parameter(t.zeros(1, 2))
        _optimizer = t.optim.SGD([p], lr=1.0)
        normal = t.distributions.Normal(mean, t.exp(p.expand_as(mean)))
        found = normal.log_prob(t.tensor([[1.0, 1.0], [3.0, 2.0], [0.0, 0.0]])).sum(1)
        (found * t.tensor([1.0, -2.0, 3.0])).sum().backward()
        first = p.grad.tolist() if read else None
        p.grad = None
        normal = t.distributions.Normal(mean, t.exp(p.expand_as(mean)))
        (-0.01 * normal.entropy().sum(1).mean()).backward()
        return first, p.grad.tolist()

    assert program(ht) == program(torch)


def test_a_trace_and_a_tape_do_not_meet(x):
    kept = x + 1
    assert is_on_tape(kept)

    @ht.jit
    def function(y):
        kept.mul_(y)
        return kept + y

    np.testing.assert_array_equal(function(ht.tensor(2.0)).numpy(), (DATA + 1) * 2 + 2)
    np.testing.assert_array_equal(kept.numpy(), (DATA + 1) * 2)


def test_a_value_on_another_threads_tape_can_be_asked_for(x):
    found = []
    thread = threading.Thread(target=lambda: found.append(x * 5), daemon=True)
    thread.start()
    thread.join(60)
    assert is_on_tape(found[0])
    np.testing.assert_array_equal((found[0] + 1).numpy(), DATA * 5 + 1)
    np.testing.assert_array_equal(found[0].numpy(), DATA * 5)


def test_a_long_tape_is_computed_unasked(engine, x):
    for _ in range(2 * LONGEST + 5):
        x.add_(1)
    assert engine.runs == 2
    np.testing.assert_array_equal(x.numpy(), DATA + 2 * LONGEST + 5)


def test_what_nobody_can_ask_for_is_let_go():
    gc.collect()
    before = len(store.arrays)
    for _ in range(100):
        assert is_on_tape(ht.tensor(DATA) + 1)
    assert len(store.arrays) - before < 20


@pytest.mark.parametrize("number", [0.0, -0.0, float("nan"), True, 1, 1.0, 2**40, -7])
def test_each_number_is_itself(number, x):
    for _ in range(2):
        found = (x * number).numpy()
        expected = ht.tensor(DATA).numpy() * np.float32(number)
        np.testing.assert_array_equal(found, expected)
        if number == number:  # NaN has no sign that one could rely on
            np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def test_an_index_out_of_range_is_told_whatever_path_came_before():
    table = ht.tensor(DATA)
    for at in (0, 1, 2, 3):
        place = ht.arange(4)[at : at + 1]
        if at < 3:
            np.testing.assert_array_equal(
                (table[place] * (at + 2)).numpy(), DATA[at : at + 1] * (at + 2)
            )
        else:
            with pytest.raises(ht.RangeError):
                (table[place] * 5).numpy()


def test_draws_are_on_the_tape_and_the_same_words_as_nodes():
    """Of each kind, their widths and offsets, whatever is drawn before and after."""

    def draw():
        return [
            ht.rand(3, 5),
            ht.randn(7, dtype=ht.float64),
            ht.randint(-3, 9, (5,)),
            ht.rand(2, 3, dtype=ht.bfloat16).float(),
            ht.randn_like(ht.ones(4, 3)) * 2,
            ht.bernoulli(ht.full((9,), 0.5)),
            ht.randn(0),
            ht.rand(()),
        ]

    ht.manual_seed(5)
    wanted = [x.numpy() for x in ht.jit(draw)()]
    for _ in range(2):
        ht.manual_seed(5)
        made = draw()
        assert all(is_on_tape(x) for x in made)
        for x, y in zip(made, wanted, strict=True):
            np.testing.assert_array_equal(x.numpy(), y)


def test_gradients_flow_past_a_draw_on_the_tape():
    mean = ht.zeros(1000, requires_grad=True)
    spread = ht.ones(1000, requires_grad=True)
    ht.manual_seed(1)
    for _ in range(2):
        noise = ht.randn_like(mean)
        z = mean + spread * noise
        assert is_on_tape(z)
        (z * z).sum().backward()
        np.testing.assert_allclose(mean.grad.numpy(), 2 * noise.numpy(), rtol=1e-6)
        np.testing.assert_allclose(spread.grad.numpy(), 2 * noise.numpy() ** 2, rtol=1e-6)
        mean.grad = spread.grad = None


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_are_on_the_tape_with_gradients_of_all_they_take(kind):
    """Twice, so that the path is known; then of another length, and of no step at all."""
    ours = getattr(ht.nn, kind)(5, 6, 2, bidirectional=True, bias=kind != "RNN")
    theirs = getattr(torch.nn, kind)(5, 6, 2, bidirectional=True, bias=kind != "RNN")
    theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items()})
    states = 2 if kind == "LSTM" else 1
    rng = np.random.default_rng(3)
    for length in (7, 7, 4, 1):
        given = [rng.normal(size=(length, 3, 5)).astype(np.float32)]
        given += [rng.normal(size=(4, 3, 6)).astype(np.float32) for _ in range(states)]
        found = []
        for lib, net in ((ht, ours), (torch, theirs)):
            x, *state = [lib.tensor(a, requires_grad=True) for a in given]
            y, last = net(x, tuple(state) if states == 2 else state[0])
            last = last if states == 2 else (last,)
            if lib is ht:
                assert all(is_on_tape(v) for v in (y, *last))
            (y.cos().sum() + sum((v * v).sum() for v in last)).backward()
            grads = [x.grad, *(v.grad for v in state), *(p.grad for p in net.parameters())]
            found.append([v.detach().numpy() for v in (y, *last, *grads)])
            for p in net.parameters():
                p.grad = None
        for a, b in zip(*found, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
    with ht.no_grad():
        assert ours(ht.zeros(0, 3, 5))[0].shape == (0, 3, 12)


def test_a_cache_that_is_written_at_positions_stays_on_the_tape():
    """Once such a step was: what a mask makes of positions follows from nothing, and comes again
    with other numbers in it."""
    inverse = np.float32([1.0, 0.25])
    cache, steps = ht.zeros(2, 6, 2), []
    keys = [ht.tensor(np.full((2, 1, 2), 1 + i, np.float32)) for i in range(6)]
    angles = 1.0 / ht.tensor([1.0, 4.0])
    wanted = np.zeros((2, 6, 2), np.float32)
    for at in range(6):
        place = ht.arange(at, at + 1)
        turned = keys[at] * (place[:, None].float() * angles + ht.arange(2)).cos()
        cache.index_copy_(1, place, turned)
        seen = cache.masked_fill(~(ht.arange(6) <= place)[:, None], -1.0).sum(1)
        if at > 2:  # the first one begins at 0, and the second one is the first that adds
            steps.append(is_on_tape(cache) and is_on_tape(seen))
        by = np.cos(np.float32(at) * inverse + np.float32([0, 1]))
        wanted[:, at] = (1 + at) * by
        now = np.where(np.arange(6)[:, None] <= at, wanted, -1).sum(1)
        np.testing.assert_allclose(seen.numpy(), now, rtol=2e-6)
    assert all(steps)
    np.testing.assert_allclose(cache.numpy(), wanted, rtol=2e-6)


def test_what_is_read_and_written_by_tensors_is_on_the_tape():
    rows, columns = [2, 0, 2], [1, 3, 0]
    for _ in range(3):
        table, i, j = ht.tensor(DATA), ht.tensor(rows), ht.tensor(columns)
        wanted, hit = DATA.copy(), DATA > 8
        found = [table[i], table[:, j], table[i, j], table[..., j], table[None, i]]
        found += [table[1, j], table[1:, j], table[i, -1], table[None, ::2, j], table[..., 1:3][i]]
        assert all(map(is_on_tape, found))
        table[i] = found[0] + 100
        table[:, j] = 7
        table[i, j] = ht.tensor([1.0, 2.0, 3.0])
        table[ht.tensor(hit)] = -1.0
        table[0] = 5
        table[1:, 2] = 0.5
        table[2, j] = ht.tensor([-2.0, -3.0, -4.0])
        table[:2, j] = 9
        assert is_on_tape(table)
        read = [wanted[rows], wanted[:, columns], wanted[rows, columns], wanted[:, columns]]
        read += [wanted[None, rows], wanted[1, columns], wanted[1:, columns], wanted[rows, -1]]
        read += [wanted[None, ::2, columns], wanted[..., 1:3][rows]]
        for x, y in zip(found, read, strict=True):
            np.testing.assert_array_equal(x.numpy(), y)
        wanted[rows] = wanted[rows] + 100
        wanted[:, columns] = 7
        wanted[rows, columns] = [1, 2, 3]
        wanted[hit] = -1
        wanted[0] = 5
        wanted[1:, 2] = 0.5
        wanted[2, columns] = [-2, -3, -4]
        wanted[:2, columns] = 9
        np.testing.assert_array_equal(table.numpy(), wanted)


def test_an_index_by_tensors_out_of_range_is_told_on_any_path():
    table = ht.tensor(DATA)
    for at in (1, 2, 3, -3, -4):
        place = ht.tensor([0, at])
        if -3 <= at < 3:
            np.testing.assert_array_equal((table[place] * 3).numpy(), DATA[[0, at]] * 3)
        else:
            with pytest.raises(ht.RangeError):
                (table[place] * 3).numpy()


@pytest.mark.parametrize("ask", [True, False])
def test_gradients_flow_by_places_and_through_constants_of_a_tape_before(ask):
    """What is asked for between is appended to the next tape, with the constants in it."""
    place = [2, 0, 2]
    for _ in range(3):
        found = []
        for lib in (ht, torch):
            x = lib.tensor(DATA, requires_grad=True)
            line = lib.arange(4).float()
            y = x[lib.tensor(place)] * (line + 1.0)
            if ask:
                y.detach().numpy()
            (y * y * line).sum().backward()
            found.append(x.grad.numpy())
        np.testing.assert_allclose(*found, rtol=1e-6)


def test_sizes_that_grow_are_no_paths_of_their_own(x):
    """Positions of another size each time are made of nodes, as those that come once are."""
    tree = recorded.tape_of(x.device).tape.tree
    for n in range(1, 40):
        line = ht.arange(n).float()
        total = (x.sum() + line).sum()
        np.testing.assert_allclose(total.numpy(), DATA.sum() * n + n * (n - 1) / 2, rtol=1e-6)
    assert tree.points < 39, "but for a few that came before"


def test_several_results_by_name_are_on_the_tape_with_their_gradients():
    """Once the operation was seen to give them; what it gives for other operands is one value."""
    data = np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32)
    for turn in range(3):
        found = []
        for lib in (ht, torch):
            x = lib.tensor(data, requires_grad=True)
            best, most, line = x.topk(3), x.max(1), x.sort(descending=True)
            if turn and lib is ht:
                assert all(map(is_on_tape, (*best, *most, *line, x.max())))
            loss = (best.values**2).sum() + most.values.sum() * 2 + line[0][:, 2].sum() + x.max()
            loss.backward()
            found.append([x.grad, best[1], most.indices, line[1], best[0].detach()])
        for ours, theirs in zip(*found, strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_is_under_autocast_is_on_the_tape_as_it_is_there(dtype):
    """Also where it is made of nodes only when it is left, and where the same comes outside."""
    rng = np.random.default_rng(2)
    data, weight = (rng.standard_normal(s).astype(np.float32) for s in ((3, 4), (5, 4)))
    for turn in range(3):
        x, w = ht.tensor(data), ht.tensor(weight, requires_grad=True)
        plain = ht.nn.functional.linear(x, w)
        with ht.autocast(getattr(ht, dtype)):
            y = ht.nn.functional.linear(x, w)
            z = y.softmax(-1)
        assert is_on_tape(y)
        assert is_on_tape(z)
        assert (plain.dtype, y.dtype, z.dtype) == (ht.float32, getattr(ht, dtype), ht.float32)
        if turn == 2:
            assert y.node.dtype is y.dtype
        (z * plain).sum().backward()
        narrow = {"bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
        v = torch.tensor(weight, requires_grad=True)
        with torch.autocast("cpu", narrow):
            wanted = torch.nn.functional.linear(torch.tensor(data), v).softmax(-1)
        (wanted * torch.nn.functional.linear(torch.tensor(data), v)).sum().backward()
        np.testing.assert_allclose(z.detach().numpy(), wanted.detach().float().numpy(), atol=2e-2)
        np.testing.assert_allclose(w.grad.numpy(), v.grad.numpy(), atol=4e-2)


def test_a_form_that_is_new_is_looked_at_once(x, monkeypatch):
    looked, form = [], recorded._form
    monkeypatch.setattr(recorded, "_form", lambda *args: looked.append(args) or form(*args))
    for turn in range(2):
        twice = ht.ones(3, 4) * (2.5 + turn)  # follows from nothing
        looked.clear()
        found = [x + twice for _ in range(5)]
        assert len(looked) <= 1
        np.testing.assert_array_equal(found[-1].numpy(), DATA + 2.5 + turn)
