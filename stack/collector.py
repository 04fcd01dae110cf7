"""Python's collector of reference cycles, held still while modules are loaded, or a graph is traced
or compiled.

All make many small objects that stay until they are done. The collector would go through them again
and again, and find nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from stack.settings import Setting, Undo


def _stop() -> Undo | None:
    if not gc.isenabled():
        return None
    gc.disable()
    return gc.enable


paused = Setting(_stop).held
"""In it no cycles are collected but by `gc.collect`, in no thread. Where the collector was off it
stays off."""


@contextmanager
def loading() -> Iterator[None]:
    """A pause in which modules are loaded. What they made is old at once: the collector goes
    through it when it goes through all that there is, and not twice before that. What a program
    has frozen itself stays frozen."""
    with paused():
        yield
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()  # to the oldest objects
