"""What the contract says about arguments, as functions that raise InvalidCall.

`where` is the name of the call, for the message.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hal.core.description import DeviceInfo, SpaceKind
from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.core.kinds import MOST, shown
from hal.core.values import (
    Argument,
    Buffer,
    Grid,
    GroupSpec,
    HostMemory,
    Param,
    ParamKind,
    Region,
    Slot,
)

PATTERN_NBYTES = (1, 2, 4, 8)


def check_count(where: str, what: str, value: object, least: int = 0) -> None:
    """`value` is an int of at least `least`, in 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidCall(f"{where}: {what} must be an int of at least {least}, is {shown(value)}")
    if value > MOST:
        raise InvalidCall(f"{where}: {what} is beyond 64 bits: {shown(value)}")


def check_flag(where: str, what: str, value: object) -> None:
    """`value` is True or False."""
    if not isinstance(value, bool):
        raise InvalidCall(f"{where}: {what} must be True or False, is {shown(value)}")


def check_list(where: str, what: str, value: object) -> None:
    """`value` is a sequence of other things than characters or bytes."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray | memoryview):
        raise InvalidCall(f"{where}: {what} must be a list or tuple, is {shown(value)}")


def check_space(where: str, space: str, info: DeviceInfo) -> None:
    """`space` names a memory space of the device that holds buffers, or is empty."""
    names = [s.name for s in info.spaces if s.kind is not SpaceKind.SCRATCHPAD]
    if not isinstance(space, str) or (space and space not in names):
        raise InvalidCall(
            f"{where}: {info.name} has no memory space {shown(space)}; it has {names} for buffers"
        )


def check_region(where: str, region: Region) -> None:
    """The region lies within its buffer."""
    if not isinstance(region, Region):
        raise InvalidCall(f"{where}: expected a Region, got {shown(region)}; use buffer.region()")
    if not isinstance(region.buffer, Buffer):
        raise InvalidCall(f"{where}: a region is of a Buffer, not of {shown(region.buffer)}")
    if type(region.offset) is not int or type(region.nbytes) is not int:
        check_count(where, "a region's offset", region.offset)
        check_count(where, "a region's size", region.nbytes)
    if region.offset < 0 or region.nbytes < 0:
        raise InvalidCall(f"{where}: negative region: {shown(region)}")
    if region.offset + region.nbytes > region.buffer.nbytes:
        raise InvalidCall(
            f"{where}: {shown(region.nbytes)} bytes at {shown(region.offset)} end past the buffer "
            f"of {shown(region.buffer.nbytes)} bytes"
        )


def check_grid(where: str, grid: Grid, limit: Grid) -> None:
    """Three counts, each from 0 to its limit."""
    if not isinstance(grid, tuple) or len(grid) != 3:
        raise InvalidCall(f"{where}: a grid is a tuple of three ints, not {shown(grid)}")
    for axis, (size, most) in enumerate(zip(grid, limit, strict=True)):
        if not isinstance(size, int) or not 0 <= size <= most:
            raise InvalidCall(
                f"{where}: grid {shown(grid)} axis {axis} is {shown(size)}, allowed are 0 to {most}"
            )


def check_pattern(where: str, dst: Region, pattern: bytes) -> None:
    """The pattern has an allowed length, which divides the region's offset and size."""
    if not isinstance(pattern, bytes | bytearray | memoryview):
        raise InvalidCall(f"{where}: a pattern is bytes, not {shown(pattern)}")
    nbytes = len(pattern)
    if nbytes not in PATTERN_NBYTES:
        raise InvalidCall(f"{where}: a pattern has 1, 2, 4 or 8 bytes, not {nbytes}")
    if dst.offset % nbytes or dst.nbytes % nbytes:
        raise InvalidCall(
            f"{where}: {dst.nbytes} bytes at {dst.offset} are no multiple of the "
            f"pattern's {nbytes} bytes"
        )


def check_host_memory(where: str, memory: HostMemory, writable: bool) -> int:
    """Contiguous host memory, writable where asked. Gives its size in bytes."""
    if not isinstance(memory, bytes | bytearray | memoryview):
        raise InvalidCall(
            f"{where}: expected a Region or host memory, got {type(memory).__name__}; "
            f"wrap an array as memoryview(array)"
        )
    try:
        view = memoryview(memory)
    except ValueError as error:
        raise InvalidCall(f"{where}: the host memory was released: {error}") from error
    if not view.c_contiguous:
        raise InvalidCall(
            f"{where}: host memory of shape {view.shape} is not contiguous; copy it first"
        )
    if writable and view.readonly:
        raise InvalidCall(f"{where}: the destination in host memory is read-only")
    return view.nbytes


def check_copy(where: str, dst: Region | HostMemory, src: Region | HostMemory) -> None:
    """At most one side is host memory; sizes agree; regions of one buffer do not overlap."""
    if not isinstance(dst, Region) and not isinstance(src, Region):
        raise InvalidCall(f"{where}: both sides are host memory; one must be a Region")
    to, of = _side(where, dst, writable=True), _side(where, src, writable=False)
    if to != of:
        raise InvalidCall(f"{where}: dst has {to} bytes, src has {of}; sizes must be equal")
    if isinstance(dst, Region) and isinstance(src, Region):
        overlap = src.offset < dst.offset + dst.nbytes and dst.offset < src.offset + src.nbytes
        if dst.buffer is src.buffer and overlap and dst.nbytes:
            raise InvalidCall(
                f"{where}: dst [{dst.offset}, {dst.offset + dst.nbytes}) overlaps "
                f"src [{src.offset}, {src.offset + src.nbytes}) of the same buffer"
            )


def check_timeout(where: str, timeout_s: float) -> None:
    """A number of seconds, 0 or more (infinity allowed)."""
    number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not number or not timeout_s >= 0:
        raise InvalidCall(f"{where}: timeout_s must be 0 or more seconds, is {shown(timeout_s)}")
    if isinstance(timeout_s, int) and timeout_s > MOST:
        raise InvalidCall(f"{where}: timeout_s is beyond 64 bits; infinity is math.inf")


def check_after(where: str, after: tuple[int, ...] | None, index: int) -> None:
    """A command's `after` names earlier commands."""
    if after is not None:
        check_list(where, "after", after)
    for other in after or ():
        if type(other) is not int or not 0 <= other < index:
            raise InvalidCall(
                f"{where}: command {index} is after {shown(other)}; it may name 0 to {index - 1}"
            )


def check_arguments(where: str, params: Sequence[Param], args: Sequence[Argument]) -> None:
    """One argument per parameter, each of its kind, scalars within their type's range."""
    check_list(where, "args", args)
    if len(args) != len(params):
        names = ", ".join(p.name for p in params)
        raise InvalidCall(
            f"{where}: got {len(args)} arguments for {len(params)} parameters ({names})"
        )
    for param, arg in zip(params, args, strict=True):
        if not isinstance(arg, Slot):
            check_argument(where, param, arg)


def check_argument(where: str, param: Param, arg: Argument) -> None:
    """The argument is of the parameter's kind, a scalar within its type's range."""
    if param.kind is ParamKind.SCALAR:
        dtype = param.dtype
        if isinstance(arg, bool) is not (dtype is DType.BOOL) or not isinstance(
            arg, int | float if dtype.is_float else int
        ):
            raise InvalidCall(
                f"{where}: parameter {param.name!r} takes a {dtype.short} scalar, got {shown(arg)}"
            )
        if dtype.is_float:
            low, high = -dtype.largest, dtype.largest
        elif dtype.kind == "i":
            low, high = -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1
        else:
            low, high = 0, 1 if dtype is DType.BOOL else 2**dtype.bits - 1
        endless = isinstance(arg, float) and not math.isfinite(arg)
        if not endless and not low <= arg <= high:
            raise InvalidCall(
                f"{where}: {shown(arg)} for parameter {param.name!r} is outside {dtype.short}: "
                f"{low} to {high}"
            )
    elif isinstance(arg, Region):
        check_region(where, arg)
    elif not isinstance(arg, Buffer):
        raise InvalidCall(
            f"{where}: parameter {param.name!r} takes a buffer or region, got {shown(arg)}"
        )


def _side(where: str, side: Region | HostMemory, writable: bool) -> int:
    if isinstance(side, Region):
        check_region(where, side)
        return side.nbytes
    return check_host_memory(where, side, writable)


def shrunk(where: str, spec: GroupSpec, ranks: Sequence[int]) -> GroupSpec:
    """What the member of `spec` joins for a group of these of its ranks: each once, its own among
    them."""
    known = all(0 <= rank < len(spec.peers) for rank in ranks)
    if not known or spec.rank not in ranks or len(set(ranks)) != len(ranks):
        raise InvalidCall(
            f"{where}: {list(ranks)} are not ranks of a group of {len(spec.peers)}, each once and "
            f"{spec.rank} among them"
        )
    key = f"{spec.key}/{','.join(map(str, ranks))}"
    peers = tuple(spec.peers[rank] for rank in ranks)
    return replace(spec, key=key, rank=list(ranks).index(spec.rank), peers=peers)
