"""Checkpoints come back as they were, or say what is wrong; a failed save harms nothing."""

import errno
import io
import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
from collections import namedtuple
from enum import IntEnum

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save, save_file

import stack.framework as ht
from stack.framework import checkpoint, nn, optim
from tests.framework.checkpoint_mutants import mutants, refused_or_whole


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


def flipped_bits_are_found(path, places):
    """Flip a bit at each place of a file, one after the other."""
    choose = random.Random(5)
    with path.open("r+b", buffering=0) as stream:
        for at in places:
            byte = os.pread(stream.fileno(), 1, at)[0]
            os.pwrite(stream.fileno(), bytes([byte ^ 1 << choose.randrange(8)]), at)
            with pytest.raises(ht.CheckpointError, match=str(path)):
                checkpoint.load(path)
            os.pwrite(stream.fileno(), bytes([byte]), at)


def test_a_flipped_bit_at_any_place_is_found(tmp_path):
    """At every byte of the header, and at places in each block of the data."""
    path = tmp_path / "c"
    small = checkpoint_of(path, {"step": 3, "w": ht.ones(2), "b": ht.tensor([1.5]).bfloat16()})
    text = len(small[: 8 + int.from_bytes(small[:8], "little")].rstrip())
    flipped_bits_are_found(path, [*range(text + 2), *range(4090, len(small))])
    large = checkpoint_of(path, {"w": ht.arange(5 << 20).float()})
    choose = random.Random(6)
    places = [choose.randrange(4096, len(large)) for _ in range(12)]
    flipped_bits_are_found(path, [*places, len(large) - 1])
    assert checkpoint.load(path)["w"][-1].item() == (5 << 20) - 1


def checkpoint_of(path, tree):
    """The bytes of a file."""
    checkpoint.save(path, tree)
    return path.read_bytes()


def test_damage_is_named_by_tensor_and_range(tmp_path):
    path = tmp_path / "c"
    checkpoint.save(path, {"model": {"a": ht.zeros(3 << 20), "b": ht.zeros(3 << 20)}})
    data = bytearray(path.read_bytes())
    data[4096 + (9 << 20)] ^= 1
    path.write_bytes(data)
    low, high = 4096 + (8 << 20), 4096 + (16 << 20)
    with pytest.raises(
        ht.CheckpointError, match=rf"bytes {low:,} to {high:,} \(model.a, model.b\) are not what"
    ):
        checkpoint.load(path)


def test_files_of_earlier_versions_load(tmp_path):
    state = '{"dict": [["w", {"tensor:": "w"}], ["n", {"list": [1]}]]}'
    save_file({"w": np.arange(3, dtype=np.float32)}, tmp_path / "c", {"state": state})
    back = checkpoint.load(tmp_path / "c")
    assert (back["w"].tolist(), back["n"]) == ([0, 1, 2], [1])


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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(cut=st.integers(0, 10_000))
def test_a_truncated_file_is_refused_by_name(cut, tmp_path):
    path = tmp_path / "whole"
    checkpoint.save(path, {"w": ht.ones(50), "step": 3})
    data = path.read_bytes()
    short = tmp_path / "short"
    short.write_bytes(data[: cut % len(data)])
    with pytest.raises(ht.CheckpointError, match=r"short \(.* bytes\) is not a whole .*cut short"):
        checkpoint.load(short)
    short.write_bytes(data[:-1])
    with pytest.raises(ht.CheckpointError, match=rf"cut short: w is to end at byte {len(data):,}"):
        checkpoint.load(short)


def test_foreign_files_are_refused_by_name(tmp_path):
    (tmp_path / "text").write_text("not a checkpoint at all, but long enough to have a header")
    with pytest.raises(ht.CheckpointError, match=r"text .* is not a whole safetensors checkpoint"):
        checkpoint.load(tmp_path / "text")
    with pytest.raises(ht.CheckpointError, match=r"there is no checkpoint .*nowhere"):
        checkpoint.load(tmp_path / "nowhere")
    for name, content, kind in (
        ("x.onnx", b"\x08\x08\x12\x07pytorch" + bytes(90), "ONNX model; convert its tensors"),
        ("x.pt", b"PK\x03\x04" + b"archive/data.pkl" * 9, "zip archive without its end"),
        ("x.bin", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." * 9, "pickle, which could run code"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ht.CheckpointError, match=rf"{name} .* {kind}"):
            checkpoint.load(tmp_path / name)


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


Pair = namedtuple("Pair", "a b")


class Color(IntEnum):
    RED = 1


class Text(str):
    pass


def nested(depth):
    tree = {"x": 1}
    for _ in range(depth):
        tree = {"x": tree}
    return tree


def circle():
    tree = {}
    tree["x"] = tree
    return tree


REFUSED = {
    "namedtuple": (lambda: {"a": Pair(1, 2)}, "cannot save a: a Pair is neither"),
    "tuple-key": (lambda: {(1, 2): 1}, "cannot save a key: a tuple is neither"),
    "tuple-key-below": (lambda: {"a": {(1, 2): 1}}, "cannot save a key of a: a tuple is neither"),
    "metadata": (lambda: {"__metadata__": ht.ones(1)}, "under the name __metadata__"),
    "surrogate-name": (lambda: {"\udc80": ht.ones(1)}, r"'\\udc80' is no Unicode text"),
    "surrogate-key": (lambda: {"\ud800": 1}, r"'\\ud800' is no Unicode text"),
    "surrogates": (lambda: {"a": "\ud83d" + "\ude00"}, "cannot save 'a': .* is no Unicode text"),
    "numpy-float": (lambda: {"a": np.float64(1)}, r"cannot save a: a numpy float64 .*\.item\(\)"),
    "numpy-int": (lambda: {"a": [np.int32(1)]}, r"cannot save a\.0: a numpy int32"),
    "numpy-key": (lambda: {np.int32(1): 1}, "cannot save a key: a numpy int32"),
    "numpy-array": (lambda: {"a": np.ones(2)}, "a ndarray is neither"),
    "enum": (lambda: {"a": Color.RED}, "a Color is neither"),
    "text-of-a-class": (lambda: {"a": Text("b")}, "a Text is neither"),
    "bytes": (lambda: {"a": b"b"}, "a bytes is neither"),
    "set": (lambda: {"a": {1}}, "a set is neither"),
    "long-number": (lambda: {"a": 10**5000}, "cannot save a: a number so long"),
    "long-key": (lambda: {10**5000: 1}, "cannot save a key: a number so long"),
    "deep": (lambda: nested(checkpoint.DEEPEST + 1), "more than 100 levels deep"),
    "circle": (circle, "more than 100 levels deep"),
    "list": (lambda: [1], "a checkpoint is a dict, not a list"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_come_back_is_refused_before_anything_is_written(tmp_path, name):
    make, words = REFUSED[name]
    with pytest.raises(ht.CheckpointError, match=words):
        checkpoint.save(tmp_path / "c", make())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_more_state_than_safetensors_takes_is_refused(tmp_path):
    with pytest.raises(ht.CheckpointError, match="put large data into tensors"):
        checkpoint.save(tmp_path / "c", {"a": "x" * 40_000_000})
    assert list(tmp_path.iterdir()) == []


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**40), 10**40),
    st.floats(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)
TREES = st.dictionaries(
    PLAIN,
    st.recursive(
        PLAIN,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(PLAIN, inner, max_size=3),
        ),
        max_leaves=12,
    ),
    max_size=4,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(tree=TREES)
def test_every_plain_tree_comes_back_with_its_types(tmp_path, tree):
    checkpoint.save(tmp_path / "c", tree)
    assert repr(checkpoint.load(tmp_path / "c")) == repr(tree)


def test_the_deepest_tree_comes_back(tmp_path):
    tree = nested(checkpoint.DEEPEST - 1)
    checkpoint.save(tmp_path / "c", tree)
    assert checkpoint.load(tmp_path / "c") == tree


STATES = {
    "no-json": "{",
    "nothing": "",
    "null": "null",
    "number": "3",
    "text": '"dict"',
    "list": "[]",
    "empty-dict": "{}",
    "other-kind": '{"set": []}',
    "two-kinds": '{"dict": [], "list": []}',
    "dict-of-number": '{"dict": 3}',
    "dict-of-dict": '{"dict": {"a": 1}}',
    "pair-of-one": '{"dict": [["a"]]}',
    "pair-of-three": '{"dict": [["a", 1, 2]]}',
    "pair-of-text": '{"dict": ["ab"]}',
    "list-as-key": '{"dict": [[["a"], 1]]}',
    "dict-as-key": '{"dict": [[{}, 1]]}',
    "one-key-twice": '{"dict": [["a", 1], ["a", 2]]}',
    "list-of-null": '{"dict": [["a", {"list": null}]]}',
    "bare-list": '{"dict": [["a", [1]]]}',
    "no-such-tensor": '{"dict": [["a", {"tensor:": "b"}]]}',
    "tensor-of-list": '{"dict": [["a", {"tensor:": ["w"]}]]}',
    "tensor-of-null": '{"dict": [["a", {"tensor:": null}]]}',
    "tensor": '{"tensor:": "w"}',
    "tuple": '{"tuple": []}',
    "deep": '{"dict": [["a", ' * 5000 + "1" + "]]}" * 5000,
    "too-deep": '{"dict": [["a", ' * 102 + "1" + "]]}" * 102,
    "deep-lists": "[" * 100_000,
    "long-number": '{"dict": [["a", ' + "1" * 5000 + "]]}",
}


@pytest.mark.parametrize("name", STATES)
def test_a_hostile_state_is_refused_by_name(tmp_path, name):
    save_file({"w": np.ones(2)}, tmp_path / "c", {"state": STATES[name]})
    with pytest.raises(ht.CheckpointError, match=r"[/]c "):
        checkpoint.load(tmp_path / "c")


def with_header(change):
    """A file whose header was changed."""
    data = save({"w": np.ones(2, np.float32)}, {"state": '{"dict": [["a", {"tensor:": "w"}]]}'})
    nbytes = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + nbytes])
    change(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + nbytes :]


HEADERS = {
    "dtype": lambda h: h["w"].update(dtype="F8_E8M0", shape=[8]),
    "small-dtype": lambda h: h["w"].update(dtype="F4", shape=[16]),
    "complex": lambda h: h["w"].update(dtype="C64", shape=[1]),
    "unknown-dtype": lambda h: h["w"].update(dtype="Q32"),
    "shape": lambda h: h["w"].update(shape=[3]),
    "huge-shape": lambda h: h["w"].update(shape=[1 << 62, 8]),
    "negative-shape": lambda h: h["w"].update(shape=[-2]),
    "offsets": lambda h: h["w"].update(data_offsets=[0, 1 << 40]),
    "backwards": lambda h: h["w"].update(data_offsets=[8, 0]),
    "overlap": lambda h: h.update(v=dict(h["w"])),
    "no-state": lambda h: h.update(__metadata__={"stat": h["__metadata__"]["state"]}),
    "metadata-of-numbers": lambda h: h.update(__metadata__={"state": 3}),
    "no-dtype": lambda h: h["w"].pop("dtype"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_hostile_header_is_refused_by_name(tmp_path, name):
    (tmp_path / "c").write_bytes(with_header(HEADERS[name]))
    with pytest.raises(ht.CheckpointError, match=r"[/]c[ :]"):
        checkpoint.load(tmp_path / "c")


def test_mutated_files_are_refused_or_whole(tmp_path):
    """`python -m tests.framework.checkpoint_mutants 5000` looks at more of them."""
    outcomes = [refused_or_whole(tmp_path / "c", m) for m in mutants(random.Random(13), 250)]
    assert 20 < sum(outcomes) < 240, "some are refused, and some change a name or a value"
    signed = checkpoint_of(tmp_path / "whole", {"model": {"w": ht.ones(2, 3)}, "step": 7})
    changed = [m for m in mutants(random.Random(14), 150, signed) if m != signed]
    assert all(refused_or_whole(tmp_path / "c", m) for m in changed)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o666, 0o400])
@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_the_mode_of_the_file_that_is_replaced_stays(tmp_path, mode, mask):
    path = tmp_path / "c"
    before = os.umask(mask)
    try:
        checkpoint.save(path, {"a": 1})
        assert path.stat().st_mode & 0o7777 == 0o666 & ~mask
        path.chmod(mode)
        checkpoint.save(path, {"a": 2})
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o7777 == mode
    assert checkpoint.load(path) == {"a": 2}


@pytest.mark.parametrize("relative", [False, True])
def test_a_symbolic_link_stays_and_its_target_is_replaced(tmp_path, relative):
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "real", tmp_path / "latest"
    link.symlink_to("far/real" if relative else target)
    for number in range(2):
        checkpoint.save(link, {"a": number})
        assert link.is_symlink()
        assert not target.is_symlink()
        assert checkpoint.load(target) == checkpoint.load(link) == {"a": number}
    assert os.listdir(tmp_path / "far") == ["real"]


@pytest.mark.parametrize("kind", ["folder", "pipe", "circle"])
def test_what_is_no_file_is_not_replaced(tmp_path, kind):
    path = tmp_path / "c"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path)
    with pytest.raises(ht.CheckpointError, match="cannot write the checkpoint"):
        checkpoint.save(path, {"a": 1})
    assert os.listdir(tmp_path) == ["c"]
    with pytest.raises(ht.CheckpointError, match="there is no checkpoint"):
        checkpoint.load(path)


@pytest.mark.slow
def test_what_a_killed_save_left_goes_with_the_next_one(tmp_path):
    """The process stops where the bytes are to be made durable, and is killed there."""
    text = f"""
import os, time
from stack.framework import checkpoint
checkpoint.save({str(tmp_path / "c")!r}, {{"a": 0}})
def stop(file):
    print("stopped", flush=True)
    time.sleep(60)
os.fsync = stop
checkpoint.save({str(tmp_path / "c")!r}, {{"a": 1}})
"""
    saver = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
    try:
        assert select.select([saver.stdout], [], [], 60)[0]
        assert len(os.listdir(tmp_path)) == 2
        checkpoint.save(tmp_path / "c", {"a": 2})
        assert len(os.listdir(tmp_path)) == 2, "it lives"
    finally:
        saver.kill()
        saver.wait(20)
        saver.stdout.close()
    checkpoint.save(tmp_path / "other", {"a": 3})
    assert len(os.listdir(tmp_path)) == 3, "another file's save does not look at it"
    checkpoint.save(tmp_path / "c", {"a": 4})
    assert sorted(os.listdir(tmp_path)) == ["c", "other"]
    assert checkpoint.load(tmp_path / "c") == {"a": 4}


def test_an_open_file_is_written_and_read_in_pytorchs_order(tmp_path):
    tree, memory = {"w": ht.tensor([1.0, 2.0]), "step": 3}, io.BytesIO()
    ht.save(tree, memory)
    memory.seek(0)
    with open(tmp_path / "file", "wb") as file:
        ht.save(tree, file)
    with open(tmp_path / "file", "rb") as file:
        for found in (ht.load(memory), ht.load(file), ht.load(tmp_path / "file")):
            assert (found["w"].tolist(), found["step"]) == ([1.0, 2.0], 3)
