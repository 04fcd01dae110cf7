"""Recording commands and replaying them."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from operator import ne
from typing import Any

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from hal.core.spec import hookimpl
from hal.core.values import (
    Argument,
    Command,
    CopyCommand,
    FillCommand,
    Graph,
    LaunchCommand,
    Param,
    ParamKind,
    Point,
    Region,
    Timeline,
    Waits,
)
from hal_plugin_cpu._native import ffi, lib
from hal_plugin_cpu.arguments import Bound, check_bounds, native_argument
from hal_plugin_cpu.launches import MAX_GRID
from hal_plugin_cpu.session import Session
from hal_plugin_cpu.transfers import check_pattern

_NULL = ffi.NULL

OUTLINES = 8
"""How many outlines are kept for graphs that differ from earlier ones in grids alone."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The payload of a `Graph`."""

    pointer: Any
    outline: _Outline


class Graphs:
    """The hooks `record` and `replay`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._native = session.native
        self._faults = session.faults
        self._outlines: OrderedDict[tuple[Any, ...], _Outline] = OrderedDict()

    @hookimpl
    def record(self, commands: Sequence[Command]) -> Graph:
        try:
            if not {*map(type, commands)} <= {LaunchCommand}:
                outline = _Outline(commands)
            else:
                natives = [c.launchable.native for c in commands]  # type: ignore[union-attr]
                key = *map(id, natives), *[c.after for c in commands]
                found = self._outlines.pop(key, None)
                if found is None or not found.is_of(natives):
                    found = _Outline(commands)
                self._outlines[key] = found
                while len(self._outlines) > OUTLINES:
                    self._outlines.popitem(last=False)
                outline = found
            out = ffi.new("hc_graph **")
            code = lib.hc_record(
                self._native, len(commands), outline.with_grids(commands), outline.npatches,
                outline.patches, len(outline.natives), out,
            )  # fmt: skip
        except (TypeError, AttributeError) as error:
            raise self._session.foreign("record", error) from error
        if code:
            self._session.refuse(code, "record", f"a launch's grid is beyond {MAX_GRID}")
        recorded = Recorded(self._session.own(out[0]), outline)
        name, epoch = self._session.name, self._session.epoch
        return Graph(name, epoch, recorded, len(commands), outline.slots)

    @hookimpl
    def replay(
        self, graph: Graph, slots: Sequence[Argument], timeline: Timeline, waits: Waits
    ) -> Point:
        if len(slots) != graph.slots:
            raise InvalidCall(f"replay: the graph has {graph.slots} slots, {len(slots)} given")
        try:
            recorded = graph.native
            values = recorded.outline.values(slots)
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


class _Outline:
    """What graphs share that differ in grids alone: the native commands and patches; `natives` has
    per native slot the contract's slot and its parameter.

    A slot that fills parameters of several types has a native slot for each.
    """

    def __init__(self, commands: Sequence[Command]) -> None:
        self._held: list[Any] = []
        self._commands = ffi.new(
            "hc_command[]", [_native_command(c, i, self._held) for i, c in enumerate(commands)]
        )
        slots = _Slots(commands)
        self.natives, self.slots, self.npatches = slots.natives, slots.count, len(slots.patches)
        self.patches = ffi.new("hc_patch[]", slots.patches)
        launches = [c for c in commands if isinstance(c, LaunchCommand)]
        self._grids = [c.grid for c in launches]
        self._launchables: list[weakref.ref[Bound]] = []
        if len(launches) == len(commands):
            self._launchables = [weakref.ref(c.launchable.native) for c in launches]
        self._buffers = [(s, p, p.kind is ParamKind.BUFFER) for s, p in self.natives]

    def is_of(self, natives: list[Bound]) -> bool:
        """Whether these launchables are the ones that it was made of, and not others in the place
        of some that are gone."""
        return [ref() for ref in self._launchables] == natives

    def with_grids(self, commands: Sequence[Command]) -> Any:
        """The native commands, with the grids of these."""
        found = self._commands
        grids = [c.grid for c in commands] if self._launchables else self._grids  # type: ignore[union-attr]
        if grids != self._grids:
            found = ffi.new("hc_command[]", len(commands))
            ffi.memmove(found, self._commands, ffi.sizeof(found))
            for i in [i for i, other in enumerate(map(ne, grids, self._grids)) if other]:
                found[i].grid = grids[i]
        return found

    def values(self, slots: Sequence[Argument]) -> list[tuple[Any, int]]:
        """What the native slots take. Raises InvalidCall."""
        found: list[tuple[Any, int]] = []
        for slot, param, takes_buffer in self._buffers:
            arg = slots[slot]
            if takes_buffer and type(arg) is Region:  # most are
                buffer, begin, nbytes = arg.buffer, arg.offset, arg.nbytes
                if begin >= 0 <= nbytes and begin + nbytes <= buffer.nbytes:
                    found.append((buffer.native, begin))
                    continue
            found.append(native_argument(param, arg, "replay"))
        return found


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
                    found = self._known.setdefault(
                        (slot, param.kind, param.dtype), len(self.natives)
                    )
                    if found == len(self.natives):
                        self.natives.append((slot, param))
                    self.patches.append((index, position, found))
                    self.count = max(self.count, slot + 1)


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
