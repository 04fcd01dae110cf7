"""Arguments of programs in the native form: a buffer with an offset, or a scalar's bits."""

from __future__ import annotations

from typing import Any

from hal.core.errors import InvalidCall
from hal.core.values import Argument, Buffer, Param, ParamKind, Region, Slot
from hal_plugin_cpu._native import ffi
from hal_plugin_cpu.scalars import scalar_bits

_NULL = ffi.NULL


class Bound:
    """The payload of a `Launchable`: the native object, and (parameter, slot) for each slot left
    open."""

    __slots__ = ("__weakref__", "pointer", "slots")

    def __init__(self, pointer: Any, slots: tuple[tuple[int, int], ...]) -> None:
        self.pointer = pointer
        self.slots = slots


def native_argument(param: Param, arg: Argument, where: str) -> tuple[Any, int]:
    """(buffer, offset) or (NULL, bits); a slot gives zeros.

    Raises InvalidCall for an argument of another kind, out of its type's range or its buffer's
    bounds.
    """
    buffer = param.kind is ParamKind.BUFFER
    if buffer and isinstance(arg, Region):  # most are
        check_bounds(arg, where)
        return arg.buffer.native, arg.offset
    if isinstance(arg, Slot):
        return _NULL, 0
    if not buffer:
        return _NULL, scalar_bits(arg, param.dtype, f"{where}: parameter {param.name!r}")
    if isinstance(arg, Buffer):
        return arg.native, 0
    raise InvalidCall(f"{where}: parameter {param.name!r} takes a buffer or region, got {arg!r}")


def check_bounds(region: Region, where: str) -> None:
    """Raises InvalidCall for a region that is not within its buffer."""
    begin, nbytes = region.offset, region.nbytes
    if begin < 0 or nbytes < 0 or begin + nbytes > region.buffer.nbytes:
        raise InvalidCall(
            f"{where}: {region.nbytes} bytes at {region.offset} are not within the buffer's "
            f"{region.buffer.nbytes} bytes"
        )
