"""Ctrl-C between training steps, so that what is saved is always a whole number of them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

NOTICE = b"\nending after the step under way; Ctrl-C again ends at once, without saving\n"


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether Ctrl-C was pressed; the second raises KeyboardInterrupt.

    Raising at the first one could leave a step that changed the weights but was not counted.
    """
    asked = False

    def ask(signal_number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        # A handler may run inside a write to the same stream, which only a bare write survives.
        os.write(sys.stderr.fileno(), NOTICE)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
