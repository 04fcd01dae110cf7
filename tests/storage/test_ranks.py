"""Saved by some ranks, loaded by others: bit-equal, and each byte read once."""

import threading
from contextlib import suppress

import numpy as np
import pytest

from hal.core.errors import HalError
from stack.storage import Checkpoints, Mismatch, StorageError, TensorShard
from stack.storage.ranks import SHORT, StorageRanks
from tests.comm.engine.crew import crews
from tests.storage.states import SMALL, WAYS, Wrapped, blank, differs, shards, state

SIZES = (1, 2, 3, 4, 8)
STATE = state()
PLAIN = {"step": 3, "name": "x", "list": [1, 2.5, None, True]}


class Counting(Wrapped):
    """A store that counts the bytes that are read from it."""

    def __init__(self, inside, counter):
        super().__init__(inside)
        self.counter = counter

    def read(self, name, offset, out):
        got = super().read(name, offset, out)
        with self.counter["lock"]:
            self.counter["nbytes"] += got
        return got


def checkpoints(where, group, **more):
    return Checkpoints(where, group, limits=SMALL, deadline_s=120, **more)


def save_as(where, way, copied=False):
    """A save by all ranks, from their arrays or from copies of them, which change meanwhile."""

    def save(group):
        with checkpoints(where, group) as c:
            tensors = shards(STATE, way, group.rank, group.size)
            saving = c.save(1, tensors, PLAIN, background=copied)
            if copied:
                for part in (p for members in tensors.values() for p in members.values()):
                    part.array.reshape(-1).view(np.uint8)[...] ^= 1
            assert saving.wait_committed()

    return save


def load_as(where, way, counter):
    def load(group):
        with checkpoints(where, group) as c:
            c._stores = [Counting(s, counter) for s in c._stores]
            want = shards(STATE, way, group.rank, group.size)
            into = blank(want)
            loaded = c.load(into)
            assert loaded.state == PLAIN
            assert loaded.step == 1
            assert not differs(into, want)
            return differs(loaded.tensors, want)

    return load


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("size", SIZES)
def test_any_ranks_load_what_any_ranks_have_saved(size, tmp_path):
    with crews(*{size, *SIZES}) as made:
        by_size = {crew.size: crew for crew in made}
        for number, way in enumerate(WAYS):
            by_size[size].do(save_as(tmp_path / way, way, copied=bool(number % 2) != (size == 3)))
            nbytes = sum(f.stat().st_size for f in (tmp_path / way).glob("step-*/*"))
            for turn, loaders in enumerate(SIZES):
                to = WAYS[(number + turn) % 4]  # over all sizes each way meets each
                counter = {"nbytes": 0, "lock": threading.Lock()}
                assert by_size[loaders].do(load_as(tmp_path / way, to, counter)) == [[]] * loaders
                assert counter["nbytes"] <= 1.02 * nbytes, (way, to, loaders)


def test_replicas_are_written_once_and_whole_tensors_come_back(tmp_path):
    with crews(3) as [crew]:
        crew.do(save_as(tmp_path, "whole"))

        def load(group):
            with checkpoints(tmp_path, group) as c:
                return differs(c.load().tensors, STATE)

        assert crew.do(load) == [[]] * 3
    with checkpoints(tmp_path, None) as alone:
        assert not differs(alone.load().tensors, STATE)


def test_files_do_not_depend_on_who_saved_them(tmp_path):
    ways = ("whole", "columns", "rows", "flat", "whole")
    with crews(1, 3) as [alone, three]:
        for number, way in enumerate(ways):
            crew = three if number else alone
            crew.do(save_as(tmp_path / str(number), way, copied=number > 0))
    for file in (tmp_path / "0/step-000000000001").iterdir():
        for number in range(1, len(ways)):
            other = tmp_path / str(number) / "step-000000000001" / file.name
            assert other.read_bytes() == file.read_bytes(), (file.name, ways[number])


def test_of_replicas_each_part_is_copied_by_one_rank(tmp_path):
    def save(group):
        with checkpoints(tmp_path, group) as c:
            c.save(1, STATE, background=True).wait_committed()
            return c._staging.nbytes

    with crews(3) as [crew]:
        copied = crew.do(save)
    whole = sum(a.nbytes for members in STATE.values() for a in members.values())
    pages = sum(f.stat().st_size // 4096 + 1 for f in tmp_path.glob("step-*/*"))
    assert whole <= sum(copied) <= whole + 4096 * pages
    assert max(copied) < whole * 2 / 3


def test_ranks_have_different_tensors_as_stages_of_a_pipeline_do(tmp_path):
    def mine(group):
        names = list(STATE["model"])[group.rank :: group.size]
        return {"model": {name: STATE["model"][name] for name in names}}

    def save(group):
        with checkpoints(tmp_path, group) as c:
            c.save(1, mine(group))
            c.save(2, mine(group))  # by the plan of the first

    with crews(3) as [crew]:
        crew.do(save)
    with checkpoints(tmp_path, None) as alone:
        assert not differs(alone.load().tensors, {"model": STATE["model"]})


def outcomes(crew, function):
    def tried(group):
        try:
            return function(group)
        except HalError as error:
            return error

    return crew.do(tried)


def test_ranks_that_disagree_on_a_tensor_are_told(tmp_path):
    def save(group):
        with checkpoints(tmp_path, group) as c:
            c.save(1, {"model": {"w": np.zeros((4, 2 + group.rank), np.float32)}})

    with crews(2) as [crew]:
        errors = outcomes(crew, save)
    assert [type(e) for e in errors] == [Mismatch] * 2
    assert "rank 1 has model/w as F32[4, 3], a rank before it as F32[4, 2]" in str(errors[0])


def test_a_part_that_nobody_has_is_an_error_on_all_ranks(tmp_path):
    def save(group):
        array = np.zeros((2, 2), np.float32)
        with checkpoints(tmp_path, group) as c:
            c.save(1, {"model": {"w": TensorShard.box(array, (9, 2), (3 * group.rank, 0))}})

    with crews(2) as [crew]:
        errors = outcomes(crew, save)
    assert all("model/w" in str(e) and isinstance(e, StorageError) for e in errors)
    assert not list(tmp_path.glob("step-*"))


def test_what_one_rank_cannot_write_all_ranks_are_told(tmp_path):
    def save(group):
        with checkpoints(tmp_path, group) as c:
            c.save(1, shards(STATE, "rows", group.rank, group.size))
            if group.rank == 1:
                store = c._stores[0]
                store._disk = ReadOnly(store._disk)
            with pytest.raises(StorageError, match="no space for a test") as caught:
                c.save(2, shards(STATE, "rows", group.rank, group.size))
            assert c.load().step == 1
            return str(caught.value)

    with crews(3) as [crew]:
        texts = crew.do(save)
    assert "failed on rank 1" in texts[0]
    assert [f.name for f in tmp_path.glob("step-*")] == ["step-000000000001"]


class ReadOnly:
    """A disk that takes nothing more."""

    def __init__(self, inside):
        self._inside = inside

    def __getattr__(self, name):
        return getattr(self._inside, name)

    def write(self, handle, data, offset):
        raise OSError(28, "no space for a test")


def test_background_saves_of_ranks_are_skipped_by_all_or_none(tmp_path):
    hold = threading.Event()

    class Slow(ReadOnly):
        def write(self, handle, data, offset):
            assert hold.wait(100)
            self._inside.write(handle, data, offset)

    def save(group):
        with checkpoints(tmp_path, group) as c:
            tensors = shards(STATE, "rows", group.rank, group.size)
            c.save(1, tensors)
            store = c._stores[0]
            if group.rank:
                store._disk = Slow(store._disk)
            first = c.save(2, tensors, background=True)
            second = c.save(3, tensors, background=True, busy="skip")
            hold.set()
            done = first.wait_committed(), second.wait_committed()
            with suppress(ValueError):
                third = c.save(4, tensors, background=True)
            return (*done, third.wait_committed(), c.skipped, c.steps())

    with crews(2) as [crew]:
        assert crew.do(save) == [(True, False, True, 1, [4, 2, 1])] * 2


def test_a_damaged_block_of_one_rank_lets_all_load_the_older_step(tmp_path):
    def save(group):
        with checkpoints(tmp_path, group) as c:
            c.save(1, shards(STATE, "rows", group.rank, group.size))
            c.save(2, shards(STATE, "rows", group.rank, group.size))

    def load(group):
        with checkpoints(tmp_path, group) as c:
            loaded = c.load()
        return loaded.step, differs(loaded.tensors, STATE)

    with crews(3) as [crew]:
        crew.do(save)
        file = tmp_path / "step-000000000002/model.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        with pytest.warns(RuntimeWarning, match="loading step-000000000001"):
            found = crew.do(load)
    assert found == [(1, [])] * 3


def test_what_one_rank_cannot_copy_all_ranks_are_told(tmp_path):
    def lost(pieces):
        raise OSError("the device is gone")

    def save(group):
        whole = shards(STATE, "rows", group.rank, group.size)
        part = {"model": dict(whole["model"]), "optimizer": whole["optimizer"]}
        with checkpoints(tmp_path, group) as c:
            c.save(1, whole)
            if group.rank == 1:
                w = part["model"]["wide"]
                part["model"]["wide"] = TensorShard(lost, w.shape, w.dtype, w.part)
            with pytest.raises((OSError, StorageError), match="the device is gone"):
                c.save(2, part, background=True).wait_committed()
            assert c.steps() == [1]
            c.save(3, whole)

    with crews(2) as [crew]:
        crew.do(save)


@pytest.mark.parametrize("size", [0, SHORT - 11, SHORT - 10, SHORT - 9, 3 * SHORT])
def test_ranks_hear_what_the_others_tell_however_long(size):
    with crews(3) as [crew]:
        told = crew.do(lambda group: StorageRanks(group).tell("x" * (size if group.rank else 3)))
    assert told == [["xxx", "x" * size, "x" * size]] * 3
