"""Loading programs and letting their code go."""

from __future__ import annotations

import hashlib
import threading
import weakref
from typing import Any

from hal.cache import Cache
from hal.core.errors import CompileError, FailureKind, InvalidCall, UnsupportedFormat
from hal.core.spec import hookimpl
from hal.core.values import LLVM_IR, KernelSource, Program
from hal_plugin_cpu import blocking
from hal_plugin_cpu._native import ffi, lib
from hal_plugin_cpu.failures import CLOSED
from hal_plugin_cpu.linking import Library, linked
from hal_plugin_cpu.memory import strike_now
from hal_plugin_cpu.processor import processor
from hal_plugin_cpu.session import Session

FORMATS = (LLVM_IR,)

_ABANDONED: list[tuple[Any, Any]] = []
"""Programs of ended sessions in which threads were abandoned as hanging: their code stays."""


class Programs:
    """The hook `load`."""

    def __init__(self, session: Session, cache_dir: str) -> None:
        self._session = session
        self._cache = Cache(cache_dir, "cpu")
        self._jit: Any = None
        self._lock = threading.Lock()
        self._loaded: list[tuple[Any, Library]] = []
        weakref.finalize(self, _keep_running, session.native, self._loaded)
        self._numbers: dict[str, int] = {}

    @hookimpl
    def load(self, source: KernelSource) -> Program:
        if source.format not in FORMATS:
            raise UnsupportedFormat(
                f"load: format {source.format!r}; accepted are {', '.join(FORMATS)}"
            )
        if source.options:
            raise InvalidCall(f"load: {LLVM_IR} has no build options, got {dict(source.options)}")
        failure = self._session.faults.take("load") if self._session.faults.pending else None
        if failure is not None:
            if failure.kind is FailureKind.COMPILE:
                raise CompileError(f"{source.entry}: {failure.message}", failure.message)
            strike_now(self._session, failure)
        code = lib.hc_usable(self._session.native)
        if code:
            self._session.refuse(code, "load")
        library, address = self._linked(source)
        entry = source.entry
        with self._lock:
            names = self._session.names.programs
            number = self._numbers.setdefault(entry, len(names))
            if number == len(names):
                names.append(entry)
        pointer = ffi.cast("void *", address)
        native = self._session.own(lib.hc_program_new(self._session.native, pointer, number))
        with self._lock:
            self._loaded.append((native, library))
        self.release_freed()
        session = self._session
        return Program(session.name, session.epoch, native, source.entry, source.params)

    def release_freed(self) -> None:
        """Unlink the code of programs that are freed and not in flight."""
        with self._lock:
            done = [entry for entry in self._loaded if not lib.hc_in_use(entry[0])]
            if done:
                self._loaded[:] = [entry for entry in self._loaded if entry not in done]
        for _, library in done:
            library.close()

    def _linked(self, source: KernelSource) -> tuple[Library, int]:
        """(library, address of the entry), from the cache where it is in it."""
        key = cache_key(source.text, source.entry)
        kept = self._cache.get(key)
        if kept is not None:
            try:
                return self._link(kept, source.entry)
            except CompileError:
                self._cache.remove(key)
        code = compile_object(source.text, source.entry)
        self._cache.put(key, code)
        return self._link(code, source.entry)

    def _link(self, code: bytes, entry: str) -> tuple[Library, int]:
        """As `_linked`, of object code. Raises CompileError for symbols that nobody defines."""
        found = linked(code, entry)
        if found is not None:
            return found, found.entry
        from hal_plugin_cpu.jit import Jit  # noqa: PLC0415  (which loads LLVM)

        with self._lock:
            self._jit = self._jit or Jit()
        library, address = self._jit.link(code, entry)
        return library, address


def cache_key(text: str, entry: str) -> str:
    """The name of a program's object code for this processor and compiler."""
    parts = (processor().fingerprint, entry, text)
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()


def compile_object(text: str, entry: str) -> bytes:
    """Object code of a module in `llvm-ir/1`, whatever the text does to the compiler.

    Raises CompileError with the compiler's log and the line.
    """
    # Imported here, since they load LLVM, which nobody needs who finds all programs in the cache.
    from hal_plugin_cpu.isolated import compile_isolated  # noqa: PLC0415
    from hal_plugin_cpu.jit import compile_here, is_known  # noqa: PLC0415

    return compile_here(text, entry) if is_known(text) else compile_isolated(text, entry)


def _keep_running(native: Any, loaded: list[tuple[Any, Any]]) -> None:
    """The session is over; only threads that hang still use code of its programs."""
    blocking.shut(native, CLOSED)
    _ABANDONED.extend(entry for entry in loaded if lib.hc_in_use(entry[0]))
