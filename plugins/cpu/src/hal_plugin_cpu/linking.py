"""Object code linked into the process, and let go."""

from __future__ import annotations

from typing import Any, Protocol

from hal_plugin_cpu._native import ffi, lib


class Library(Protocol):
    """Linked code, until it is closed."""

    def close(self) -> None: ...


class Code:
    """Code that the native runtime has linked."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self.entry = int(ffi.cast("uintptr_t", native.entry))

    def close(self) -> None:
        """Give its memory back."""
        lib.hc_unlink(self._native)


def linked(code: bytes, entry: str) -> Code | None:
    """The object code of a program, if it is of the kind that needs no linker; else None."""
    native = ffi.new("hc_code *")
    return None if lib.hc_link(code, len(code), entry.encode(), native) else Code(native)
