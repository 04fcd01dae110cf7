"""Python's collector of reference cycles, held still while a graph is traced or compiled.

Both make many small objects that all stay until they are done. The collector would go through them
again and again, and find nothing.
"""

from __future__ import annotations

import gc

from stack.runtime.settings import Setting, Undo


def _stop() -> Undo | None:
    if not gc.isenabled():
        return None
    gc.disable()
    return gc.enable


paused = Setting(_stop).held
"""In it no cycles are collected but by `gc.collect`, in no thread. Where the collector was off it
stays off."""
