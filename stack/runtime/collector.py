"""Python's collector of reference cycles, held still while a graph is traced or compiled.

Both make many small objects that all stay until they are done. The collector would go through them
again and again, and find nothing.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.RLock()
_pauses: set[object] = set()
"""Those under way, in any thread."""


@contextmanager
def paused() -> Iterator[None]:
    """In it no cycles are collected but by `gc.collect`, in no thread. Where the collector was off
    it stays off."""
    pause = object()
    try:
        with _lock:
            if _pauses or gc.isenabled():
                _pauses.add(pause)
                gc.disable()
        yield
    finally:
        with _lock:
            if pause in _pauses:
                _pauses.remove(pause)
                if not _pauses:
                    gc.enable()


def _leave_parents() -> None:
    """Threads of the parent, which end no pause here, may have begun some."""
    global _lock
    _lock = threading.RLock()
    if _pauses:
        _pauses.clear()
        gc.enable()


os.register_at_fork(after_in_child=_leave_parents)
