"""Recording commands and replaying them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hal.core.errors import InvalidCall
from hal.core.spec import hookimpl
from hal.core.values import (
    Argument,
    Command,
    CopyCommand,
    FillCommand,
    Graph,
    LaunchCommand,
    Param,
    Point,
    Timeline,
    Waits,
)
from hal_plugin_cpu._native import ffi, lib
from hal_plugin_cpu.arguments import check_bounds, native_argument
from hal_plugin_cpu.launches import MAX_GRID
from hal_plugin_cpu.session import Session
from hal_plugin_cpu.transfers import check_pattern

_NULL = ffi.NULL


@dataclass(frozen=True, slots=True)
class Recorded:
    """The payload of a `Graph`: the native object and, per native slot, the contract's slot and
    its parameter.

    A slot that fills parameters of several types has a native slot for each.
    """

    pointer: Any
    natives: tuple[tuple[int, Param], ...]


class Graphs:
    """The hooks `record` and `replay`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._native = session.native
        self._faults = session.faults

    @hookimpl
    def record(self, commands: Sequence[Command]) -> Graph:
        keep: list[Any] = []
        try:
            natives = [_native_command(c, i, keep) for i, c in enumerate(commands)]
            slots = _Slots(commands)
            out = ffi.new("hc_graph **")
            code = lib.hc_record(
                self._native, len(natives), natives, len(slots.patches), slots.patches,
                len(slots.natives), out,
            )  # fmt: skip
        except (TypeError, AttributeError) as error:
            raise self._session.foreign("record", error) from error
        if code:
            self._session.refuse(code, "record", f"a launch's grid is beyond {MAX_GRID}")
        recorded = Recorded(self._session.own(out[0]), tuple(slots.natives))
        name, epoch = self._session.name, self._session.epoch
        return Graph(name, epoch, recorded, len(commands), slots.count)

    @hookimpl
    def replay(
        self, graph: Graph, slots: Sequence[Argument], timeline: Timeline, waits: Waits
    ) -> Point:
        if len(slots) != graph.slots:
            raise InvalidCall(f"replay: the graph has {graph.slots} slots, {len(slots)} given")
        try:
            recorded = graph.native
            values = [native_argument(p, slots[s], "replay") for s, p in recorded.natives]
            value = lib.hc_replay(
                self._native,
                recorded.pointer,
                len(values),
                values or _NULL,
                timeline.native,
                len(waits),
                self._session.point_array(waits) if waits else _NULL,
                self._faults.code("replay") if self._faults.pending else 0,
            )
        except (TypeError, AttributeError) as error:
            raise self._session.foreign("replay", error) from error
        if value < 0:
            self._session.refuse(value, "replay")
        return Point(timeline, value)


class _Slots:
    """The slots of a list of commands: native slots and the places that each one fills."""

    def __init__(self, commands: Sequence[Command]) -> None:
        self.natives: list[tuple[int, Param]] = []
        self.patches: list[tuple[int, int, int]] = []
        self.count = 0
        self._known: dict[tuple[int, object, object], int] = {}
        for index, command in enumerate(commands):
            if isinstance(command, LaunchCommand):
                for position, slot in command.launchable.native.slots:
                    param = command.launchable.program.params[position]
                    self.patches.append((index, position, self._native_slot(slot, param)))
                    self.count = max(self.count, slot + 1)

    def _native_slot(self, slot: int, param: Param) -> int:
        found = self._known.setdefault((slot, param.kind, param.dtype), len(self.natives))
        if found == len(self.natives):
            self.natives.append((slot, param))
        return found


def _native_command(command: Command, index: int, keep: list[Any]) -> dict[str, Any]:
    native = _work(command, f"record: command {index}")
    if command.after is None:
        return native | {"after_count": -1}
    if any(not 0 <= other < index for other in command.after):
        raise InvalidCall(
            f"record: command {index} is after {command.after}; only earlier ones may be"
        )
    after = ffi.new("int32_t[]", list(command.after))
    keep.append(after)
    return native | {"after_count": len(command.after), "after": after}


def _work(command: Command, where: str) -> dict[str, Any]:
    match command:
        case LaunchCommand():
            return {"launchable": command.launchable.native.pointer, "grid": list(command.grid)}
        case CopyCommand():
            check_bounds(command.dst, where)
            check_bounds(command.src, where)
            if command.dst.nbytes != command.src.nbytes:
                raise InvalidCall(f"{where}: dst and src differ in size")
            return _target(command.dst.buffer.native, command.dst.offset, command.dst.nbytes) | {
                "src": command.src.buffer.native,
                "src_offset": command.src.offset,
            }
        case FillCommand():
            check_bounds(command.dst, where)
            check_pattern(command.dst, command.pattern)
            return _target(command.dst.buffer.native, command.dst.offset, command.dst.nbytes) | {
                "pattern": int.from_bytes(command.pattern, "little"),
                "pattern_nbytes": len(command.pattern),
            }


def _target(buffer: Any, offset: int, nbytes: int) -> dict[str, Any]:
    return {"dst": buffer, "dst_offset": offset, "nbytes": nbytes}
