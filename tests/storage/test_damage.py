"""Flipped bits and cuts: found, named, and repaired, wherever they are."""

import shutil
import warnings

import numpy as np
import pytest

from benchmarks.storage_damage import FOLDER, expect_found, hurt, places, survive
from stack.storage import Checkpoints, Damaged, NoCheckpoint, StorageError
from stack.storage.folder import Folder
from stack.storage.parity import encoded, restored
from stack.storage.repair import repair, verify
from tests.storage.states import SMALL, differs, state

STATE = state()
STEP = FOLDER.name


def saved(where, **more):
    with Checkpoints(where, limits=SMALL, deadline_s=120, **more) as c:
        c.save(1, STATE, "plain")


def loaded(where):
    with Checkpoints(where, limits=SMALL, deadline_s=120) as c:
        return c.load()


@pytest.mark.slow
@pytest.mark.turns
def test_damage_at_any_place_is_found_named_and_repaired_from_parity(tmp_path):
    saved(tmp_path, parity=1)
    survive(tmp_path, 60, seed=1)


def test_damage_without_another_copy_is_an_error_that_names_tensor_file_and_range(tmp_path):
    saved(tmp_path)
    for file, byte, bit in places(tmp_path / STEP, 40, seed=2):
        before = file.read_bytes()
        hurt(file, byte, bit)
        if file.name == "manifest.json":
            with pytest.raises(NoCheckpoint, match=r"manifest\.json is not what was written"):
                loaded(tmp_path)
        else:
            expect_found(tmp_path, file, byte)
            if file.suffix == ".safetensors" and bit < 8 and byte >= 8192:
                with pytest.raises(Damaged, match=rf"{file.name}: bytes .*/.*checksum differs"):
                    loaded(tmp_path)
        file.write_bytes(before)


def test_a_lost_tensor_is_named(tmp_path):
    saved(tmp_path)
    [file] = (tmp_path / STEP).glob("optimizer*.safetensors")
    hurt(file, file.stat().st_size - 3, 0)
    with pytest.raises(Damaged, match=r"optimizer\.safetensors: bytes .* \(optimizer/"):
        loaded(tmp_path)
    found = repair([Folder(tmp_path)], FOLDER)
    assert len(found.lost) == 1


def test_a_file_that_is_gone_or_too_long_is_made_anew_from_parity(tmp_path):
    saved(tmp_path, parity=1)
    before = {f.name: f.read_bytes() for f in (tmp_path / STEP).iterdir()}
    for file in sorted((tmp_path / STEP).iterdir()):
        if file.name == "manifest.json":
            continue
        file.unlink()
        assert verify([Folder(tmp_path)], FOLDER).damages
        assert not repair([Folder(tmp_path)], FOLDER).lost
        file.write_bytes(file.read_bytes() + b"more")
        assert verify([Folder(tmp_path)], FOLDER).damages
        assert not repair([Folder(tmp_path)], FOLDER).lost
    assert {f.name: f.read_bytes() for f in (tmp_path / STEP).iterdir()} == before
    assert not verify([Folder(tmp_path)], FOLDER).damages


def test_two_copies_repair_each_other(tmp_path):
    near, far = tmp_path / "near", tmp_path / "far"
    saved(f"file:{near}, file:{far}")
    assert {f.name: f.read_bytes() for f in (near / STEP).iterdir()} == {
        f.name: f.read_bytes() for f in (far / STEP).iterdir()
    }
    for seed, folder in enumerate((near, far)):
        for file, byte, bit in places(folder / STEP, 20, seed):
            hurt(file, byte, bit)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                assert not differs(loaded(f"{near}, {far}").tensors, STATE)
            assert not repair([Folder(near), Folder(far)], FOLDER).lost
            assert not verify([Folder(near), Folder(far)], FOLDER).damages
    shutil.rmtree(near)
    assert loaded(f"{near}, {far}").state == "plain"


@pytest.mark.parametrize("count", [2, 3])
def test_as_many_files_as_there_are_of_parity_may_be_lost(count, tmp_path):
    pytest.importorskip("pyeclib")
    saved(tmp_path, parity=count)
    files = [f for f in sorted((tmp_path / STEP).iterdir()) if "manifest" not in f.name]
    before = {f.name: f.read_bytes() for f in files}
    for start in range(0, len(files), count):
        for file in files[start : start + count]:
            file.unlink()
        assert not repair([Folder(tmp_path)], FOLDER).lost
        assert {f.name: f.read_bytes() for f in files} == before
    for file in files[: count + 1]:
        file.unlink()
    assert repair([Folder(tmp_path)], FOLDER).lost


@pytest.mark.parametrize(("files", "parity"), [(1, 1), (5, 1), (1, 2), (4, 2), (7, 3)])
def test_any_blocks_as_many_as_there_are_of_parity_come_back(files, parity):
    if parity > 1:
        pytest.importorskip("pyeclib")
    rng = np.random.default_rng(files)
    parts = [rng.integers(0, 256, 4096, np.uint8) for _ in range(files)]
    parts += encoded(parts, parity)
    for _ in range(10):
        lost = rng.choice(len(parts), parity, replace=False).tolist()
        left = [None if i in lost else p for i, p in enumerate(parts)]
        for i in lost:
            assert (restored(left, parity, i) == parts[i]).all()
        left[next(i for i, p in enumerate(left) if p is not None)] = None
        assert restored(left, parity, lost[0]) is None


def test_more_files_than_the_code_has_are_refused_before_anything_is_written(tmp_path):
    tensors = {"model": {f"w{i}": np.zeros(60_000, np.uint8) for i in range(40)}}
    refused = pytest.raises(StorageError, match="41 files and 2 of parity are more than 32")
    with Checkpoints(tmp_path, limits=SMALL, parity=2) as c, refused:
        c.save(1, tensors)
