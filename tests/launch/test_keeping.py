"""The newest state on disk: whole, or not there."""

import errno
import os
import resource
import signal

import pytest

from stack.launch.keeping import HEADER, MAGIC, PAGE, kept_in, settle, tear
from tests.draw import stream


@pytest.fixture
def memory():
    """Makes memories of agents, each with a whole generation."""
    made = []

    def make(step, nbytes=20000):
        made.append(os.memfd_create("state"))
        os.pwrite(made[-1], HEADER.pack(MAGIC, 1, step, 7, 0, nbytes), 0)
        os.pwrite(made[-1], stream("generations").randbytes(nbytes), PAGE)
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


def test_a_single_flipped_bit_is_noticed(tmp_path, memory):
    settle(tmp_path, [memory(5)], False)
    (file,) = tmp_path.iterdir()
    data, rng = bytearray(file.read_bytes()), stream("generations")
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    assert kept_in(tmp_path).memory is None


def test_a_full_disk_leaves_what_was_there_and_says_so(tmp_path, memory):
    settle(tmp_path, [memory(5)], False)
    child = os.fork()
    if not child:  # limits of a process cannot be taken back
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000))
        try:
            settle(tmp_path, [memory(8)], False)
        except OSError as error:
            os._exit(0 if error.errno == errno.EFBIG else 2)
        os._exit(3)
    assert os.waitpid(child, 0)[1] == 0
    found = kept_in(tmp_path)
    os.close(found.memory)
    assert found.step == 5
    assert "the state after step 8 was not kept" in found.lacks[0]
    assert kept_in(tmp_path).lacks == ()
