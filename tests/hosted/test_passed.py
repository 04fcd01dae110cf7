"""Memory that another process takes by a descriptor that this one offers."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

import pytest

from hal.core.errors import InvalidCall, Unsupported
from hal.core.values import SharedHandle
from hal.hosted.passed import Offers, attached

_CHILD = """
import mmap, os, sys
from hal.core.values import SharedHandle
from hal.hosted.passed import attached
descriptor, size = attached(SharedHandle("some", tuple(map(int, sys.argv[1:])), 4), "some")
memory = mmap.mmap(descriptor, size)
print(memory[:4].decode())
memory[:4] = b"ours"
"""


def memory(content: bytes) -> int:
    made = os.memfd_create("offered")
    os.write(made, content)
    return made


@pytest.mark.slow
def test_another_process_reads_and_writes_what_is_offered() -> None:
    offers, made = Offers(), memory(b"mine")
    token = offers.offer(os.dup(made))
    command = [sys.executable, "-c", _CHILD, *map(str, (*token, 4))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "mine"
    assert os.pread(made, 4, 0) == b"ours"
    os.close(made)
    offers.withdraw(token)


def test_who_took_it_has_it_when_it_is_offered_no_more() -> None:
    offers = Offers()
    first, second = (offers.offer(memory(content)) for content in (b"first", b"second"))
    descriptor, size = attached(SharedHandle("some", (*second, 6), 6), "some")
    offers.withdraw(second)
    with mmap.mmap(descriptor, size) as taken:
        assert taken[:] == b"second"
    os.close(descriptor)
    with pytest.raises(InvalidCall, match="does not offer"):
        attached(SharedHandle("some", (*second, 6), 6), "some")
    descriptor, _ = attached(SharedHandle("some", (*first, 5), 5), "some")
    os.close(descriptor)
    offers.withdraw(first)


def test_what_is_no_handle_is_refused() -> None:
    token = Offers().offer(memory(b"mine"))
    with pytest.raises(Unsupported, match="'other'; this device imports 'some'"):
        attached(SharedHandle("other", (*token, 4), 4), "some")
    for wrong in (token, (*token, 3)):
        with pytest.raises(InvalidCall, match="no handle of 'some'"):
            attached(SharedHandle("some", wrong, 4), "some")
    with pytest.raises(InvalidCall, match="cannot be had"):
        attached(SharedHandle("some", (token[0], token[1] + 1, 1, 4), 4), "some")
