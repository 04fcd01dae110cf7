"""Binding and launching programs."""

from __future__ import annotations

from collections.abc import Sequence

from hal.core.errors import InvalidCall
from hal.core.spec import hookimpl
from hal.core.values import Argument, Grid, Launchable, Point, Program, Slot, Timeline, Waits
from hal_plugin_cpu._native import ffi, lib
from hal_plugin_cpu.arguments import Bound, native_argument
from hal_plugin_cpu.session import HOST_DRIVEN, Session

MAX_GRID = (2**31 - 1, 2**16 - 1, 2**16 - 1)
"""The product of the three stays below 2**63. The native runtime knows these numbers too."""

_NULL = ffi.NULL


class Launches:
    """The hooks `bind` and `launch`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._native = session.native
        self._faults = session.faults

    @hookimpl
    def bind(self, program: Program, args: Sequence[Argument]) -> Launchable:
        params, where = program.params, f"bind of {program.entry}"
        if len(args) != len(params):
            raise InvalidCall(f"{where}: {len(params)} parameters, {len(args)} arguments")
        packed = [native_argument(p, a, where) for p, a in zip(params, args, strict=True)]
        slots = tuple((i, arg.index) for i, arg in enumerate(args) if isinstance(arg, Slot))
        out = ffi.new("hc_launchable **")
        try:
            code = lib.hc_bind(self._native, program.native, len(packed), packed, out)
        except TypeError as error:
            raise self._session.foreign("bind", error) from error
        if code:
            self._session.refuse(code, "bind")
        bound = Bound(self._session.own(out[0]), slots)
        return Launchable(program.device, program.epoch, bound, program)

    @hookimpl
    def launch(self, launchable: Launchable, grid: Grid, timeline: Timeline, waits: Waits) -> Point:
        try:
            bound = launchable.native
            if bound.slots:
                raise InvalidCall(
                    f"launch: {launchable.program.entry} has slots; record it instead"
                )
            value = lib.hc_launch(
                self._native,
                bound.pointer,
                *grid,
                timeline.native,
                len(waits),
                self._session.point_array(waits) if waits else _NULL,
                self._faults.code("launch") if self._faults.pending else 0,
            )
        except (TypeError, AttributeError, OverflowError) as error:
            if isinstance(error, OverflowError) or len(grid) != 3:
                raise InvalidCall(
                    f"launch: grid {grid!r} is not three counts up to {MAX_GRID}"
                ) from error
            raise self._session.foreign("launch", error) from error
        if value < 0:
            self._session.refuse(
                value, "launch", f"grid {grid} is beyond {MAX_GRID}, or {HOST_DRIVEN}"
            )
        return Point(timeline, value)
