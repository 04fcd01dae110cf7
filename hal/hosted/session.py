"""One opened device: its state, its queues, and how failures spread."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from hal.core.description import DeviceInfo
from hal.core.errors import DeviceLost, Failure, FailureKind, Scope, StaleHandle, error_for
from hal.core.values import HealthState, Point, Span, Timeline
from hal.hosted.bursts import Bursts
from hal.hosted.faults import InjectedFaults, needs_reset, takes_device
from hal.hosted.flight import Flight
from hal.hosted.lock import LOCK
from hal.hosted.machine import BaseMachine
from hal.hosted.order import Order
from hal.hosted.queues import HostTasks, Job, Operation, Queue, Resource, Stage, Task
from hal.hosted.watch import Doing

Made = TypeVar("Made")


class Membership(Protocol):
    """The device's part in a group."""

    def fail(self, failure: Failure, first: int = 0) -> None:
        """Fail the unfinished calls from the number `first` on."""

    def depart(self, text: str) -> None:
        """Tell the other members that this one comes to no later call."""


class Session:
    """The state of one opened device, which its parts (buffers, programs, timelines, ...) share.

    Methods are called with the lock held unless they say otherwise.
    """

    def __init__(self, info: DeviceInfo, machine: BaseMachine, order: Order) -> None:
        self.info, self.machine, self.order = info, machine, order
        self.name = info.name
        self.changed = threading.Condition(LOCK)
        """Notified whenever a thread that sleeps has to look at the state again."""
        self.faults = InjectedFaults()
        self.epoch = 0
        self.state = HealthState.OK
        self.cause: Failure | None = None
        """What the device was lost by; None while it is not."""
        self.closing = False
        self.calls = 0
        """Threads inside `calling`."""
        self.waiters = 0
        """Threads inside `wait` or `close`: while there are some, nothing is held back."""
        self.hold_until_s = 0.0
        """Until when operations that could run are held back, as the `Order` wants."""
        self.queues: list[Queue] = []
        self.members: list[Membership] = []
        self.active: set[Operation] = set()
        """Operations of the host that run or hang."""
        self.doing = Doing()
        self._driver = threading.RLock()
        self.spent: deque[tuple[Callable[[Any], None], Any]] = deque()
        """What nobody uses any more, and the machine's method that releases it."""
        self.flight = Flight(self, machine)
        self.bursts = Bursts(self)
        self._submitted = 0

    def spend(self, end: Callable[[Any], None], what: Any) -> None:
        """Note memory or a program that nobody uses any more; `give_back` calls `end(what)`."""
        self.spent.append((end, what))

    def give_back(self) -> None:
        """Release what was spent. Call it without the lock, which all devices of the process share:
        a driver's call may take long."""
        if not self.spent:
            return
        with self._driver:
            while self.spent:
                end, what = self.spent.popleft()
                try:
                    end(what)
                except Exception as error:  # noqa: BLE001  foreign code: the device is broken
                    text = f"{end.__name__} raised {type(error).__name__}: {error}"
                    with LOCK:
                        self.lose(
                            Failure(FailureKind.DEVICE_LOST, Scope.DEVICE, self.name, "free", text)
                        )

    def from_driver(self, take: Callable[[], Made]) -> Made:
        """Allocate by `take`, after what was spent has been released; call it without the lock."""
        with self._driver:
            self.give_back()
            return take()

    @contextmanager
    def calling(self, hook: str) -> Iterator[int]:
        """A long call of the machine, made without the lock; gives the epoch in which it begins.
        `close` waits for its end: a thread that comes back from a driver into an interpreter that
        has ended is torn down inside the driver's code, which aborts the process where that is
        C++. Call it without the lock. Raises as `check_usable`."""
        with LOCK:
            self.check_usable(hook)
            self.calls += 1
            epoch = self.epoch
        try:
            yield epoch
        finally:
            with LOCK:
                self.calls -= 1
                self.changed.notify_all()

    def check_usable(self, where: str) -> None:
        """Raise DeviceLost on a failed device, StaleHandle on a closed one."""
        if self.cause is not None:
            raise DeviceLost(self.cause)
        if self.closing:
            raise StaleHandle(f"{self.name}.{where}: {self.name} is closed")

    def strike(self, hook: str, refusal: FailureKind) -> Failure | None:
        """Raise the failure that was injected into this call of a hook that does its work at once.

        Gives a failure of the kind `refusal` instead of raising it, because the hook has an error
        of its own for it (OutOfMemory, CompileError); None when nothing was injected. It needs no
        lock.
        """
        failure = self.faults.take(hook)
        if failure is None or failure.kind is refusal:
            return failure
        if takes_device(failure):
            with LOCK:
                self.lose(failure)
            raise DeviceLost(failure)
        raise error_for(failure)

    def submit(self, op: Operation, timeline: Timeline) -> Point:
        """Put an operation on its queue; on a failed queue its point has failed at once."""
        queue = op.queue
        if queue.held:
            self.flight.hand_over(queue)
        queue.submitted += 1
        self._submitted += 1
        op.value, op.number = queue.submitted, self._submitted
        for resource in op.uses:
            resource.hold()
        failure = queue.failure(op.value)
        if failure is not None:
            self.drop(op, failure)
        elif not queue.todo and self.flight.can_start(op):
            self.flight.start(op)
            return Point(timeline, op.value)
        else:
            queue.todo.append(op)
            now_s = time.monotonic()
            if self.hold_until_s <= now_s:
                self.hold_until_s = now_s + self.order.hold_s()
        self.changed.notify_all()
        return Point(timeline, op.value)

    def submit_tasks(
        self,
        hook: str,
        tasks: tuple[Task, ...],
        timeline: Timeline,
        waits: Sequence[Point],
        keeps: tuple[Resource, ...] = (),
    ) -> Point:
        """Submit tasks, which use `keeps` too, as one operation (takes the lock itself)."""
        with LOCK:
            self.check_usable(hook)
            uses = (*keeps, *(resource for task in tasks for resource in task.uses))
            for resource in uses:
                resource.check(hook)
            fault = self.faults.take(hook)
            work = HostTasks(tasks, apart=hook == "host_call")
            op = Operation(timeline.native, work, tuple(waits), uses, fault)
            return self.submit(op, timeline)

    def fail(self, queue: Queue, first: int, cause: Failure) -> None:
        """Fail every value of the queue from `first` on, and wake who waits for them."""
        self.flight.forget(queue, first)
        for op in queue.fail(first, cause):
            self.drop(op, cause)
        self.changed.notify_all()

    def drop(self, op: Operation, cause: Failure) -> None:
        """End an operation whose point has failed. One that runs keeps what it uses until it
        stops."""
        running, op.stage = op.stage is Stage.RUNNING, Stage.ENDED
        if not running:
            work = op.work
            self.let_go(op)
            if not isinstance(work, HostTasks | Job):
                work.leave(op, cause)

    def let_go(self, op: Operation) -> None:
        """Release the buffers, programs and graphs that an operation uses."""
        self.active.discard(op)
        for resource in op.uses:
            resource.let_go()
        op.uses, op.work = (), HostTasks()

    def lose(self, failure: Failure) -> None:
        """Mark the device lost and fail every unreached point. The first cause stays."""
        if self.cause is not None or self.state is HealthState.CLOSED:
            return
        self.cause = failure
        self.state = HealthState.RESET_REQUIRED if needs_reset(failure) else HealthState.LOST
        self.fail_all(failure)

    def fail_all(self, failure: Failure) -> None:
        """Fail every unreached point and leave every group."""
        self.flight.settle_all()
        for queue in self.queues:
            self.fail(queue, queue.value + 1, failure)
        for member in self.members:
            member.fail(failure)
            member.depart(str(failure))

    def aborted(self, hook: str, message: str, scope: Scope = Scope.OPERATION) -> Failure:
        """The failure of an operation that was given up although the device works."""
        return Failure(FailureKind.ABORTED, scope, self.name, hook, message)

    def finish(self, op: Operation, spans: tuple[Span, ...]) -> None:
        """Take note that an operation stopped: its point is reached unless it failed meanwhile."""
        self.let_go(op)
        if op.stage is Stage.RUNNING:
            op.stage = Stage.ENDED
            op.queue.todo.popleft()
            op.queue.value = op.value
            op.queue.keep(spans)
        self.changed.notify_all()
