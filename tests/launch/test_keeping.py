"""The newest state on disk: whole, or not there."""

import errno
import os
import resource
import subprocess
import sys

import pytest

from stack.launch.keeping import HEADER, MAGIC, PAGE, Head, kept_in, settle, tear
from tests.draw import stream


@pytest.fixture
def memory():
    """Makes memories of agents, each with a whole generation."""
    made = []

    def make(step, nbytes=20000, flipped=-1, **said):
        made.append(os.memfd_create("state"))
        os.pwrite(made[-1], HEADER.pack(*Head(MAGIC, 1, step, 7, 0, nbytes, **said)), 0)
        tensors = bytearray(stream("generations").randbytes(nbytes))
        if flipped >= 0:
            tensors[flipped] ^= 1
        os.pwrite(made[-1], tensors, PAGE)
        return made[-1]

    yield make
    for descriptor in made:
        os.close(descriptor)


def content(descriptor):
    try:
        return os.pread(descriptor, 1 << 20, 0)
    finally:
        os.close(descriptor)


def test_the_newest_is_kept_and_the_one_before(tmp_path, memory):
    old, new = memory(5), memory(9)
    settle(tmp_path, [old], False)
    settle(tmp_path, [memory(3), new], False)
    found = kept_in(tmp_path)
    assert (found.step, found.lacks) == (9, ())
    assert content(found.memory) == os.pread(new, 1 << 20, 0)
    tear(tmp_path)
    torn = kept_in(tmp_path)
    assert torn.step == 5
    assert content(torn.memory) == os.pread(old, 1 << 20, 0)
    assert "is not whole" in torn.lacks[0]
    settle(tmp_path, [memory(7)], False)  # the torn one is replaced, the whole one stays
    again = kept_in(tmp_path)
    assert (again.step, again.lacks) == (7, ())
    os.close(again.memory)
    settle(tmp_path, [], True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("steps", "flipped", "kinds", "wanted"),
    [
        ((9, 9, 9), (-1, -1, -1), (0, 0, 0), 9),
        ((9, 9, 9), (-1, 19999, -1), (0, 0, 0), 4),  # nobody knows what it was passed on to
        ((9, 9), (0, -1), (0, 0), 4),
        ((9, 9, 9), (-1, 0, -1), (0, 3, 0), 9),  # another kind of device has other roundings
        ((9, 9, 9), (-1, 0, 0), (0, 3, 3), 9),
        ((9, 9, 9), (-1, -1, 0), (0, 3, 3), 4),
        ((9,), (0,), (0,), 9),
        ((9, 9, 9, 8), (-1, -1, -1, 0), (0, 0, 0, 0), 9),
    ],
)
def test_where_ranks_held_different_values_the_last_is_kept_that_was_the_same(
    tmp_path, memory, steps, flipped, kinds, wanted
):
    agreed = [memory(4, epoch=2, agreed=1) for _ in steps[1:]]
    newer = [memory(12, epoch=1, flipped=flip) for flip in (0, 1)]  # a past that was given up
    given = zip(steps, flipped, kinds, strict=True)
    last = [memory(step, epoch=2, flipped=flip, kind=kind) for step, flip, kind in given]
    settle(tmp_path, [*newer, *agreed, *last], False)
    found = kept_in(tmp_path)
    assert found.step == wanted
    os.close(found.memory)
    assert [("step 9 ranks held different" in why) for why in found.lacks] == [True] * (wanted < 9)


def test_a_step_that_only_some_ranks_have_done_is_not_kept(tmp_path, memory):
    settle(tmp_path, [memory(n, epoch=3, flipped=n) for n in (5, 5, 6, 6, 7)], False)
    found = kept_in(tmp_path)
    os.close(found.memory)
    assert found.step == 6
    settle(tmp_path / "first", [memory(0), memory(0, flipped=3), memory(8)], False)
    newest = kept_in(tmp_path / "first")  # before ranks meet they hold what they like
    os.close(newest.memory)
    assert newest.step == 8


@pytest.mark.parametrize("is_well", [False, True])
def test_what_a_killed_agent_was_writing_does_not_stay(tmp_path, memory, is_well):
    (tmp_path / "state.bin.123").write_bytes(b"half of it")
    settle(tmp_path, [memory(5)], is_well)
    assert [file.name for file in tmp_path.iterdir()] == ([] if is_well else ["state.bin"])


def test_a_single_flipped_bit_is_noticed(tmp_path, memory):
    settle(tmp_path, [memory(5)], False)
    (file,) = tmp_path.iterdir()
    data, rng = bytearray(file.read_bytes()), stream("generations")
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    assert kept_in(tmp_path).memory is None


def test_a_full_disk_leaves_what_was_there_and_says_so(tmp_path, memory):
    settle(tmp_path, [memory(5)], False)
    new = memory(8)  # kept by a process of its own: its limit cannot be taken back
    code = "from pathlib import Path; from stack.launch.keeping import settle; "
    code += f"settle(Path({str(tmp_path)!r}), [{new}], False)"
    limit = (10000, 10000)
    done = subprocess.run(
        [sys.executable, "-c", code],
        stderr=subprocess.PIPE,
        pass_fds=[new],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
        timeout=60,
    )
    assert os.strerror(errno.EFBIG).encode() in done.stderr
    found = kept_in(tmp_path)
    os.close(found.memory)
    assert found.step == 5
    assert "the state after step 8 was not kept" in found.lacks[0]
    assert kept_in(tmp_path).lacks == ()
