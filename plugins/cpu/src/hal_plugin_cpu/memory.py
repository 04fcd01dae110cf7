"""Buffers: allocation, mapping, import and export, accounting."""

from __future__ import annotations

import errno
import os
import threading
from typing import Any

from hal.core.description import MemorySpace, SpaceKind
from hal.core.errors import (
    Failure,
    FailureKind,
    InvalidCall,
    OutOfMemory,
    Unsupported,
    error_for,
)
from hal.core.spec import hookimpl
from hal.core.values import AllocOptions, Buffer, MemoryStats, Region, SharedHandle
from hal_plugin_cpu._native import ffi, lib
from hal_plugin_cpu.arguments import check_bounds
from hal_plugin_cpu.faults import takes_device
from hal_plugin_cpu.session import Session

SPACE = "memory"
GRANULARITY = 64
SCRATCHPAD_NBYTES = 8 << 20
MEMFD = "memfd"
_LINK = "/memfd:hal-cpu"


def spaces(capacity: int) -> tuple[MemorySpace, ...]:
    """The device's memory spaces, of `capacity` bytes for buffers."""
    return (
        MemorySpace(SPACE, SpaceKind.GLOBAL, capacity, GRANULARITY, host_visible=True),
        MemorySpace("stack", SpaceKind.SCRATCHPAD, SCRATCHPAD_NBYTES, GRANULARITY),
    )


class Memory:
    """The memory hooks."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._native = session.native
        self._lock = threading.Lock()
        self._labels: dict[str, int] = {}

    @hookimpl
    def alloc(self, nbytes: int, options: AllocOptions) -> Buffer:
        self._check_space(options.space, "alloc")
        if nbytes < 0:
            raise InvalidCall(f"alloc: {nbytes} bytes is negative")
        failure = self._session.faults.take("alloc") if self._session.faults.pending else None
        if failure is not None:
            if failure.kind is FailureKind.OUT_OF_MEMORY:
                raise self._out_of_memory(nbytes)
            strike_now(self._session, failure)
        if nbytes > lib.hc_capacity(self._native):
            raise self._out_of_memory(nbytes)
        out = ffi.new("hc_buffer **")
        with self._lock:
            label = self._labels.setdefault(options.label, len(self._labels))
        code = lib.hc_alloc(self._native, nbytes, options.zero, options.shareable, label, out)
        if code == lib.HC_NO_MEMORY:
            raise self._out_of_memory(nbytes)
        return self._buffer(code, out, nbytes, "alloc")

    @hookimpl
    def map(self, region: Region, writable: bool) -> memoryview:
        buffer = region.buffer
        self._check_live(buffer, "map")
        check_bounds(region, "map")
        # The view keeps the buffer's handle, so that a lost handle does not free what is still
        # looked at.
        keep = ffi.gc(lib.hc_data(buffer.native), lambda _, held=buffer.native: None)
        view = memoryview(ffi.buffer(keep, buffer.nbytes))
        part = view[region.offset : region.offset + region.nbytes]
        return part if writable else part.toreadonly()

    @hookimpl
    def import_host(self, memory: memoryview) -> Buffer:
        try:
            host = ffi.from_buffer(memory)
        except (BufferError, TypeError, ValueError) as error:
            raise InvalidCall(f"import_host: memory must be contiguous: {error}") from error
        out = ffi.new("hc_buffer **")
        code = lib.hc_import_host(self._native, host, len(host), out)
        buffer = self._buffer(code, out, len(host), "import_host")
        self._session.kept.until_unused(buffer.native, host)
        return buffer

    @hookimpl
    def export_buffer(self, buffer: Buffer) -> SharedHandle:
        self._check_live(buffer, "export_buffer")
        fd = lib.hc_fd(buffer.native)
        if fd < 0:
            raise InvalidCall("export_buffer: allocate the buffer with shareable=True")
        return SharedHandle(MEMFD, (os.getpid(), fd), buffer.nbytes)

    @hookimpl
    def import_buffer(self, shared: SharedHandle) -> Buffer:
        if shared.kind != MEMFD:
            raise Unsupported(f"import_buffer: kind {shared.kind!r}; this device imports {MEMFD!r}")
        fd = _open_exported(shared)
        out = ffi.new("hc_buffer **")
        try:
            code = lib.hc_import_fd(self._native, fd, shared.nbytes, out)
        finally:
            os.close(fd)
        size = f"the exported memory is smaller than {shared.nbytes} bytes, or could be made so"
        return self._buffer(code, out, shared.nbytes, "import_buffer", size)

    @hookimpl
    def stats(self, space: str) -> MemoryStats:
        self._check_space(space, "stats")
        out = ffi.new("hc_stats *")
        lib.hc_count(self._native, out)
        return MemoryStats(out.live, out.peak, out.allocations, out.buffers)

    def _buffer(self, code: int, out: Any, nbytes: int, where: str, invalid: str = "") -> Buffer:
        if code:
            self._session.refuse(code, where, invalid)
        native = self._session.own(out[0])
        return Buffer(self._session.name, self._session.epoch, native, nbytes, SPACE)

    def _check_space(self, space: str, where: str) -> None:
        if space not in ("", SPACE):
            raise InvalidCall(
                f"{where}: there is no memory space {space!r} to allocate in, only {SPACE!r}"
            )

    def _check_live(self, buffer: Buffer, where: str) -> None:
        try:
            code = lib.hc_check(self._native, buffer.native)
        except TypeError as error:
            raise self._session.foreign(where, error) from error
        if code:
            self._session.refuse(code, where)

    def _out_of_memory(self, nbytes: int) -> OutOfMemory:
        stats = self.stats("")
        capacity = int(lib.hc_capacity(self._native))
        with self._lock:
            held = {name: int(lib.hc_held(self._native, i)) for name, i in self._labels.items()}
        held = {
            name or "unlabelled": n for name, n in sorted(held.items(), key=lambda e: -e[1]) if n
        }
        available = capacity - stats.live_nbytes
        text = f"{self._session.name}: {nbytes} bytes asked, {available} of {capacity} are free"
        return OutOfMemory(text, nbytes, available, held)


def strike_now(session: Session, failure: Failure) -> None:
    """Carry out a fault of a call that does its work at once; always raises."""
    if takes_device(failure):
        session.lose(failure)
    raise error_for(failure)


def _open_exported(shared: SharedHandle) -> int:
    """The exporter's memory as a descriptor of this process."""
    if len(shared.token) != 2 or shared.nbytes < 0:
        raise InvalidCall(f"import_buffer: {shared} is no handle of {MEMFD!r}")
    pid, number = shared.token
    path = f"/proc/{pid}/fd/{number}"
    try:
        if not os.readlink(path).startswith(_LINK):
            raise InvalidCall(f"import_buffer: {path} is no exported buffer any more")
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            raise InvalidCall(
                f"import_buffer: this process may not read {path}: {error}"
            ) from error
        raise InvalidCall(
            f"import_buffer: the exporter {pid} is gone or freed it: {error}"
        ) from error
