"""What is compiled of the recorder does what its Python does: the same keys on the same tapes."""

import gc
import threading
import weakref

import numpy as np
import pytest

import hal
import stack.framework as ht
import stack.framework.functional as F
from hal.core.errors import Failure, FailureKind, OperationFailed, Scope
from stack.framework import devices, nn, store
from stack.framework.cell import here
from stack.framework.jit import Jitted
from stack.framework.recorded import CellTape
from stack.recorder import _walk as walk
from stack.recorder.kin import Inference
from stack.runtime.opening import engine_of


@pytest.fixture(scope="module")
def own_engine():
    # The other tests of this folder run on an interpreter, whose arrays are left to Python.
    with engine_of(hal.open("cpu:0", ())) as found:
        yield found


@pytest.fixture(autouse=True)
def engine(own_engine):
    with devices.default_engine("walked:0", own_engine):
        yield own_engine


@pytest.fixture(params=["compiled", "python"])
def way(request, monkeypatch):
    if request.param == "python":
        leave_to_python(monkeypatch)
    return request.param


def leave_to_python(monkeypatch):
    monkeypatch.setattr(walk, "known", lambda expression, *operands: NotImplemented)
    monkeypatch.setattr(walk, "view", lambda expression, x, *args: None)
    monkeypatch.setattr(walk, "write", lambda expression, x, place, value: False)
    monkeypatch.setattr(walk, "operate", CellTape.operated)
    monkeypatch.setattr(walk, "overwrite", CellTape.overwritten)
    monkeypatch.setattr(Jitted, "__call__", Jitted._call)


def recorded():
    """The keys of this thread's tape: what is on it, in order."""
    return list(here.recordings["walked:0"].tape.keys)


NUMBERS = (0, 1, True, False, 1.0, 0.0, -0.0, float("nan"), float("inf"), 2**40, 2.5, -3)


def arithmetic(x, y):
    for number in NUMBERS:
        x = x * number + y - number / (y + 1)
    return [x, ht.maximum(x, y), F.softmax(x, -1), F.gelu(y, approximate="tanh"), x.to(ht.float64)]


def windows(x, y):
    kept = [
        x[1],
        x[:, 1:3],
        x.t()[0],
        x.view(2, 6),
        x.view(2, 6)[0, ::2],
        x.unsqueeze(0)[0, ..., 2],
    ]
    x[0].add_(y[1])
    x[1:, 2] = y[1:, 0]
    return [*kept, *[k * 2 for k in kept], x.transpose(0, 1).reshape(12), ht.cat([x, y[:2]])]


def gradients(x, y):
    w = ht.ones(4, 4, requires_grad=True)
    z = (x @ w).tanh() * y
    loss = (z[1:] * 3 + y[1:].detach()).sum()
    with ht.no_grad():
        free = w * 2
    loss.backward()
    return [w.grad, free, loss]


def layers(x, y):
    norm, up = nn.LayerNorm(4), nn.Linear(4, 6)
    with ht.no_grad():
        return [up(norm(x)), F.linear(x, up.weight), up.weight[1:3] * 2]


def parts(x, y):
    z = y * 2
    inside, kept = x[1:], x[0]
    x[0] = z[1]  # of a value on the tape, on which there are windows
    inside[:, 1:3] = z[1:, :2]
    x[0, 1:] = x[0, :3]  # within one memory
    y[:, :2] = z[0, :2]  # which broadcasts
    return [kept + 1, inside, x, y, z]


@pytest.mark.parametrize("program", [arithmetic, windows, gradients, layers, parts])
def test_what_is_compiled_records_what_python_does(program, monkeypatch, engine):
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    keys, values = [], []
    for compiled in (True, True, False, False):
        ht.manual_seed(0)
        if not compiled:
            leave_to_python(monkeypatch)
        x, y = ht.tensor(data), ht.tensor(data + 1)
        found = program(x, y)
        keys.append(recorded())
        values.append([v.detach().numpy() for v in (*found, x)])
    assert keys[1] == keys[2] == keys[3]
    for others in values[1:]:
        for one, other in zip(values[0], others, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_path_among_kin_goes_on_as_it_did_without_looking_up(engine, monkeypatch, way):
    weight = ht.tensor(np.ones((4, 4), np.float32))

    def step(cache, at):
        new = (weight[at : at + 1] * 2 + 1) @ weight
        cache = ht.cat([cache, new], 0)
        mean = (cache.sum(0, keepdim=True) * 0.5).tanh() + new
        return cache, mean

    cache, expected = ht.tensor(np.zeros((2, 4), np.float32)), np.zeros((2, 4), np.float32)
    looked = []
    found = Inference.find
    monkeypatch.setattr(Inference, "find", lambda *args: looked.append(args) or found(*args))
    for at in (0, 1, 2, 3, 0, 1):
        looked.clear()
        cache, mean = step(cache, at)
        row = np.full((1, 4), 12, np.float32)
        expected = np.concatenate([expected, row])
        truth = np.tanh(expected.sum(0, keepdims=True) * 0.5) + row
        np.testing.assert_allclose(mean.numpy(), truth, rtol=1e-6)
        np.testing.assert_array_equal(cache.numpy(), expected)
    if way == "compiled":
        assert len(looked) <= 3, "the window, the cache and its sum have other sizes, nothing else"


def test_parts_written_at_places_that_go_on_look_up_the_first_of_each(engine, monkeypatch, way):
    data = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    caches, truth = [ht.zeros(2, 8, 4) for _ in range(3)], np.zeros((2, 8, 4), np.float32)
    looked = []
    found = Inference.find
    monkeypatch.setattr(Inference, "find", lambda *args: looked.append(args) or found(*args))
    for at in (0, 1, 2, 3, 4, 5, 1, 6):
        looked.clear()
        x = ht.tensor(data + at).transpose(1, 2).transpose(1, 2)
        for cache in caches:
            cache[:, at : at + 1] = x[:, 1:2]
            x = x + cache[:, : at + 1].sum(1, keepdim=True)
        truth[:, at : at + 1] = data[:, 1:2] + at
        np.testing.assert_array_equal(caches[0].numpy(), truth)
    if way == "compiled":
        assert len(looked) <= 4, "of the first cache: the others are written and read as it is"


def test_windows_that_are_gone_are_forgotten():
    x = ht.tensor(np.arange(8, dtype=np.float32))
    kept = x[1:3]
    for _ in range(1000):
        x[2:]
    assert len(x._windows) <= 16
    x.mul_(2)
    np.testing.assert_array_equal(kept.numpy(), [2, 4])


@pytest.mark.parametrize("operand", [object(), [1.0], {}, np.float32(2), (1.5,), 1j])
def test_what_is_no_operand_is_left_to_python(operand):
    x = ht.tensor([1.0])
    assert walk.known(F.relu.__wrapped__, x, operand) in (None, NotImplemented)


def test_what_is_adopted_among_kin_has_its_own_type(way):
    for n in (2, 3, 4):
        weight = ht.tensor(np.ones(n, np.float32), requires_grad=True)
        doubled = weight * 2
        doubled.numpy()
        (doubled + 1).numpy()  # on the next tape, which adopts what was doubled
    for n in (5, 6):
        doubled = ht.tensor(np.ones(n, np.float32)) * 2
        assert doubled.shape == (n,)
        np.testing.assert_array_equal(doubled.numpy(), np.full(n, 2, np.float32))


def test_what_no_stack_holds_is_left_to_python(way):
    endless = []
    endless.append(endless)
    x = ht.tensor(np.arange(8, dtype=np.float32))
    with pytest.raises(RecursionError):
        x[endless]
    many = ht.cat([x[i % 8 : i % 8 + 1] for i in range(3000)])
    np.testing.assert_array_equal(many.numpy(), np.arange(3000) % 8)


@pytest.fixture
def replayed(monkeypatch):
    """How many calls of captured functions needed no Python."""
    counted, asked, python = [], [], Jitted._call

    def noted(self, *args, **kwargs):
        asked.append(self)
        return python(self, *args, **kwargs)

    def call(self, *args, **kwargs):
        before = len(asked)
        found = walk.Replaying.__call__(self, *args, **kwargs)
        if len(asked) == before:
            counted.append(found)
        return found

    monkeypatch.setattr(Jitted, "_call", noted)
    monkeypatch.setattr(Jitted, "__call__", call)
    return counted


def of_captured(x, y):
    """What calls give whose arguments and surroundings are of several kinds, and of which of them
    Python decides."""
    weight, kept = ht.tensor(np.full((3, 4), 2, np.float32)), ht.tensor(np.ones(4, np.float32))
    both = ht.jit(lambda x, y: x * weight + y)
    tree = ht.jit(lambda x: {"sums": x.sum(0), "rest": [x * 2, (x.sum(), 3)]})
    none = ht.jit(lambda: weight + kept)
    asks = ht.jit(lambda x, flag=False: x + 1 if flag or ht.is_grad_enabled() else x - 1)
    found = []
    for _ in range(3):
        found += [both(x, y), both(y, x), both(found[-1] if found else x, y), none(), asks(x)]
        found += [asks(x, flag=True), both(x[::1] * 1, y.view(3, 4))]
        parts = tree(x)
        found += [parts["sums"], parts["rest"][0], parts["rest"][1][0]]
        with ht.no_grad():
            found += [asks(x), asks(x.detach())]
            weight.add_(1)
        weight = weight + 1  # another tensor, which the plans do not know
        kept[1:] = found[0][0, 1:]
        found.append(both(x.clone().requires_grad_(), y).detach())
        found.append(both(np.ones((3, 4), np.float32), y))
        found += [both(x[:1], y[:1]), tree(y[1:])["sums"]]
    assert parts["rest"][1][1] == 3
    return found


def test_calls_of_captured_functions_give_what_python_gives(monkeypatch, replayed):
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    compiled = [v.numpy() for v in of_captured(ht.tensor(data), ht.tensor(data + 1))]
    assert replayed
    count = len(replayed)
    leave_to_python(monkeypatch)
    python = [v.numpy() for v in of_captured(ht.tensor(data), ht.tensor(data + 1))]
    assert len(replayed) == count
    for one, other in zip(compiled, python, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_a_captured_call_gives_is_a_tensor_like_any_other(replayed):
    add = ht.jit(lambda x, y: x + y)
    x, y = ht.tensor(np.ones(4, np.float32)), ht.tensor(np.ones(4, np.float32))
    add(x, y)
    made = add(x, y)
    assert replayed == [made]
    del replayed[:]
    assert made.is_leaf
    assert not made.requires_grad
    made.requires_grad_()
    (made * made).sum().backward()
    assert made.grad.tolist() == [4.0] * 4
    again = add(x, y)
    again += x
    x += again
    assert (again.tolist(), x.tolist()) == ([3.0] * 4, [4.0] * 4)
    assert add(x, y).tolist() == [5.0] * 4
    leaf = weakref.ref(again.node)
    del again, replayed[:]
    gc.collect()
    assert leaf() is None, "nothing holds what nobody asks for"


def test_a_captured_call_whose_plan_holds_no_memory_takes_it_again(engine, replayed):
    add = ht.jit(lambda x: x + 1)
    x = ht.tensor(np.ones(4, np.float32))
    add(x)
    add(x)
    (plans,) = add._captured.values()
    plans[0].plan.let_go()
    assert [add(x).tolist() for _ in range(3)] == [[2.0] * 4] * 3
    assert len(replayed) == 4


def test_captured_calls_use_memory_that_came_back_again(engine, replayed):
    """In turns, with blocks of other sizes among those that come back, and while somebody holds
    what an earlier call gave."""
    add = ht.jit(lambda x: x + 1)
    both = ht.jit(lambda x: (x * 2, x.sum()))
    x = ht.tensor(np.arange(4096, dtype=np.float32))
    kept = [add(x), both(x)[0]]
    del kept[0]
    before = engine.pool.stats()
    for i in range(20):
        more, (twice, total) = add(x), both(x)
        if i % 5 == 0:
            kept += [more, twice]
        assert more.tolist() == [*range(1, 4097)]
        assert total.item() == 4096 * 4095 // 2
    after = engine.pool.stats()
    assert len(replayed) >= 36
    assert after.raw_allocations == before.raw_allocations
    assert after.cache_hits - before.cache_hits >= 60
    for i, one in enumerate(kept):
        np.testing.assert_array_equal(one.numpy(), x.numpy() + 1 if i % 2 else x.numpy() * 2)
    used = engine.pool.stats().allocated_nbytes
    del more, twice, total, one, kept[:], replayed[:]
    gc.collect()
    assert engine.pool.stats().allocated_nbytes <= used - 9 * 4096 * 4


def test_a_captured_call_gives_no_block_to_two_threads(engine):
    """Some ask for memory and some give it back, also in Python."""
    add = ht.jit(lambda x: x + 1)
    x = ht.tensor(np.arange(4096, dtype=np.float32))
    add(x)
    failed = []

    def work(number):
        mine = ht.tensor(np.full(4096, number, np.float32), device="walked:0")
        for _ in range(200):
            first, second = add(mine), add(mine)
            if first.numpy()[17] != number + 1 or second.numpy()[-1] != number + 1:
                failed.append(number)
            engine.pool.stats()

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert not any(thread.is_alive() for thread in threads)
    blocks = [life().block for life in list(engine.memory._lives.values()) if life() is not None]
    assert len(set(map(id, blocks))) == len(blocks)


def test_a_captured_call_of_what_has_failed_says_why(engine, replayed):
    add = ht.jit(lambda x: x + 1)
    x = ht.tensor(np.ones(4, np.float32))
    add(x)
    add(x)
    lost = FailureKind.DATA_CORRUPTION, Scope.OPERATION, "walked:0", "add", "lost in a test"
    failure = Failure(*lost, retryable=False)
    store.arrays[x.node].poison(failure)
    with pytest.raises(OperationFailed, match="lost in a test"):
        add(x)
    assert add(ht.tensor(np.ones(4, np.float32))).tolist() == [2.0] * 4
