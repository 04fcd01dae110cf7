"""What can be declared as the state of a rank, and what is refused."""

import numpy as np
import pytest

import stack.framework as ht
from hal.core.errors import InvalidCall
from stack.fault import Training
from stack.fault.state import State
from stack.framework import nn, optim
from stack.framework.errors import CheckpointError
from tests.draw import stream


@pytest.fixture
def model():
    ht.manual_seed(1)
    return nn.Linear(3, 2, device="cpu:0")


def nothing(_):
    pass


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "extra, a object, cannot be declared as state: declare a module, an optimizer"),
        ((lambda: {1, 2}, nothing), "extra: a set is neither a tensor nor plain data"),
        ((lambda: {"a": [object()]}, nothing), "extra.a.0: a object is neither a tensor nor"),
        ((lambda: ht.zeros(3), nothing), "declare the module or optimizer that holds them"),
    ],
)
def test_what_cannot_be_copied_is_refused_where_it_is_declared(model, value, said):
    with pytest.raises(CheckpointError, match=said):
        Training(model, parts=4, extra=value)


def test_a_training_of_nothing(model):
    with pytest.raises(InvalidCall, match="a batch in 0 parts"):
        Training(model, parts=0)
    with pytest.raises(InvalidCall, match="takes a model on one device, not"):
        Training(nn.ReLU(), parts=2)


def test_what_was_read_comes_back_bit_for_bit(model):
    optimizer, position = optim.AdamW(model.parameters()), [7]

    def go_to(at):
        position[0] = at

    state = State({"model": model, "opt": optimizer, "at": (lambda: position[0], go_to)})
    memory, plain = np.empty(state.nbytes, np.uint8), state.plain()
    state.read(memory)
    wanted = state.digests(memory)
    for _ in range(5):
        state.flip(stream("flips").randrange(1 << 62))
    go_to(8)
    state.look()
    other = np.empty_like(memory)
    state.read(other)
    assert (state.digests(other) != wanted).any()
    state.take(memory, plain)
    state.look()
    state.read(other)
    assert (state.digests(other) == wanted).all()
    assert position == [7]
    assert optimizer.param_groups[0]["lr"] == 1e-3


def test_steps_that_parameters_count_apart_come_back(model):
    optimizer, params = optim.Adam(model.parameters()), list(model.parameters())

    def step(optimizer, params, missing):
        for i, p in enumerate(params):
            p.grad = None if i == missing else ht.ones_like(p)
        optimizer.step()

    step(optimizer, params, 0)
    step(optimizer, params, None)
    state = State({"model": model, "opt": optimizer})
    memory = np.empty(state.nbytes, np.uint8)
    state.read(memory)
    plain, values = state.plain(), [p.detach().clone() for p in params]
    step(optimizer, params, None)
    with ht.no_grad():
        for p, v in zip(params, values, strict=True):
            p.copy_(v)
    newcomer = optim.Adam(model.parameters())
    State({"model": model, "opt": newcomer}).take(memory, plain)
    assert [newcomer.state[p]["step"].item() for p in params] == [1.0, 2.0]
    expected = [p.detach().numpy() for p in params]
    step(newcomer, params, None)
    for p, before in zip(params, expected, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), before - 1e-3, rtol=0, atol=2e-6)
