"""The thread that runs a device's operations, one by one, in the order that the device's `Order`
picks among those that may run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from hal.core.errors import Failure, FailureKind, Scope
from hal.core.values import Span
from hal.hosted.bursts import LOOK_S
from hal.hosted.faults import takes_device
from hal.hosted.lock import LOCK, SLICE_S
from hal.hosted.queues import HostTasks, Job, Operation, Stage, Together, failure_of, reached
from hal.hosted.session import Session
from hal.hosted.tasks import run_tasks
from hal.hosted.watch import Doing, Watch

IDLE_S = 0.25
DRIVEN_S = 0.2e-3
"""How often to look whether the driver has ended what an operation of the host waits for."""
_HANG = 1.3  # of Limits.progress_s; the contract wants less than 2


class Scheduler:
    """Runs the operations of a session until `stop`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._stopped = self._forgotten = False
        self._callers: list[threading.Thread] = []
        self._shared: Together | None = None
        # An operation may begin to hang just after a look, and must have failed in twice the time.
        self._idle_s = min(IDLE_S, session.info.limits.progress_s / 8 or IDLE_S)
        self._thread = threading.Thread(
            target=self._loop, name=f"{session.name} operations", daemon=True
        )
        self._thread.start()
        self._watch = self._watched()

    def stop(self) -> None:
        """End the thread, unless it is in a call that hangs; call without the lock."""
        if self._watch is not None:
            self._watch.stop()
        with LOCK:
            self._stopped = True
            self._session.changed.notify_all()
            hangs = self._session.cause is not None and bool(self._session.doing.operation)
        for thread in [self._thread, *self._callers]:
            if thread is not threading.current_thread():
                thread.join(timeout=SLICE_S if hangs else 10.0)

    def forget(self) -> None:
        """The device was dropped without a close: the thread ends once nothing runs or can run.
        Does not block, and needs no lock: the garbage collector calls it anywhere."""
        self._forgotten = True

    def _watched(self) -> Watch | None:
        """Who notices that the machine does not return, if that is to be noticed."""
        session, limit_s = self._session, self._session.info.limits.progress_s
        if not limit_s or session.machine.ends_hangs:
            return None
        watch = Watch(
            session.name, limit_s, session.doing, lambda: session.machine.beats, self._hang
        )
        watch.start()
        return watch

    def _hang(self, doing: Doing, steps: int) -> None:
        """Lose the device: its thread does not come back from what it did at that step."""
        session = self._session
        with LOCK:
            if doing.operation and doing.steps == steps:
                text = f"no progress for {session.info.limits.progress_s:g} s"
                where = doing.operation
                failure = Failure(FailureKind.HANG, Scope.DEVICE, session.name, where, text)
                if self._shared is not None:
                    self._shared.lose(failure)
                session.lose(failure)

    def busy(self) -> bool:
        """Whether an operation runs, or may come to its end without anybody's call (with the
        lock)."""
        self._session.flight.settle_all()
        return (
            self._session.flight.busy()
            or any(self._may_end(op) for op in self._heads())
            or any(op.stage is Stage.RUNNING for op in self._session.active)
        )

    def _may_end(self, op: Operation) -> bool:
        if op.stage is Stage.HANGING:
            return bool(self._session.info.limits.progress_s)
        if op.stage is Stage.ARRIVED:
            return not isinstance(op.work, HostTasks | Job) and op.work.complete
        return all(reached(p) or failure_of(p) for p in op.waits)

    def _heads(self) -> Iterator[Operation]:
        return (queue.todo[0] for queue in self._session.queues if queue.todo)

    def _loop(self) -> None:
        while not self._stopped:
            self._session.give_back()
            with LOCK:
                self._session.bursts.away = False
                op = self._next()
                self._session.bursts.away = True
            if op is None:
                continue
            if isinstance(op.work, HostTasks) and op.work.apart:
                # A host function may wait for other operations, so it has a thread of its own
                name = f"{self._session.name} host call"
                self._callers = [thread for thread in self._callers if thread.is_alive()]
                caller = threading.Thread(target=self._work, args=(op,), name=name, daemon=True)
                try:
                    caller.start()
                except RuntimeError as error:  # the host gives no more threads
                    text = f"{error}; end some threads or processes, or raise `ulimit -u`"
                    fault = (FailureKind.HOST_CALL, Scope.OPERATION, self._session.name)
                    self._end(op, Failure(*fault, "host_call", text))
                else:
                    self._callers.append(caller)
            else:
                self._work(op)
        if self._forgotten and self._watch is not None:
            self._watch.stop()

    def _next(self) -> Operation | None:
        """The next operation to work on; None at the end, and when the machine is to have
        something back."""
        while not self._stopped:
            self._session.flight.settle_all()
            if self._session.spent:
                break
            if self._forgotten and not self.busy():
                self._stopped = True
                break
            self._session.flight.watch()
            self._pass_on_failures()
            self._expire()
            ready = [op for op in self._heads() if self._is_ready(op)]
            left_s = self._session.hold_until_s - time.monotonic()
            if ready and (self._session.waiters or left_s <= 0):
                op = ready[self._session.order.pick([op.number for op in ready])]
                if self._begin(op):
                    return op
            else:
                at_most_s = self._sleep_s(left_s if ready else self._idle_s)
                bursts = self._session.bursts
                at_most_s = min(at_most_s, bursts.look_s())
                bursts.unwatched = at_most_s > LOOK_S
                self._session.changed.wait(at_most_s)
                bursts.unwatched = False
        return None

    def _sleep_s(self, at_most_s: float) -> float:
        if any(self._is_driven(op) for op in self._heads()):
            return DRIVEN_S
        watched = any(op.stage in (Stage.HANGING, Stage.ARRIVED) for op in self._heads())
        return min(at_most_s, 0.01) if watched else at_most_s

    def _is_ready(self, op: Operation) -> bool:
        if op.stage is not Stage.WAITING:
            return False
        if op.is_for_driver:
            return self._session.flight.can_start(op)
        return not op.queue.started and all(map(reached, op.waits))

    def _is_driven(self, op: Operation) -> bool:
        """Whether an operation that the host holds waits for what the driver has."""
        queues = [op.queue, *(point.timeline.native for point in op.waits)]
        return op.stage is Stage.WAITING and any(queue.started for queue in queues)

    def _pass_on_failures(self) -> None:
        """Fail operations whose wait failed, until no more do."""
        found = True
        while found:
            found = False
            for op in list(self._heads()):
                cause = next(filter(None, map(failure_of, op.waits)), None)
                if op.stage is Stage.WAITING and cause is not None:
                    self._session.fail(op.queue, op.value, cause)
                    found = True

    def _expire(self) -> None:
        """Fail what hangs or waits for a peer for too long."""
        now_s = time.monotonic()
        patience_s = self._session.info.limits.progress_s * _HANG
        for op in list(self._heads()):
            if op.stage is Stage.HANGING and patience_s and now_s - op.since_s > patience_s:
                assert op.fault is not None, "only a fault hangs"
                self._fail(op, op.fault)
            elif op.stage is Stage.ARRIVED and not isinstance(op.work, HostTasks | Job):
                op.work.expire(op, now_s - op.since_s)

    def _begin(self, op: Operation) -> bool:
        """Take an operation on; False when there is nothing to work on now."""
        fault = op.fault
        op.since_s = time.monotonic()
        if op.is_for_driver:
            self._session.flight.start(op.queue.todo.popleft())
            self._session.changed.notify_all()
            return False
        if fault is not None and fault.kind is FailureKind.HANG:
            op.stage = Stage.HANGING
            self._session.active.add(op)
            return False
        alone = isinstance(op.work, HostTasks | Job)
        if fault is not None and not (alone and fault.kind is FailureKind.PARTIAL_WRITE):
            self._fail(op, fault)
            return False
        if not isinstance(op.work, HostTasks | Job):
            return op.work.arrive(op)
        op.stage = Stage.RUNNING
        self._session.active.add(op)
        return True

    def _fail(self, op: Operation, failure: Failure) -> None:
        if takes_device(failure):
            self._session.lose(failure)
        self._session.fail(op.queue, op.value, failure)

    def _work(self, op: Operation) -> None:
        session, failure = self._session, op.fault
        spans: tuple[Span, ...] = ()
        match op.work:
            case HostTasks(tasks, apart):
                doing = Doing() if apart else session.doing
                spans, failure = run_tasks(session.name, session.order, tasks, op.fault, doing)
                doing.operation = ""
            case Job():
                session.flight.start_part(op)
            case call:
                self._shared = call
                call.work_for_all(session.doing)
                self._shared = None
                return
        self._end(op, failure, spans)

    def _end(self, op: Operation, failure: Failure | None, spans: tuple[Span, ...] = ()) -> None:
        with LOCK:
            if failure is not None and op.stage is Stage.RUNNING:
                self._fail(op, failure)
            self._session.finish(op, spans)
