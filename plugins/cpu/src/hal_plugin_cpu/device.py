"""The opened device: every hook, gathered from the parts that implement it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from hal.core.description import DeviceInfo
from hal.core.errors import Failure, FailureKind, Scope
from hal.core.spec import hookimpl
from hal.core.values import Fault, Handle, Health, HealthState, Program, Timeline
from hal_plugin_cpu import blocking
from hal_plugin_cpu._native import lib
from hal_plugin_cpu.describe import Shape, describe
from hal_plugin_cpu.faults import takes_device
from hal_plugin_cpu.graphs import Graphs
from hal_plugin_cpu.groups import Groups
from hal_plugin_cpu.launches import Launches
from hal_plugin_cpu.memory import Memory
from hal_plugin_cpu.processor import processor
from hal_plugin_cpu.programs import Programs
from hal_plugin_cpu.session import SLICE_NS, Session
from hal_plugin_cpu.timelines import Timelines
from hal_plugin_cpu.transfers import Transfers


class CpuDevice:
    """One session of a CPU device. The hooks of its parts are its attributes, so that a call goes
    straight to the
    part; those below concern all parts."""

    def __init__(self, shape: Shape, cache_dir: str) -> None:
        self._info = describe(shape, processor(cache_dir))
        self._session = session = Session(
            self._info.name, shape.index, shape.threads, shape.capacity, shape.progress_s
        )
        self._programs = Programs(session, cache_dir)
        self._timelines = Timelines(session)
        self._groups = Groups(session)
        self._subscribers: list[Callable[[Failure], None]] = []
        memory = Memory(session)
        launches = Launches(session)
        transfers = Transfers(session)
        graphs = Graphs(session)
        self.alloc, self.map, self.stats = memory.alloc, memory.map, memory.stats
        self.import_host = memory.import_host
        self.export_buffer, self.import_buffer = memory.export_buffer, memory.import_buffer
        self.load = self._programs.load
        self.bind, self.launch = launches.bind, launches.launch
        self.copy, self.fill = transfers.copy, transfers.fill
        self.record, self.replay = graphs.record, graphs.replay
        timelines, groups = self._timelines, self._groups
        self.create_timeline, self.signal = timelines.create_timeline, timelines.signal
        self.wait, self.host_call = timelines.wait, timelines.host_call
        self.timestamps = timelines.timestamps
        self.create_group, self.shrink = groups.create_group, groups.shrink
        self.collective, self.abort = groups.collective, groups.abort
        self.async_error = groups.async_error

    @hookimpl
    def describe(self) -> DeviceInfo:
        return self._info

    @hookimpl
    def free(self, handle: Handle) -> None:
        if self._groups.free(handle):
            return
        native = getattr(handle.native, "pointer", handle.native)
        try:
            code = lib.hc_free(self._session.native, native)
        except TypeError as error:
            raise self._session.foreign("free", error) from error
        if code:
            self._session.refuse(code, f"free of a {type(handle).__name__.lower()}")
        self._session.kept.let_go()
        if isinstance(handle, Program):
            self._programs.release_freed()
        if isinstance(handle, Timeline):
            self._timelines.forget(handle)

    @hookimpl
    def close(self) -> None:
        self._session.close()
        self._groups.leave_all()  # after it: the others shall be told of a close, and no leave
        self._timelines.forget_all()
        self._programs.release_freed()

    @hookimpl
    def health(self) -> Health:
        # An injected failure of no operation: it goes to the subscribers, and may take the device
        # with it.
        failure = self._session.faults.take("health") if self._session.faults.pending else None
        if failure is not None:
            if takes_device(failure):
                self._session.lose(failure)
            for callback in tuple(self._subscribers):
                try:
                    callback(failure)
                except Exception as error:  # noqa: BLE001  foreign code: the others must hear of it too
                    sys.excepthook(type(error), error, error.__traceback__)
        session, state = self._session, self._session.state()
        epoch = session.epoch
        if state == lib.HC_OK and lib.hc_hanging(session.native):
            return Health(HealthState.HANGING, epoch, session.cause())
        return Health(_STATES[state], epoch, session.cause() if state in _FAILED else None)

    @hookimpl
    def reset(self) -> int:
        session = self._session
        text = "the device was reset"
        session.lose(Failure(FailureKind.ABORTED, Scope.RESET, session.name, "reset", text))
        while not blocking.quiesce(session.native, SLICE_NS):
            pass  # the interpreter handles signals between two slices
        epoch = int(blocking.reset(session.native))
        if epoch < 0:
            session.refuse(epoch, "reset")
        session.faults.clear()
        session.kept.let_all_go()
        self._groups.leave_all()
        self._timelines.forget_all()
        self._programs.release_freed()
        return epoch

    @hookimpl
    def subscribe(self, callback: Callable[[Failure], None]) -> None:
        self._subscribers.append(callback)

    @hookimpl
    def inject(self, fault: Fault) -> None:
        self._session.faults.add(fault)


_STATES: dict[int, HealthState] = {
    lib.HC_OK: HealthState.OK,
    lib.HC_STATE_LOST: HealthState.LOST,
    lib.HC_STATE_RESET: HealthState.RESET_REQUIRED,
    lib.HC_STATE_CLOSED: HealthState.CLOSED,
}
_FAILED = (lib.HC_STATE_LOST, lib.HC_STATE_RESET)
