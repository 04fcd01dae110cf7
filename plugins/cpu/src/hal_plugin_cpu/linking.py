"""Object code linked into the process, and let go."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from hal_plugin_cpu._native import ffi, lib


class Library(Protocol):
    """Linked code, until it is closed."""

    def close(self) -> None: ...


class Code:
    """Code that the native runtime has linked, until it is closed or nobody holds it any more. At
    the end of the process it stays: threads that hang may be in it."""

    def __init__(self, native: Any) -> None:
        self.entry = int(ffi.cast("uintptr_t", native.entry))
        self._unlink = weakref.finalize(self, lib.hc_unlink, native)
        self._unlink.atexit = False

    def close(self) -> None:
        """Give its memory back. Idempotent."""
        self._unlink()


def linked(code: bytes, entry: str) -> Code | None:
    """The object code of a program, if it is of the kind that needs no linker; else None."""
    native = ffi.new("hc_code *")
    return None if lib.hc_link(code, len(code), entry.encode(), native) else Code(native)
