"""A captured function computes what its Python would, again and again, and changes its state in
place."""

import gc
from functools import partial

import numpy as np
import pytest
import torch

import stack.framework as ht
from stack.framework import nn, optim, store
from stack.framework.cell import here
from stack.framework.errors import name_of


def test_a_captured_function_computes_the_same(draw_floats):
    def f(x, y):
        return {"sum": (x @ y).sum(), "parts": [x * 2, (y, 3)]}

    x, y = draw_floats((2, 3), (3, 2))
    captured = ht.jit(f)
    for _ in range(2):
        result = captured(x, ht.tensor(y))
        plain = f(ht.tensor(x), ht.tensor(y))
        assert result["sum"].item() == plain["sum"].item()
        assert result["parts"][0].tolist() == plain["parts"][0].tolist()
        assert result["parts"][1][1] == 3
    assert captured.traced == 1


def test_python_runs_once_for_each_kind_of_arguments(engine):
    calls = []

    @ht.jit
    def f(x, scale=1, *, flag=True):
        calls.append(scale)
        return x * scale

    for x in (np.ones(2), np.ones(2) * 5, np.ones(3), np.ones(2, np.float32)):
        f(x)
    assert len(calls) == 3
    f(np.ones(2), 1.0)  # equal to 1, but another type
    f(np.ones(2), scale=2)
    f(np.ones(2), flag=False)
    f(np.ones(2), flag=False)
    assert len(calls) == 6


def test_parameters_are_computed_while_a_function_is_traced(engine):
    model, begun = nn.Linear(3, 2), []
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    @ht.jit
    def step(x):
        begun.append(engine.runs)
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    before = engine.runs
    step(np.ones((4, 3), np.float32))
    assert begun == [before + 1]
    assert engine.runs == before + 2


def test_arguments_of_other_shapes_are_other_kinds():
    @ht.jit
    def f(*args, **named):
        return ht.ones(2) * len(args) + 10 * len(named)

    x = ht.ones(2)
    calls = [((x, {"b": 3}), {}), ((x,), {"b": 3}), ((x, dict, 1), {}), ((x, "b", 3), {})]
    calls += [(([x, x],), {}), (([x], x), {}), (((x,), x), {}), ((1, True), {}), ((True, 1.0), {})]
    for count, (args, named) in enumerate(calls, 1):
        for _ in range(2):
            assert f(*args, **named).tolist() == [len(args) + 10 * len(named)] * 2
        assert f.traced == count


def test_numpy_scalars_may_change_without_a_new_trace():
    f = ht.jit(lambda x, lr: x * lr)
    assert [f(np.float32(2), np.float32(v)).item() for v in (1, 2, 3)] == [2, 4, 6]
    assert f.traced == 1


def test_state_is_read_and_updated_in_place():
    count = ht.tensor([0.0, 0.0])
    array = store.arrays[count.node]

    @ht.jit
    def add(x):
        count.add_(x)
        return count * 10

    assert add(np.array([1, 2], np.float32)).tolist() == [10, 20]
    assert add(np.array([1, 2], np.float32)).tolist() == [20, 40]
    assert count.tolist() == [2, 4]
    assert store.arrays[count.node] is array


def test_pending_and_equal_states_are_told_apart():
    a, b = ht.zeros(2), ht.zeros(2)

    @ht.jit
    def step():
        a.add_(1)
        b.add_(2)

    step()
    step()
    assert (a.tolist(), b.tolist()) == ([2, 2], [4, 4])


def test_states_may_exchange_their_values():
    a, b = ht.tensor([1.0]), ht.tensor([2.0])

    @ht.jit
    def exchange():
        old = a.clone()
        a.copy_(b)
        b.copy_(old)

    for _ in range(3):
        exchange()
    assert (a.item(), b.item()) == (2, 1)


def test_changes_between_calls_are_seen():
    scale, total = ht.tensor(2.0), ht.tensor(0.0)

    @ht.jit
    def f(x):
        total.add_(x)
        return x * scale

    f(np.float32(1))
    scale.fill_(5.0)
    total.zero_()
    assert f(np.float32(3)).item() == 15
    assert (total.item(), f.traced) == (3, 1)


def test_values_taken_before_an_update_stay_but_for_those_that_share_memory(engine):
    w = ht.tensor([1.0, 2.0])
    step = ht.jit(lambda: _times_ten(w))
    pending, view, same, copy = w + 1, w[1:], w.detach(), w.clone()
    step()
    again = w.clone()
    step()
    assert (pending.tolist(), copy.tolist()) == ([2, 3], [1, 2])
    assert (view.tolist(), same.tolist()) == ([200], [100, 200])
    assert (again.tolist(), w.tolist()) == ([10, 20], [100, 200])


def _times_ten(w):
    w.mul_(10)


def test_the_argument_may_be_the_state_itself():
    w = ht.tensor([1.0, 2.0])

    @ht.jit
    def step(x):
        w.add_(x)
        return x * 1

    assert step(w).tolist() == [1, 2]
    assert step(w[:1]).tolist() == [2]
    assert w.tolist() == [4, 6]


def test_outputs_are_tensors_of_their_own():
    w = ht.tensor([1.0])

    @ht.jit
    def step():
        w.add_(1)
        return w

    first, second = step(), step()
    assert (first.item(), second.item(), w.item()) == (2, 3, 3)


def model_and_step(jitted):
    ht.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    return model, optimizer, ht.jit(step) if jitted else step


def test_a_training_step_is_the_same_jitted_or_not(draw_floats, engine):
    (x,) = draw_floats((5, 4))
    y = np.arange(5) % 3
    losses, weights = [], []
    for jitted in (True, False):
        model, optimizer, step = model_and_step(jitted)
        schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        losses.append([])
        for _ in range(6):
            losses[-1].append(step(ht.tensor(x), ht.tensor(y)).item())
            schedule.step()
        weights.append([p.numpy() for p in model.parameters()])
    assert losses[0] == losses[1]
    for a, b in zip(*weights, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_jitted_step_runs_one_plan_and_leaks_nothing(draw_floats, engine):
    (x,) = draw_floats((5, 4))
    model, _, step = model_and_step(True)
    held = []
    for _ in range(4):
        before = engine.runs
        step(x, np.arange(5) % 3)
        gc.collect()
        pending = len(store.origins), len(here.unsettled)
        held.append((engine.runs - before, len(store.arrays), *pending))
    assert held[1] == held[2] == held[3]
    assert held[3][0] == 1
    assert all(p.grad is None for p in model.parameters())


def test_loading_weights_between_calls_is_seen(draw_floats):
    (x,) = draw_floats((5, 4))
    model, _, step = model_and_step(True)
    start = {k: ht.tensor(v.numpy()) for k, v in model.state_dict().items()}
    ht.manual_seed(0)
    first = [step(x, np.arange(5) % 3).item() for _ in range(2)]
    model.load_state_dict(start)
    ht.manual_seed(0)
    again = step(x, np.arange(5) % 3).item()
    assert again == first[0]
    assert step.traced == 1


def test_evaluation_mode_is_traced_anew_and_remembered():
    layer = nn.Dropout(0.5)
    f = ht.jit(lambda x: layer(x))
    x = np.ones(100, np.float32)
    assert f(x).sum().item() != 100
    layer.eval()
    assert f(x).sum().item() == 100
    layer.train()
    f(x)
    assert f.traced == 2


@pytest.mark.parametrize("frozen", ["0.weight", "3.bias"])
def test_a_parameter_that_learns_no_more_or_again_is_traced_anew_and_remembered(
    draw_floats, frozen
):
    (x,) = draw_floats((5, 4))
    learned = []
    for jitted in (True, False):
        model, _, step = model_and_step(jitted)
        chosen = dict(model.named_parameters())[frozen]
        learned.append([])
        for required in (True, False, True, False, False, True):
            before = chosen.numpy()
            chosen.requires_grad_(required)
            loss = step(ht.tensor(x), ht.tensor(np.arange(5) % 3)).item()
            learned[-1].append([loss, *(p.numpy() for p in model.parameters())])
            assert required or (chosen.numpy() == before).all()
        # What learns again has done fewer steps than the others, which is a third trace
        assert not jitted or step.traced == 3
    for one, other in zip(*learned, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_a_function_asks_of_a_flag_in_python_is_traced_anew(draw_floats):
    """Also where the tensor is no operand of anything."""
    w = ht.tensor([1.0])
    f = ht.jit(lambda x: x * (2 if w.requires_grad else 3))
    found = []
    for required in (False, True, False):
        w.requires_grad_(required)
        ht.ones(1, requires_grad=True)  # a change elsewhere changes nothing
        found.append(f(np.ones(1)).item())
    assert (found, f.traced) == ([3, 2, 3], 2)


def test_a_function_that_changes_a_flag_is_right_from_its_next_trace_on():
    w = ht.tensor([1.0])

    @ht.jit
    def f(x):
        before = w.requires_grad
        w.requires_grad_()
        return x * (2 if before else 3)

    assert [f(np.ones(1)).item() for _ in range(3)] == [3, 2, 2]


def test_reading_a_value_while_tracing_is_refused():
    @ht.jit
    def bad(x):
        return x * 2 if x.sum().item() > 0 else x

    with pytest.raises(
        ht.TracingError, match=r"value is needed while 'bad' is traced at .*test_jit.py:\d+"
    ):
        bad(np.ones(2))


def test_a_failed_trace_leaves_everything_as_it_was():
    w = ht.tensor([1.0])

    @ht.jit
    def bad():
        w.add_(1)
        raise KeyError("stop")

    with pytest.raises(KeyError):
        bad()
    assert w.item() == 1
    assert (w + 1).item() == 2


def test_changing_an_argument_is_refused():
    @ht.jit
    def bad(x):
        x.add_(1)
        return x

    with pytest.raises(ht.TracingError, match="'bad' changes its argument 0 in place"):
        bad(np.ones(2))


def test_a_tensor_that_escaped_its_trace_says_so():
    kept = []

    @ht.jit
    def f(x):
        kept.append(x * 2)
        return x

    f(np.ones(2))
    held = ht.zeros(2, dtype=kept[0].dtype)
    held.copy_(kept[0])
    assert ht.jit(lambda x: x + 3)(np.ones(2)).tolist() == [4, 4], (
        "who reads something else goes on"
    )
    with pytest.raises(
        ht.TracingError, match="'f' made while it was traced was kept but not returned"
    ):
        kept[0].numpy()
    assert (ht.tensor([1.0]) + 1).item() == 2  # others are not bothered
    with pytest.raises(ht.TracingError, match="was kept but not returned"):
        held.numpy()


def test_a_schedule_belongs_outside():
    model, optimizer, _ = model_and_step(False)
    schedule = optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (n + 1))

    @ht.jit
    def bad():
        model(ht.ones(1, 4)).sum().backward()
        schedule.step()
        optimizer.step()

    with pytest.raises(ht.TracingError, match="step the schedule outside"):
        bad()


def test_gradients_through_values_overwritten_by_a_jitted_step_are_refused():
    w = ht.tensor([3.0], requires_grad=True)
    y = (w * w).sum()

    @ht.jit
    def step():
        with ht.no_grad():
            w.mul_(2)

    step()
    assert y.item() == 9
    with pytest.raises(ht.GradientError):
        y.backward()


def test_gradients_gather_over_jitted_calls_where_they_exist():
    w = ht.tensor([1.0, 2.0], requires_grad=True)
    w.grad = ht.zeros(2)
    gather = ht.jit(lambda x: (w * x).sum().backward())
    gather(np.float32(2))
    gather(np.float32(3))
    assert w.grad.tolist() == [5, 5]


def _micro_steps(lib, jit, arrays, window):
    """Losses, gradients and weights of a training whose micro-steps gather gradients."""
    given, batches = arrays[:2], arrays[2:]
    w, b = (lib.tensor(a, requires_grad=True) for a in given)
    optimizer = lib.optim.SGD([w, b], lr=0.1, momentum=0.9)
    seen = []

    @jit
    def gather(x):
        loss = ((x @ w + b) ** 2).mean()
        loss.backward()
        return loss

    @jit
    def move():
        optimizer.step()

    for round in range(3):
        for x in batches:
            seen.append(gather(lib.tensor(x)))
            seen.append(w.grad.clone())
        if round == 1:  # another tensor in the place of a gradient, which a window shows
            w.grad = lib.tensor(window)[1:4] * 1
            kept = lib.tensor(window)
            b.grad = kept[0]
            seen.append(gather(lib.tensor(batches[0])))
            seen.append(kept)
        move()
        seen += [w.grad.clone(), b.grad.clone()]
        optimizer.zero_grad(set_to_none=round == 0)
        seen += [w.detach().clone(), b.detach().clone()]
    held = w.grad
    gather(lib.tensor(batches[0]))
    assert w.grad is held
    return [t.detach().numpy() for t in [*seen, held]], gather


def test_jitted_micro_steps_gather_gradients_as_torch_does(draw_floats):
    arrays = draw_floats((3, 5), (5,), (4, 3), (4, 3), (4, 3))
    (window,) = draw_floats((6, 5))
    ours, gather = _micro_steps(ht, ht.jit, arrays, window)
    theirs, _ = _micro_steps(torch, lambda f: f, arrays, window)
    assert gather.traced == 2, "one for tensors without gradients, one that adds to them"
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def test_a_jitted_step_without_zero_grad_goes_on_with_its_gradients_as_torch_does(draw_floats):
    (start, x) = draw_floats((3,), (3,))
    found = []
    for lib, jit in ((ht, ht.jit), (torch, lambda f: f)):
        w = lib.tensor(start, requires_grad=True)
        optimizer = lib.optim.SGD([w], lr=0.1)

        @jit
        def step(x, w=w, optimizer=optimizer):
            (w * x * w).sum().backward()
            optimizer.step()

        for _ in range(3):
            step(lib.tensor(x))
        found.append([w.detach().numpy(), w.grad.numpy()])
    np.testing.assert_allclose(found[0], found[1], rtol=2e-5, atol=2e-6)


def test_a_function_may_begin_hand_over_and_drop_gradients():
    u, v, w = (ht.tensor([1.0], requires_grad=True) for _ in range(3))
    own = ht.tensor([7.0])

    @ht.jit
    def f(x):
        u.grad = v.grad = w.grad = None
        (u * x + v * x).sum().backward()
        u.grad, v.grad, w.grad = None, u.grad, own

    for x in (2.0, 3.0):
        v.grad = ht.tensor([100.0])
        f(np.float32(x))
        assert (u.grad, v.grad.item(), w.grad) == (None, x, own)
    assert f.traced == 1, "what was there before is not read"


def test_a_jitted_function_within_another_is_part_of_it(engine):
    inner = ht.jit(lambda x: x + 1)
    outer = ht.jit(lambda x: inner(x) * 2)
    assert outer(np.ones(2)).tolist() == [4, 4]
    assert (inner.traced, engine.runs) == (0, 1)


def test_an_unhashable_argument_is_named():
    with pytest.raises(ht.TensorError, match="neither an array nor hashable"):
        ht.jit(lambda x: x)({1, 2})


def test_what_has_no_name_of_its_own_is_captured():
    model = ht.nn.Linear(2, 2)
    x = ht.ones(1, 2)
    for function in (partial(ht.add, other=x), model):
        captured = ht.jit(function)
        assert captured(x).tolist() == function(x).tolist()
        assert captured.traced == 1


def test_a_partial_function_is_called_what_it_is_made_of():
    def total(scale, shift, x):
        return x.sum()

    assert name_of(partial(partial(total, 2), 3)) == "total"
    assert name_of(partial(ht.nn.Linear(2, 2))) == "Linear"


def test_known_values_of_overwritten_state_are_forgotten():
    w = ht.tensor([1.0], requires_grad=True)
    plus = w + 1
    assert plus.item() == 2

    @ht.jit
    def step():
        with ht.no_grad():
            w.add_(10)

    step()
    assert (plus.item(), (w + 1).item()) == (2, 12)
