"""Checkpoints come back as they were, or say what is wrong; a failed save harms nothing."""

import errno
import os
import resource
import signal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import stack.framework as ht
from stack.framework import checkpoint, nn, optim


def test_everything_comes_back(tmp_path):
    tree = {
        "model": {
            "w": ht.tensor([[1.5, -2.0]]),
            "b": ht.tensor([0.1]).bfloat16(),
            "n": ht.arange(3),
        },
        "flags": [ht.tensor([True, False]), None, "text", 3, 2.5, True],
        "pair": (1, ht.tensor(7.0)),
        3: {"four": {}},
    }
    checkpoint.save(tmp_path / "c", tree)
    back = checkpoint.load(tmp_path / "c")
    assert back["model"]["w"].tolist() == [[1.5, -2.0]]
    assert back["model"]["b"].dtype is ht.bfloat16
    assert back["model"]["b"].float().item() == np.float32(0.10009765625)
    assert back["model"]["n"].tolist() == [0, 1, 2]
    assert back["flags"][0].tolist() == [True, False]
    assert back["flags"][1:] == [None, "text", 3, 2.5, True]
    assert (back["pair"][0], back["pair"][1].item()) == (1, 7)
    assert back[3] == {"four": {}}


def test_the_file_is_plain_safetensors(tmp_path):
    checkpoint.save(tmp_path / "c", {"model": {"w": ht.ones(2)}})
    assert load_file(tmp_path / "c")["model.w"].tolist() == [1, 1]


def test_a_training_goes_on_as_if_nothing_had_happened(tmp_path):
    def make():
        ht.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 1))
        return model, optim.AdamW(model.parameters(), lr=0.05)

    def run(model, optimizer, steps):
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(ht.ones(2, 3)).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    model, optimizer = make()
    run(model, optimizer, 3)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": ht.default_generator().get_state(),
    }
    checkpoint.save(tmp_path / "c", state)
    expected = run(model, optimizer, 3)
    model, optimizer = make()
    back = checkpoint.load(tmp_path / "c")
    model.load_state_dict(back["model"])
    optimizer.load_state_dict(back["optimizer"])
    ht.default_generator().set_state(*back["random"])
    assert run(model, optimizer, 3) == expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 10_000))
def test_a_truncated_file_is_refused_by_name(cut, tmp_path):
    path = tmp_path / "whole"
    checkpoint.save(path, {"w": ht.ones(50), "step": 3})
    data = path.read_bytes()
    short = tmp_path / "short"
    short.write_bytes(data[: cut % len(data)])
    with pytest.raises(ht.CheckpointError, match=r"short \(.* bytes\) is not a whole .*cut short"):
        checkpoint.load(short)


def test_foreign_files_are_refused_by_name(tmp_path):
    (tmp_path / "text").write_text("not a checkpoint at all, but long enough to have a header")
    with pytest.raises(ht.CheckpointError, match=r"text .* is not a whole safetensors checkpoint"):
        checkpoint.load(tmp_path / "text")
    save_file({"w": np.ones(2)}, tmp_path / "other")
    with pytest.raises(ht.CheckpointError, match="other is a safetensors file, but not"):
        checkpoint.load(tmp_path / "other")
    with pytest.raises(ht.CheckpointError, match=r"there is no checkpoint .*nowhere"):
        checkpoint.load(tmp_path / "nowhere")


def test_what_cannot_be_saved_is_named(tmp_path):
    with pytest.raises(ht.CheckpointError, match=r"cannot save a\.b: a object is neither"):
        checkpoint.save(tmp_path / "c", {"a": {"b": object()}})
    assert list(tmp_path.iterdir()) == []


def test_two_tensors_of_one_name_are_refused(tmp_path):
    with pytest.raises(ht.CheckpointError, match=r"two tensors under one name, a\.b"):
        checkpoint.save(tmp_path / "c", {"a.b": ht.ones(1), "a": {"b": ht.ones(1)}})


def test_a_full_disk_leaves_the_older_file(tmp_path):
    path = tmp_path / "c"
    checkpoint.save(path, {"w": ht.ones(4)})
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(
            ht.CheckpointError, match=r"cannot write .* bytes\).*older file is unchanged"
        ):
            checkpoint.save(path, {"w": ht.ones(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["c"]
    assert checkpoint.load(path)["w"].tolist() == [1] * 4


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ht.CheckpointError, match=os.strerror(errno.ENOENT)):
        checkpoint.save(tmp_path / "none" / "c", {})


def test_an_interrupt_while_writing_leaves_the_older_file(tmp_path, monkeypatch):
    path = tmp_path / "c"
    checkpoint.save(path, {"w": ht.ones(4)})
    before = path.read_bytes()

    def interrupted(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(path, {"w": ht.zeros(4)})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["c"]


def test_all_values_are_read_by_one_request(tmp_path, engine):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    optimizer = optim.AdamW(model.parameters())
    ht.realize(*model.parameters())
    runs = engine.runs
    checkpoint.save(tmp_path / "c", {"m": model.state_dict(), "o": optimizer.state_dict()})
    assert engine.runs <= runs + 2
