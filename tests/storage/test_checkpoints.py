"""One rank's checkpoints: what they hold, what they refuse, and what they say."""

import errno
import json
import os
import select
import subprocess
import sys
import threading

import numpy as np
import pytest
from crc32c import crc32c
from safetensors import safe_open
from safetensors.numpy import load_file

from stack.storage import (
    CheckpointLimits,
    Checkpoints,
    Damaged,
    Mismatch,
    NoCheckpoint,
    Occupied,
    Refused,
    StorageError,
    TensorShard,
)
from stack.storage.folder import Folder
from stack.storage.manifest import MANIFEST, decoded
from tests.storage.states import SMALL, Wrapped, differs, state

STATE = state()
STEP = "step-000000000001"


def checkpoints(where, **more):
    # Writing in the background gives way to whatever else runs on a busy machine.
    return Checkpoints(where, limits=SMALL, deadline_s=120, **more)


def test_files_are_what_safetensors_reads(tmp_path):
    with checkpoints(tmp_path) as c:
        c.save(1, STATE, {"a": 1})
    folder = tmp_path / STEP
    for group, members in STATE.items():
        index = json.loads((folder / f"{group}.safetensors.index.json").read_text())
        assert set(index["weight_map"]) == set(members)
        assert index["metadata"]["total_size"] == sum(a.nbytes for a in members.values())
        for name, file in index["weight_map"].items():
            with safe_open(folder / file, "numpy") as opened:
                assert opened.metadata() == {"format": "pt"}
                if members[name].dtype.isbuiltin == 1:
                    assert opened.get_tensor(name).tobytes() == members[name].tobytes(), name
        for file in set(index["weight_map"].values()):
            assert load_header_length(folder / file) % 4096 == 0


def load_header_length(file):
    return 8 + int.from_bytes(file.read_bytes()[:8], "little")


@pytest.mark.slow
def test_torch_reads_files_with_tensors_of_all_sizes(tmp_path):
    torch = pytest.importorskip("torch")
    read = pytest.importorskip("safetensors.torch").load_file
    with Checkpoints(tmp_path) as c:
        c.save(1, STATE)
    loaded = read(tmp_path / STEP / "model.safetensors")
    assert set(loaded) == set(STATE["model"])
    for name, tensor in loaded.items():
        flat = tensor.contiguous().reshape(-1)
        assert flat.view(torch.uint8).numpy().tobytes() == STATE["model"][name].tobytes(), name


def test_a_step_saved_again_replaces_the_older_one(tmp_path):
    with checkpoints(tmp_path, keep=2) as c:
        for step in (5, 6, 7):
            for number in range(3):
                c.save(step, state(number), number)
        assert c.steps() == [7, 6]
        assert c.load(step=6).state == 2
        assert not differs(c.load().tensors, state(2))
    assert len(list(tmp_path.glob("step-*"))) == 2


def test_later_steps_are_of_a_run_that_is_given_up_or_stay(tmp_path):
    with checkpoints(tmp_path) as c:
        for step in (5, 6, 7):
            c.save(step, state(step), step)
        with pytest.raises(StorageError, match="has step 7, which is later than 6: save"):
            c.save(6, state(1))
        assert c.steps() == [7, 6, 5]
        c.save(6, state(1), later="remove")
        assert c.steps() == [6, 5]
        assert not differs(c.load().tensors, state(1))


def test_a_newest_step_that_is_damaged_beyond_repair_is_passed_over_with_a_warning(tmp_path):
    with checkpoints(tmp_path) as c:
        c.save(1, STATE)
        c.save(2, STATE)
        file = tmp_path / "step-000000000002/model.safetensors"
        data = bytearray(file.read_bytes())
        data[5000] ^= 1
        file.write_bytes(data)
        with pytest.warns(RuntimeWarning, match=r"000002/model.* loading step-000000000001"):
            loaded = c.load()
        assert loaded.step == 1
        assert not differs(loaded.tensors, STATE)
        with pytest.raises(Damaged, match="the checksum differs"):
            c.load(step=2)


def test_files_of_expired_steps_are_written_over(tmp_path):
    big = {"model": {"w": np.random.default_rng(0).random((3 << 20,), np.float32)}}
    less = {"model": {"w": big["model"]["w"][: 9 << 18]}}
    with Checkpoints(tmp_path, keep=1) as c:
        c.save(1, big)
        c.save(2, big)
        before = {f.stat().st_ino for f in (tmp_path / ".spare").iterdir()}
        c.save(3, less)
        file = tmp_path / "step-000000000003/model.safetensors"
        assert {file.stat().st_ino} == before
        assert not differs(c.load().tensors, less)
        assert load_file(file)["w"].tobytes() == less["model"]["w"].tobytes()


def test_what_is_not_there_is_said(tmp_path):
    with checkpoints(tmp_path) as c:
        with pytest.raises(NoCheckpoint, match=r"no whole checkpoint in file:.*steps there: none"):
            c.load()
        c.save(1, STATE)
        with pytest.raises(NoCheckpoint, match=r"of step 2 in .*steps there: 1\)"):
            c.load(step=2)


def test_another_models_checkpoint_is_said_in_full(tmp_path):
    def tensors(**shapes):
        return {"model": {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}}

    with checkpoints(tmp_path) as c:
        c.save(1, {**tensors(a=(2, 3), b=(4,), c=(1,)), "optimizer": {"m": np.zeros(3)}})
        with pytest.raises(Mismatch) as caught:
            c.load(tensors(a=(3, 2), b=(4,), d=(5,)))
        text = str(caught.value)
        assert "it lacks model/d" in text
        assert "it has too much: model/c" in text
        assert "model/a (F32[2, 3], not F32[3, 2])" in text
        assert "optimizer" not in text
        assert c.load(tensors(a=(2, 3), b=(4,), c=(1,))).step == 1


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ({"model": {"w": np.zeros(2, complex)}}, "cannot hold elements of complex128"),
        ({"../model": {"w": np.zeros(2)}}, "'../model' cannot name files"),
        ({"model": {"__metadata__": np.zeros(2)}}, "safetensors keeps that name"),
        (
            {
                "model": {
                    "w": TensorShard(
                        np.zeros(3), (4,), np.dtype("f8"), TensorShard.whole(np.zeros(4)).part
                    )
                }
            },
            r"a part with \(4,\) elements of float64 is an array of shape \(3,\)",
        ),
    ],
)
def test_what_cannot_be_saved_is_said(tensors, text, tmp_path):
    with checkpoints(tmp_path) as c, pytest.raises(StorageError, match=text):
        c.save(1, tensors)


def changed_manifest(tmp_path, **fields):
    """Write the manifest anew, with a right checksum."""
    path = tmp_path / STEP / MANIFEST
    body = json.loads(path.read_text())["manifest"] | fields
    text = json.dumps(body).encode()
    path.write_bytes(b'{"crc32c":"%08x","manifest":' % crc32c(text) + text + b"}\n")
    return body


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "a/b", ".hidden", "", 3, ".."])
def test_a_manifest_names_nothing_outside_of_its_folder(name, tmp_path):
    with checkpoints(tmp_path) as c:
        c.save(1, {"model": {"w": np.zeros(3)}})
        body = changed_manifest(tmp_path)
        files = [dict(f, name=name) for f in body["files"][:1]] + body["files"][1:]
        changed_manifest(tmp_path, files=files)
        with pytest.raises(NoCheckpoint, match="no name of a file in the step's folder"):
            c.load()


@pytest.mark.parametrize(
    "fields",
    [
        {"block": 0},
        {"block": -1},
        {"step": "1"},
        {"files": {}},
        {"tensors": [["model", "w", "F64", [4], "model.safetensors", 4096, 4120]]},
        {"tensors": [["model", "w", "F64", [3], "model.safetensors", 8000, 8024]]},
        {"tensors": [["model", "w", "F63", [3], "model.safetensors", 4096, 4120]]},
        {"tensors": [["model", "w", "F64", [3], "no.safetensors", 4096, 4120]]},
    ],
)
def test_a_manifest_that_says_what_cannot_be_is_refused(fields, tmp_path):
    with checkpoints(tmp_path) as c:
        c.save(1, {"model": {"w": np.zeros(3)}})
        changed_manifest(tmp_path, **fields)
        with pytest.raises(NoCheckpoint, match="says what no checkpoint has"):
            c.load()


def test_a_manifest_of_a_later_version_is_said_and_the_older_step_loads(tmp_path):
    with checkpoints(tmp_path) as c:
        c.save(0, {"model": {"w": np.zeros(3)}})
        c.save(1, {"model": {"w": np.zeros(3)}})
        changed_manifest(tmp_path, version=2)
        with pytest.warns(RuntimeWarning, match="version 2; this program reads version 1"):
            assert c.load().step == 0


def test_a_manifest_is_read_as_it_was_written(tmp_path):
    with checkpoints(tmp_path, parity=1) as c:
        c.save(1, STATE, {"x": [1, 2.5, None]})
    data = (tmp_path / STEP / MANIFEST).read_bytes()
    found = decoded(data, "here")
    assert found.encoded() == data
    assert found.state == {"x": [1, 2.5, None]}


def test_a_second_job_is_kept_out_until_the_first_one_ends(tmp_path):
    program = (
        "import sys, time, numpy as np\nfrom stack.storage import Checkpoints\n"
        f"c = Checkpoints({str(tmp_path)!r})\n"
        "c.save(1, {'model': {'w': np.ones(3)}})\nprint('saved', flush=True)\ntime.sleep(300)"
    )
    other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert select.select([other.stdout], [], [], 100)[0]
        with checkpoints(tmp_path) as c:
            with pytest.raises(Occupied, match=f"another job, process {other.pid} on "):
                c.save(2, STATE)
            assert c.load().step == 1
            other.kill()
            other.communicate(timeout=100)
            c.save(2, STATE)
            assert c.steps() == [2, 1]
    finally:
        other.kill()
        other.communicate(timeout=100)


def test_what_a_save_in_the_background_left_undone_comes_up_in_the_next_call(tmp_path):
    with checkpoints(tmp_path / "x") as c:
        c.save(1, STATE)
        (tmp_path / "x").rename(tmp_path / "y")
        c.save(2, STATE, background=True)
        with pytest.raises(StorageError, match="was the folder taken away"):
            c.wait_idle()
        (tmp_path / "y").rename(tmp_path / "x")
        c.save(3, STATE)
        assert not differs(c.load().tensors, STATE)


def test_an_error_that_a_waiting_caller_was_told_does_not_come_up_again(tmp_path):
    may, told = threading.Event(), []

    def lost(pieces):
        assert may.wait(100)
        raise OSError("the device is gone")

    w = TensorShard.whole(np.ones(3, np.float32))
    w = TensorShard(lost, w.shape, w.dtype, w.part)
    with checkpoints(tmp_path) as c:
        saving = c.save(1, {"model": {"w": w}}, background=True, staged=False)

        def ask(done):  # as early as anybody can know
            with pytest.raises(OSError, match="the device is gone"):
                saving.wait_committed()
            told.append(True)

        saving.done.add_done_callback(ask)
        may.set()
        c.wait_idle()
        assert told
        c.save(2, STATE)


def test_a_file_that_goes_while_files_are_listed_is_no_error(tmp_path):
    with checkpoints(tmp_path) as c:
        c.save(1, STATE)
        (tmp_path / STEP / "gone.safetensors").symlink_to("nowhere")  # listed, and not there
        assert c.steps() == [1]


def test_what_nobody_asks_for_comes_up_at_the_end_of_the_process(tmp_path):
    program = (
        "import numpy as np, shutil\nfrom stack.storage import Checkpoints\n"
        f"c = Checkpoints({str(tmp_path / 'x')!r})\n"
        "c.save(1, {'model': {'w': np.ones(3)}})\n"
        f"shutil.rmtree({str(tmp_path / 'x')!r})\n"
        "c.save(2, {'model': {'w': np.ones(3)}}, background=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert "was the folder taken away" in done.stderr


def test_arrays_may_change_once_they_are_staged(tmp_path):
    tensors = {"model": {"w": np.arange(100_000, dtype=np.float32)}}
    with checkpoints(tmp_path) as c:
        saving = c.save(1, tensors, background=True, staged=False)
        saving.wait_staged()
        tensors["model"]["w"][:] = -1
        assert saving.wait_committed()
        assert (c.load().tensors["model"]["w"] == np.arange(100_000)).all()


def test_writing_in_the_background_gives_way_and_waiting_for_it_does_not(tmp_path):
    nice = []

    class Notes(Wrapped):
        def put(self, destination, offset, data, nbytes):
            nice.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            return super().put(destination, offset, data, nbytes)

    mine = os.getpriority(os.PRIO_PROCESS, 0)
    with checkpoints([Notes(Folder(tmp_path))]) as c:
        c.save(1, STATE)
        assert set(nice) == {mine}
        nice.clear()
        c.save(2, STATE, background=True).wait_committed()
    assert set(nice) == {19}
    assert os.getpriority(os.PRIO_PROCESS, 0) == mine


def test_files_are_cut_where_a_tensor_ends(tmp_path):
    tensors = {"model": {f"w{i}": np.full(1000, i, np.int32) for i in range(7)}}
    with Checkpoints(tmp_path, limits=CheckpointLimits(file_nbytes=9000)) as c:
        c.save(1, tensors)
        assert not differs(c.load().tensors, tensors)
    files = sorted(f.name for f in (tmp_path / STEP).glob("*.safetensors"))
    assert files == [f"model-{i:05}-of-00004.safetensors" for i in range(1, 5)]


class CommitsAndFails(Wrapped):
    """A store whose answer to a commit is lost."""

    def commit(self, name, data, replace=False):
        super().commit(name, data, replace)
        if name.endswith(MANIFEST):
            raise StorageError("the answer is lost")
        return True


def test_a_commit_whose_answer_is_lost_stays(tmp_path):
    with checkpoints(tmp_path) as c:
        c.save(1, STATE)
        c._stores = [CommitsAndFails(c._stores[0])]
        with pytest.raises(StorageError, match="the answer is lost"):
            c.save(1, state(2))
        assert not differs(c.load().tensors, state(2))


def test_a_store_whose_creates_are_not_exclusive_is_refused(tmp_path):
    class Overwrites(Wrapped):
        def commit(self, name, data, replace=False):
            return super().commit(name, data, True)

    class OneAtATime(Wrapped):
        looked = threading.Barrier(8)

        def commit(self, name, data, replace=False):
            there = name in self.list()
            self.looked.wait(100)
            return not there and super().commit(name, data, True)

    class Forgets(Wrapped):
        def list(self, prefix=""):
            return dict(list(super().list(prefix).items())[:1])

    for kind, text in (
        (Overwrites, "each only if it is not there, 8 succeeded"),
        (OneAtATime, "8 succeeded"),
        (Forgets, "it lists"),
    ):
        with (
            Checkpoints([kind(Folder(tmp_path))]) as c,
            pytest.raises(Refused, match=text),
        ):
            c.save(1, STATE)
        assert {f.name for f in tmp_path.iterdir()} <= {".lease"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_transformers_reads_the_model_as_it_is(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=97, n_positions=16)
    model = transformers.GPT2LMHeadModel(config)
    state = {n: t.detach().numpy() for n, t in model.state_dict().items()}
    tied = {n: a for n, a in state.items() if n != "lm_head.weight"}
    with Checkpoints(tmp_path, limits=CheckpointLimits(file_nbytes=30_000)) as c:
        c.save(1, {"model": tied, "optimizer": {"m": np.zeros(7)}})
    folder = tmp_path / STEP
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    config.save_pretrained(folder)
    loaded = transformers.GPT2LMHeadModel.from_pretrained(folder)
    for name, tensor in loaded.state_dict().items():
        assert tensor.numpy().tobytes() == state[name].tobytes(), name


class Refuses:
    """A disk that fails in one of its calls."""

    def __init__(self, inside, call, number):
        self._inside, self._call, self._number = inside, call, number

    def __getattr__(self, name):
        if name == self._call:
            raise OSError(self._number, os.strerror(self._number))
        return getattr(self._inside, name)


@pytest.mark.parametrize("call", ["make_folder", "create", "allocate", "write", "sync", "link"])
@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, "No space left on device.* bytes are free, .* make space"),
        (errno.EDQUOT, "your quota is used up"),
        (errno.EROFS, "read-only: save elsewhere"),
        (errno.EACCES, "this user may not"),
        (errno.EIO, "look at the disk's own messages"),
    ],
)
def test_what_a_disk_refuses_is_said_and_the_old_checkpoint_loads(call, number, text, tmp_path):
    store = Folder(tmp_path)
    with Checkpoints([store], limits=SMALL, deadline_s=120) as c:
        c.save(1, STATE)
        disk, store._disk = store._disk, Refuses(store._disk, call, number)
        with pytest.raises(StorageError, match=text):
            c.save(2, STATE)
        store._disk = disk
        assert c.load().step == 1
        c.save(3, STATE)
        assert not differs(c.load().tensors, STATE)
    assert sorted(f.name for f in tmp_path.glob("step-*")) == [STEP, "step-000000000003"]
