"""Pipes and signals for a thread that waits for many things at once."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import FileIO


def unblocked(pipe: FileIO) -> FileIO:
    """The pipe, of which a read or write that would have to wait gives None."""
    os.set_blocking(pipe.fileno(), False)
    return pipe


@contextmanager
def signals_heard(numbers: Sequence[int]) -> Iterator[socket.socket]:
    """A socket from which the numbers of these signals can be read, one byte each, when they come;
    they do nothing else in the block. Call it in the main thread."""
    hears, tells = socket.socketpair()
    for end in (hears, tells):
        end.setblocking(False)
    descriptor = signal.set_wakeup_fd(tells.fileno())  # first, or one that comes now is lost
    # a handler must be there for a signal to be told
    before = {number: signal.signal(number, lambda number, frame: None) for number in numbers}
    try:
        yield hears
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(descriptor)
        hears.close()
        tells.close()
