"""Copies and fills."""

from __future__ import annotations

from typing import Any

from hal.core.errors import InvalidCall
from hal.core.spec import hookimpl
from hal.core.values import HostMemory, Point, Region, Timeline, Waits
from hal_plugin_cpu._native import ffi, lib
from hal_plugin_cpu.arguments import check_bounds
from hal_plugin_cpu.session import Session

_NULL = ffi.NULL
PATTERN_NBYTES = (1, 2, 4, 8)


class Transfers:
    """The hooks `copy` and `fill`. Host memory of a copy is kept until the copy is done."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._native = session.native
        self._faults = session.faults

    @hookimpl
    def copy(
        self, dst: Region | HostMemory, src: Region | HostMemory, timeline: Timeline, waits: Waits
    ) -> Point:
        if not isinstance(dst, Region) and not isinstance(src, Region):
            raise InvalidCall("copy: both sides are host memory; one must be a region")
        to, to_offset, to_host, to_nbytes = _side(dst, writable=True)
        of, of_offset, of_host, of_nbytes = _side(src, writable=False)
        if to_nbytes != of_nbytes:
            raise InvalidCall(
                f"copy: dst has {to_nbytes} bytes, src {of_nbytes}; they must be equal"
            )
        code = self._faults.code("copy") if self._faults.pending else 0
        points = self._session.point_array(waits) if waits else _NULL
        try:
            value = lib.hc_copy(
                self._native, to, to_offset, to_host, of, of_offset, of_host, to_nbytes,
                timeline.native, len(waits), points, code,
            )  # fmt: skip
        except TypeError as error:
            raise self._session.foreign("copy", error) from error
        if value < 0:
            self._session.refuse(value, "copy")
        point = Point(timeline, value)
        if to_host or of_host:
            self._session.kept.until_reached(point, (to_host, of_host))
        return point

    @hookimpl
    def fill(self, dst: Region, pattern: bytes, timeline: Timeline, waits: Waits) -> Point:
        check_bounds(dst, "fill")
        check_pattern(dst, pattern)
        code = self._faults.code("fill") if self._faults.pending else 0
        points = self._session.point_array(waits) if waits else _NULL
        bits = int.from_bytes(pattern, "little")
        try:
            value = lib.hc_fill(
                self._native, dst.buffer.native, dst.offset, dst.nbytes, bits, len(pattern),
                timeline.native, len(waits), points, code,
            )  # fmt: skip
        except TypeError as error:
            raise self._session.foreign("fill", error) from error
        if value < 0:
            self._session.refuse(value, "fill")
        return Point(timeline, value)


def _side(side: Region | HostMemory, writable: bool) -> tuple[Any, int, Any, int]:
    """(buffer, offset, host memory, nbytes) with NULL for what the side is not."""
    if isinstance(side, Region):
        check_bounds(side, "copy")
        return side.buffer.native, side.offset, _NULL, side.nbytes
    try:
        host = ffi.from_buffer(side, require_writable=writable)
    except (BufferError, TypeError, ValueError) as error:
        need = "contiguous and writable" if writable else "contiguous"
        raise InvalidCall(f"copy: host memory must be {need}: {error}") from error
    return _NULL, 0, host, len(host)


def check_pattern(dst: Region, pattern: bytes) -> None:
    """Raises InvalidCall unless the pattern has an allowed length that divides the region."""
    nbytes = len(pattern)
    if nbytes not in PATTERN_NBYTES or dst.offset % nbytes or dst.nbytes % nbytes:
        raise InvalidCall(
            f"fill: a pattern has 1, 2, 4 or 8 bytes and divides the region's {dst.nbytes} bytes "
            f"at {dst.offset}; this one has {nbytes}"
        )
