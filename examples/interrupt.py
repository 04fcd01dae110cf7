"""Ctrl-C, or being asked to end, between training steps, so that what is saved is always a whole
number of them."""

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
    """Gives a function that says whether Ctrl-C was pressed or SIGTERM came, by which a scheduler
    asks; the second Ctrl-C raises KeyboardInterrupt.

    Raising at the first one could leave a step that changed the weights but was not counted.
    """
    asked = False

    def ask(signal_number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked and signal_number == signal.SIGINT:
            raise KeyboardInterrupt
        asked = True
        # A handler may run inside a write to the same stream, which only a bare write survives.
        os.write(sys.stderr.fileno(), NOTICE)

    asking = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, ask) for number in asking]
    try:
        yield lambda: asked
    finally:
        for number, handler in zip(asking, before, strict=True):
            signal.signal(number, handler)
