"""Threads compute with what is theirs, and what one does is no part of what another one traces."""

import sys
import threading

import numpy as np
import pytest

import stack.framework as ht
from stack.framework import nn
from stack.framework.recorded import CellTape
from tests.framework.trainings import DEADLINE_S, at_once, trial


@pytest.fixture
def hasty():
    """Threads take turns 50 times as often as they do by default."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
def test_threads_train_to_the_bit_as_each_does_alone(hasty):
    """On the compiler's kernels, 20 times: `python -m tests.framework.trainings`."""
    assert all(trial(6, threads=5))


def during_a_trace(function, *args):
    """A jitted function of two parts, in whose trace another thread does something in between."""
    inside, done = threading.Event(), threading.Event()

    def pause():
        inside.set()
        assert done.wait(DEADLINE_S)

    def other():
        assert inside.wait(DEADLINE_S)
        try:
            return function(*args)
        except ht.TracingError as error:
            return str(error)
        finally:
            done.set()

    return pause, other


def test_what_a_thread_does_changes_nothing_in_what_another_one_traces():
    w, own, layer = ht.tensor([1.0, 2.0]), ht.tensor([10.0]), nn.Dropout(0.5)
    twice = ht.jit(lambda x: x * 2)

    def work():
        ht.manual_seed(3)
        own.add_(1)
        view = own[0]
        view.mul_(2)
        layer.eval()
        w.requires_grad_(False)
        made = ht.zeros(2) + ht.rand(2)
        return own.item(), twice(np.ones(2)).tolist(), made.tolist(), layer(ht.ones(3)).tolist()

    pause, other = during_a_trace(work)

    @ht.jit
    def step(x):
        w.add_(x)
        pause()
        return w * x

    ht.manual_seed(5)
    before = ht.default_generator().get_state()
    result, (doubled, ones, drawn, kept) = None, (None,) * 4
    result, (doubled, ones, drawn, kept) = at_once([lambda: step(np.float32(2)), other])
    assert result.tolist() == [6, 8]
    assert (doubled, ones, kept) == (22, [2, 2], [1, 1, 1])
    assert step(np.float32(2)).tolist() == [10, 12]
    assert (step.traced, own.item()) == (1, 22)
    assert ht.default_generator().get_state() == before
    ht.manual_seed(3)
    assert ht.rand(2).tolist() == drawn


def test_a_tensor_that_another_thread_changes_in_its_trace_is_refused_and_both_are_named():
    w = ht.tensor([1.0])
    pause, other = during_a_trace(lambda: (w[:1] * 2).tolist())

    @ht.jit
    def step(x):
        w.add_(x)
        pause()

    _, said = at_once([lambda: [step(np.float32(2))], other])
    assert "is used in thread 'Thread-" in said
    assert "while 'step', which changes it, is traced in thread 'Thread-" in said
    assert "test_threads.py:" in said
    assert (w.item(), (w * 2).item()) == (3, 6)


@pytest.mark.parametrize("what", ["changed", "made"])
def test_a_trace_refuses_what_another_thread_changes_or_makes_meanwhile(what):
    held = [ht.tensor([1.0]), ht.tensor([5.0])]

    def other_work():
        if what == "changed":
            held[0].add_(1)
        else:
            held[0] = ht.tensor([7.0])

    pause, other = during_a_trace(other_work)

    @ht.jit
    def step(x):
        early = held[0] * x
        pause()
        return early + held[0]

    def refused():
        with pytest.raises(ht.TracingError, match=rf"'step'.* uses a tensor of .*{what}") as error:
            step(np.float32(2))
        return str(error.value)

    at_once([refused, lambda: [other()]])
    assert step(np.float32(2)).item() == held[0].item() * 3


def test_pending_work_of_a_thread_is_computed_where_it_is_asked_for_and_before_its_inputs_change():
    w = ht.tensor([1.0])
    (y,) = at_once([lambda: w * 5])
    z = w * 7
    step = ht.jit(lambda: (w.add_(1), None)[1])
    at_once([lambda: [step()]])
    assert (w.item(), y.item(), z.item()) == (2, 5, 7)


def test_an_operation_whose_tape_another_thread_ends_is_computed_before_its_inputs_change():
    w, other = ht.tensor([1.0]), ht.tensor([1.0])
    step, other_step = (ht.jit(lambda t=t: (t.add_(1), None)[1]) for t in (w, other))
    appended = CellTape._appended

    def interrupted(tape, key):
        number = appended(tape, key)
        at_once([lambda: [other_step()]])
        return number

    y = w * 5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CellTape, "_appended", interrupted)
        z = y * 7
    assert other.item() == 2, "another thread came in between"
    at_once([lambda: [step()]])
    assert (w.item(), y.item(), z.item()) == (2, 5, 35)


def test_a_model_may_go_from_thread_to_thread():
    """Changed outside of its optimizer in one, trained in another."""

    def train():
        ht.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = ht.optim.SGD(model.parameters(), lr=0.5)
        step = ht.jit(lambda x: (model(x).sum().backward(), optimizer.step())[1])
        return model, optimizer, step

    x, found = np.ones((1, 3), np.float32), []
    for run in (lambda f: f(), lambda f: at_once([f])[0]):
        model, optimizer, step = train()
        for _ in range(3):
            optimizer.zero_grad()
            model.weight.data.mul_(2)
            optimizer.param_groups[0]["lr"] *= 0.5
            run(lambda step=step: [step(x)])
        found.append([p.numpy() for p in model.parameters()])
        assert step.traced == 1
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_threads_that_set_no_seed_draw_apart_from_each_other_and_from_the_main_thread():
    ht.manual_seed(9)
    drawn = [tuple(ht.rand(4).tolist()), *at_once([lambda: tuple(ht.rand(4).tolist())] * 3)]
    assert len(set(drawn)) == 4
    ht.manual_seed(9)
    assert tuple(ht.rand(4).tolist()) == drawn[0]


def test_a_jitted_function_draws_from_the_streams_of_the_thread_that_calls_it():
    draw = ht.jit(lambda x: ht.rand(2) * x)

    def drawn():
        ht.manual_seed(4)
        return [draw(np.float32(1)).tolist(), draw(np.float32(1)).tolist()]

    mine = drawn()
    assert at_once([drawn] * 2) == [mine, mine]
    assert mine[0] != mine[1]


def test_the_default_device_of_a_thread_is_its_own(engine, monkeypatch):
    monkeypatch.setitem(ht.devices.engines, "other:0", engine)

    def work():
        ht.set_default_device("other:0")
        return ht.ones(1).device

    assert at_once([work, lambda: ht.ones(1).device]) == ["other:0", "interpreter:0"]
    assert ht.ones(1).device == "interpreter:0"
