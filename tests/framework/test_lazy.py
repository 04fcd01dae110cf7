"""Nothing runs early, nothing runs twice, nothing is kept."""

import gc

import numpy as np
import pytest

import stack.framework as ht
from stack.framework import devices as device
from stack.framework import store
from stack.framework.cell import here


def test_nothing_runs_before_a_value_is_needed(engine):
    x = ht.tensor([1.0, 2.0])
    y = (x + 1).exp().sum()
    assert engine.runs == 0
    y.item()
    assert engine.runs == 1


def test_a_known_value_is_not_computed_again(engine):
    y = ht.tensor([1.0]) + 1
    y.item()
    y.item()
    assert engine.runs == 1


def test_all_that_is_pending_runs_at_once(engine):
    x = ht.tensor([1.0, 2.0])
    h = x.exp()
    a, b = h + 1, h * 2
    a.numpy()
    b.numpy()
    h.numpy()
    assert engine.runs == 1


def test_later_work_starts_from_known_values(engine):
    x = ht.tensor([3.0])
    h = x.exp()
    h.item()
    later = h + 1
    later.item()
    (request,) = [r for r in engine.cache if r.outputs[0].op == "add"]
    assert request.outputs[0].srcs[0].op == "input"


def test_later_work_starts_from_values_known_of_constants_that_require_gradients(engine):
    h = ht.zeros(2, requires_grad=True).exp()
    ht.realize(h)
    later = h + 1
    later.numpy()
    (request,) = [r for r in engine.cache if r.outputs[0].op == "add"]
    assert request.outputs[0].srcs[0].op == "input"


def test_views_of_known_values_are_not_kept(engine):
    x = ht.ones(1000) + ht.tensor([0.0])
    x.numpy()
    held = len(store.arrays)
    for i in range(5):
        view = x[i : i + 10]
        view.numpy()
    assert len(store.arrays) == held


def test_constants_take_no_memory(engine):
    zeros, mask = ht.zeros(1000), ht.ones(4, 4).tril()
    (ht.tensor([1.0]) + 1).item()
    assert engine.nodes_run == [1]  # the sum; the mask's operands are no arrays, and it waits
    assert zeros.sum().item() == 0
    assert mask.sum().item() == 10


def test_an_ordinary_training_loop_does_not_grow(engine):
    w = ht.tensor([1.0, 2.0], requires_grad=True)
    held = []
    for _ in range(6):
        loss = (w * w).sum()
        loss.backward()
        with ht.no_grad():
            w -= 0.1 * w.grad
        w.grad = None
        loss.item()
        gc.collect()
        held.append((len(store.arrays), len(store.origins), len(here.unsettled)))
    assert len(set(held[1:])) == 1
    assert len(engine.cache) <= 2
    np.testing.assert_allclose(w.numpy(), np.array([1, 2]) * 0.8**6, rtol=1e-5)


def test_the_memory_of_dead_tensors_is_freed():
    before = len(store.arrays)
    x = ht.tensor(np.ones(10))
    y = (x + 1) * x
    y.numpy()
    del x, y
    gc.collect()
    assert len(store.arrays) == before


def test_in_place_changes_are_seen_by_what_shares_the_memory_and_by_nothing_else():
    x = ht.tensor([1.0, 2.0, 3.0])
    view, same, copy, computed = x[:2], x.detach(), x.clone(), x + 0
    x.mul_(10)
    x[0] = -1
    assert x.tolist() == [-1, 20, 30]
    assert (view.tolist(), same.tolist()) == ([-1, 20], [-1, 20, 30])
    assert copy.tolist() == computed.tolist() == [1, 2, 3]


def test_a_long_chain_of_changes_is_freed_without_recursion():
    before = len(here.unsettled)
    x = ht.zeros(3)
    for _ in range(5_000):
        x.add_(1)
    del x
    assert len(here.unsettled) <= before


def test_realize_starts_several_at_once(engine):
    a, b = ht.tensor([1.0]) + 1, ht.tensor([2.0]) * 2
    ht.realize(a, b)
    assert engine.runs == 1
    assert (a.item(), b.item()) == (2, 4)
    assert engine.runs == 1


def test_equal_tensors_are_told_apart():
    a, b = ht.tensor([1.0]).exp(), None
    b = a.clone()
    a.numpy()
    b.add_(1)
    np.testing.assert_allclose((b - a).numpy(), [1], rtol=1e-6)


def test_repr_shows_values_and_facts():
    x = ht.tensor([[1.5, 2.0]], requires_grad=True)
    assert repr(x) == (
        "tensor([[1.5, 2. ]], device='interpreter:0', dtype=float32, requires_grad=True)"
    )


def test_python_conversions():
    x = ht.tensor([2])
    assert (int(x), float(x), bool(x), [10, 20, 30][x]) == (2, 2.0, True, 30)
    assert [t.item() for t in ht.tensor([1, 2])] == [1, 2]
    assert len(ht.zeros(3, 2)) == 3
    assert np.asarray(ht.ones(2)).tolist() == [1, 1]
    with pytest.raises(ht.TensorError, match=r"item\(\) needs one element, got shape \[2\]"):
        ht.zeros(2).item()


def test_numpy_arrays_do_not_swallow_tensors():
    with pytest.raises(TypeError, match="unsupported operand"):
        np.ones(2) - ht.ones(2)
    assert (np.float32(2) * ht.ones(2)).tolist() == [2, 2]


def test_equal_constants_of_two_devices_are_told_apart(engine, monkeypatch):
    other = type(engine)()
    monkeypatch.setitem(device.engines, "other:0", other)
    a, b = ht.arange(3) * 2, ht.arange(3, device="other:0") * 2
    assert a.tolist() == [0, 2, 4]
    assert (b + 1).tolist() == [1, 3, 5]
    assert (engine.runs, other.runs) == (1, 1)
    assert b.device == "other:0"
