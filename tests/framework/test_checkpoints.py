"""Steps of a training, in folders that other ranks and other readers take."""

import numpy as np
import pytest
from safetensors.numpy import load_file

import stack.framework as ht
from hal.core.errors import HalError
from hal.core.values import Point
from stack.framework import nn, optim
from stack.framework.checkpoints import TreeCheckpoints
from stack.runtime.opening import engine_for
from stack.storage import NoCheckpoint
from tests.comm.engine.crew import crews


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


def each_tensor(tree, function):
    """The tree with function(tensor) for each of its tensors."""
    if isinstance(tree, dict):
        return {k: each_tensor(v, function) for k, v in tree.items()}
    if isinstance(tree, list):
        return [each_tensor(v, function) for v in tree]
    return function(tree) if isinstance(tree, ht.Tensor) else tree


@pytest.mark.slow
def test_only_the_next_update_waits_until_a_save_in_the_background_has_copied(tmp_path):
    """Rank 1 begins late, so rank 0 cannot copy before. Losses and what is saved are those of a
    training that saves nothing."""
    start = np.linspace(-1, 1, 200 * 90, dtype=np.float32).reshape(200, 90)
    x = ht.tensor(start[:, :4].T, device="cpu:0")

    def make():
        weight = nn.Parameter(ht.tensor(start, device="cpu:0"))
        optimizer = optim.AdamW([weight], lr=0.05)

        @ht.jit
        def step():
            optimizer.zero_grad()
            loss = ((x @ weight) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        def state():
            parts = {"rows": weight[3:5], "columns": weight[:, 7:9]}
            return {"weight": weight, "optimizer": optimizer.state_dict(), **parts}

        return step, state

    def values(tree):
        return each_tensor(tree, lambda t: t.numpy().tobytes())

    step, state = make()
    losses, states = [], []
    for _ in range(4):
        losses.append(step().item())
        states.append(values(state()))
    step, state = make()
    stream = engine_for("cpu:0").stream
    with (
        crews(2) as [crew],
        TreeCheckpoints(tmp_path, crew.groups[0]) as checkpoints,
        TreeCheckpoints(tmp_path, crew.groups[1]) as others,
    ):
        assert step().item() == losses[0]
        for i in range(1, 4):
            equal = each_tensor(state(), lambda t: ht.tensor(t.numpy(), device="cpu:0"))
            checkpoints.save(i, state(), background=True)
            before = stream.submitted_value
            loss = step()
            newest = stream.submitted_value
            assert stream.device.wait([Point(stream.timeline, before + 1)], 20, True)
            assert not stream.device.wait([Point(stream.timeline, newest)], 0, True)
            others.save(i, equal, background=True)
            assert loss.item() == losses[i]
        checkpoints.wait_idle()
        others.wait_idle()
    with TreeCheckpoints(tmp_path) as checkpoints:
        for i in range(1, 4):
            assert values(checkpoints.load(i, "cpu:0")[1]) == states[i - 1]


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
