"""Steps of a training, in folders that other ranks and other readers take."""

import numpy as np
import pytest
from safetensors.numpy import load_file

import stack.framework as ht
from hal.core.errors import HalError
from stack.framework import nn, optim
from stack.framework.checkpoints import TreeCheckpoints
from stack.storage import NoCheckpoint


def test_a_tree_comes_back_as_it_was(tmp_path):
    tree = {
        "model": {"w": ht.tensor([[1.5, -2.0]]), "b": ht.tensor([0.1]).bfloat16()},
        "lists": [ht.tensor([True, False]), None, "text", (3, ht.tensor(7.0))],
        "alone": ht.arange(3),
        "step": 4,
        "nothing": {},
    }
    with TreeCheckpoints(tmp_path) as checkpoints:
        assert checkpoints.newest() is None
        checkpoints.save(4, tree)
        step, back = checkpoints.load()
        assert (step, checkpoints.newest()) == (4, 4)
    assert back["model"]["w"].tolist() == [[1.5, -2.0]]
    assert back["model"]["b"].dtype is ht.bfloat16
    assert back["lists"][0].tolist() == [True, False]
    assert back["lists"][1:3] == [None, "text"]
    assert (back["lists"][3][0], back["lists"][3][1].item()) == (3, 7)
    assert back["alone"].tolist() == [0, 1, 2]
    assert (back["step"], back["nothing"]) == (4, {})
    read = load_file(tmp_path / "step-000000000004/lists.safetensors")
    assert read["0"].tolist() == [True, False]


def test_a_training_saved_in_the_background_goes_on_as_if_nothing_had_happened(tmp_path):
    def make():
        ht.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        return model, optim.AdamW(model.parameters(), lr=0.05)

    def run(model, optimizer, steps):
        x = ht.tensor(np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3))
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    with TreeCheckpoints(tmp_path, keep=1) as checkpoints:
        model, optimizer = make()
        run(model, optimizer, 3)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        checkpoints.save(3, state, background=True)
        want = run(model, optimizer, 3)
        model, optimizer = make()
        _, state = checkpoints.load()
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        assert run(model, optimizer, 3) == want


def test_what_cannot_be_saved_or_loaded_is_said(tmp_path):
    with TreeCheckpoints(tmp_path) as checkpoints:
        with pytest.raises(ht.CheckpointError, match="names at its top, not 3"):
            checkpoints.save(1, {3: ht.ones(2)})
        with pytest.raises(ht.CheckpointError, match="neither a tensor nor plain data"):
            checkpoints.save(1, {"model": {"x": object()}})
        with pytest.raises(HalError, match="'a b' cannot name files"):
            checkpoints.save(1, {"a b": {"w": ht.ones(2)}})
        with pytest.raises(NoCheckpoint):
            checkpoints.load()
