"""The contract's values as plain ones that msgpack writes, and back.

An enum member, a value class and a mapping become a map of one letter each; sequences come back as
tuples. A handle becomes the number that the server gave it, and never an object of the other side:
who reads cannot be made to build anything but the classes named here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from hal.core.dtypes import DType
from hal.core.errors import (
    CompileError,
    DeadlineExceeded,
    DeviceLost,
    Failure,
    FailureKind,
    InvalidCall,
    OperationFailed,
    OutOfMemory,
    PluginError,
    Scope,
    StaleHandle,
    Unsupported,
    UnsupportedFormat,
)
from hal.core.values import (
    AllocOptions,
    Collective,
    CollectiveKind,
    CopyCommand,
    Fault,
    FillCommand,
    GroupSpec,
    Handle,
    Health,
    HealthState,
    KernelSource,
    LaunchCommand,
    MemoryStats,
    OpenOptions,
    Operator,
    Param,
    ParamKind,
    ReduceKind,
    Region,
    Slot,
    Span,
)

_ENUMS: dict[str, type[Enum]] = {
    kind.__name__: kind
    for kind in (DType, FailureKind, Scope, CollectiveKind, ReduceKind, ParamKind, HealthState)
}
_CLASSES: dict[str, Callable[..., Any]] = {
    kind.__name__: kind
    for kind in (
        AllocOptions,
        Collective,
        CopyCommand,
        Failure,
        Fault,
        FillCommand,
        GroupSpec,
        Health,
        KernelSource,
        LaunchCommand,
        MemoryStats,
        OpenOptions,
        Operator,
        Param,
        Region,
        Slot,
        Span,
    )
}
_ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        InvalidCall,
        StaleHandle,
        Unsupported,
        UnsupportedFormat,
        DeadlineExceeded,
        PluginError,
    )
}


def plain(value: object, number: Callable[[Handle], object]) -> Any:
    """`value` as msgpack writes it; `number` says by what plain value a handle is named."""
    if isinstance(value, Enum):
        return {"e": type(value).__name__, "v": value.value}
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, Handle):
        return {"h": number(value)}
    if isinstance(value, Mapping):
        return {"m": [[plain(k, number), plain(v, number)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return [plain(item, number) for item in value]
    if is_dataclass(value) and type(value).__name__ in _CLASSES:
        parts = [plain(getattr(value, field.name), number) for field in fields(value)]
        return {"c": type(value).__name__, "v": parts}
    raise InvalidCall(f"{value!r} ({type(value).__name__}) cannot cross a connection")


def value(table: object, handle: Callable[[Any], Handle]) -> Any:
    """What `plain` wrote; `handle` finds the handle of a name. Raises KeyError, TypeError or
    ValueError for anything else."""
    if isinstance(table, tuple | list):
        return tuple(value(item, handle) for item in table)
    if not isinstance(table, dict):
        return table
    if "h" in table:
        return handle(table["h"])
    if "m" in table:
        return {value(k, handle): value(v, handle) for k, v in table["m"]}
    if "e" in table:
        return _ENUMS[table["e"]](table["v"])
    return _CLASSES[table["c"]](*(value(item, handle) for item in table["v"]))


def plain_error(error: BaseException) -> list[Any]:
    """An error of the contract as plain values; any other one becomes a PluginError."""
    nobody: Callable[[Handle], object] = lambda handle: None
    match error:
        case OperationFailed():
            return [type(error).__name__, plain(error.failure, nobody)]
        case OutOfMemory():
            held = {str(k): v for k, v in error.held.items()}
            return ["OutOfMemory", str(error), error.requested, error.available, held]
        case CompileError():
            return ["CompileError", str(error), error.log, error.line]
        case _:
            kind = type(error).__name__
            known = kind in _ERRORS
            return [kind, str(error)] if known else ["PluginError", f"{kind}: {error}"]


def error(table: Any, rename: Callable[[str], str]) -> Exception:
    """The error that `plain_error` wrote; `rename` puts this side's device name into its text."""
    kind, first, *rest = table
    match kind:
        case "OperationFailed" | "DeviceLost":
            failure = value(first, lambda _: _no_handle())
            return DeviceLost(failure) if kind == "DeviceLost" else OperationFailed(failure)
        case "OutOfMemory":
            return OutOfMemory(rename(first), *rest)
        case "CompileError":
            return CompileError(rename(first), *rest)
        case _:
            return _ERRORS[kind](rename(first))


def _no_handle() -> Handle:
    raise ValueError("a failure holds no handle")
