"""The opened device: every hook, gathered from the parts that implement it."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from hal.core.description import DeviceInfo
from hal.core.errors import DeviceLost, Failure, Scope
from hal.core.spec import hookimpl
from hal.core.values import (
    Buffer,
    Fault,
    Graph,
    Group,
    Handle,
    Health,
    HealthState,
    Launchable,
    Program,
    Timeline,
)
from hal.hosted.faults import takes_device
from hal.hosted.groups import Groups
from hal.hosted.lock import LOCK, SLICE_S
from hal.hosted.machine import BaseMachine
from hal.hosted.memory import Buffers
from hal.hosted.order import Order
from hal.hosted.programs import Programs
from hal.hosted.queues import Stage
from hal.hosted.scheduler import DRIVEN_S, Scheduler
from hal.hosted.session import Session
from hal.hosted.stream_work import StreamWork
from hal.hosted.streams import StreamMachine
from hal.hosted.timelines import Timelines
from hal.hosted.work import Work

_PATIENCE_SLICES = 200
"""How long `reset` waits for work that cannot be stopped, in slices."""


class HostedDevice:
    """One session of a device that a `Machine` does the work of. The hooks of its parts are its
    attributes; those below concern all parts. `order` decides among operations that may run. A
    device that is dropped without a `close` does what can run, and lets its machine go."""

    def __init__(self, info: DeviceInfo, machine: BaseMachine, order: Order) -> None:
        self._session = session = Session(info, machine, order)
        self._memory, self._groups = Buffers(session), Groups(session)
        self._programs = Programs(session)
        self._timelines = Timelines(session)
        self._work = (
            StreamWork(session, machine, self._programs)
            if isinstance(machine, StreamMachine)
            else Work(session, self._programs)
        )
        self._subscribers: list[Callable[[Failure], None]] = []
        self.alloc, self.map, self.stats = self._memory.alloc, self._memory.map, self._memory.stats
        self.import_host = self._memory.import_host
        self.export_buffer, self.import_buffer = (
            self._memory.export_buffer,
            self._memory.import_buffer,
        )
        self.create_timeline, self.signal = self._timelines.create_timeline, self._timelines.signal
        self.wait, self.timestamps = self._timelines.wait, self._timelines.timestamps
        self.operators = self._programs.operators
        self.load_operator = self._programs.load_operator
        self.load, self.bind, self.launch = self._programs.load, self._work.bind, self._work.launch
        self.copy, self.fill, self.host_call = (
            self._work.copy,
            self._work.fill,
            self._work.host_call,
        )
        self.record, self.replay = self._work.record, self._work.replay
        self.create_group, self.shrink = self._groups.create_group, self._groups.shrink
        self.collective, self.abort = self._groups.collective, self._groups.abort
        self.async_error = self._groups.async_error
        self._scheduler = Scheduler(session)
        weakref.finalize(self, self._scheduler.forget).atexit = False

    @hookimpl
    def describe(self) -> DeviceInfo:
        return self._session.info

    @hookimpl
    def health(self) -> Health:
        session = self._session
        # An injected failure of no operation: it goes to the subscribers, and may take the device
        # with it.
        failure = session.faults.take("health")
        if failure is not None:
            if takes_device(failure):
                with LOCK:
                    self._session.lose(failure)
            for callback in tuple(self._subscribers):
                callback(failure)
        if session.cause is not None:
            return Health(session.state, session.epoch, session.cause)
        hanging = [op for op in tuple(session.active) if op.stage is Stage.HANGING]
        if hanging:
            return Health(HealthState.HANGING, session.epoch, hanging[0].fault)
        return Health(session.state, session.epoch)

    @hookimpl
    def free(self, handle: Handle) -> None:
        with LOCK:
            match handle:
                case Buffer():
                    self._memory.free(handle)
                case Timeline():
                    self._timelines.free(handle)
                case Graph():
                    self._work.free(handle)
                case Group():
                    self._groups.free(handle)
                case Program() | Launchable():
                    self._programs.free(handle)
        self._session.give_back()

    @hookimpl
    def close(self) -> None:
        session = self._session
        with LOCK:
            if session.state is HealthState.CLOSED:
                return
            session.closing = True
            session.waiters += 1
            session.changed.notify_all()
            while session.cause is None and (self._scheduler.busy() or session.calls):
                session.changed.wait(DRIVEN_S if session.flight.busy() else SLICE_S)
            text = "the device was closed before the operation could run"
            self._end_epoch(session.aborted("close", text))
            session.state = HealthState.CLOSED
        self._scheduler.stop()
        self._subscribers.clear()
        session.give_back()
        try:
            session.machine.close()
        except Exception:
            if session.cause is None:
                raise

    @hookimpl
    def reset(self) -> int:
        session = self._session
        with LOCK:
            cause = session.aborted("reset", "the device was reset", Scope.RESET)
            session.cause = session.cause or cause
            session.fail_all(cause)
            for _ in range(_PATIENCE_SLICES):
                self._session.flight.settle_all()
                if not (self._session.active or self._session.flight.busy()):
                    break
                session.changed.wait(SLICE_S)
            else:
                raise DeviceLost(session.cause)
            self._end_epoch(cause)
        session.give_back()
        session.machine.renew()
        with LOCK:
            session.epoch += 1
            session.cause, session.state = None, HealthState.OK
            return session.epoch

    @hookimpl
    def subscribe(self, callback: Callable[[Failure], None]) -> None:
        self._subscribers.append(callback)

    @hookimpl
    def inject(self, fault: Fault) -> None:
        self._session.faults.add(fault)

    def _end_epoch(self, cause: Failure) -> None:
        """Fail what is unreached, free everything, forget faults (with the lock held)."""
        session = self._session
        session.fail_all(cause)
        session.queues.clear()
        session.members.clear()
        session.faults.clear()
        self._work.free_all()
        self._programs.free_all()
        self._memory.free_all()
        session.changed.notify_all()
