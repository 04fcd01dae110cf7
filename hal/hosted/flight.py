"""The operations that are with the driver: from start to end, or to the end of patience."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol, cast

from hal.core.description import DeviceInfo
from hal.core.errors import Failure, FailureKind, OperationFailed, Scope
from hal.core.values import Point, Span
from hal.hosted.faults import takes_device
from hal.hosted.lock import LOCK
from hal.hosted.machine import BaseMachine
from hal.hosted.queues import Job, Operation, Queue, Resource, Started, failure_of, reached
from hal.hosted.streams import RUNNING, After, StreamMachine
from hal.hosted.watch import waits_s

_SPIN_S, _SHORTEST_S, _LONGEST_S = 30e-6, 20e-6, 1e-3


class FlightOwner(Protocol):
    """The session, as far as its flight needs it."""

    info: DeviceInfo
    name: str
    cause: Failure | None
    queues: list[Queue]

    def lose(self, failure: Failure) -> None:
        """The device is gone."""

    def fail(self, queue: Queue, first: int, cause: Failure) -> None:
        """Fail every value of the queue from `first` on."""


class Flight:
    """What a session has given to its driver. Nobody is told when the driver ends something: who
    wants to know settles a queue. Methods are called with the lock held."""

    def __init__(self, session: FlightOwner, machine: BaseMachine) -> None:
        self._session = session
        # Without streams there is nothing to start, and what never started is not asked for.
        self._machine = cast("StreamMachine", machine)
        self._moved_ns = 0
        self._doubt: tuple[object, int, dict[int, float]] = (None, 0, {})
        self.orphans: list[Started] = []
        """Operations that run although their points have failed."""

    def can_start(self, op: Operation) -> bool:
        """Whether all that the operation waits for is done or with the driver too."""
        return op.is_for_driver and all(reached(p) or self._mark(p) is not None for p in op.waits)

    def start(self, op: Operation) -> None:
        """Hand the operation to the driver, which has all older ones of its queue."""
        job, queue = op.work, op.queue
        assert isinstance(job, Job), "only jobs are for the driver"
        # The driver keeps the order of one stream itself.
        far = [p for p in op.waits if p.timeline.native is not queue and not reached(p)]
        after = [self._mark(p) for p in far] or None
        since_ns = time.monotonic_ns()
        try:
            marks = job.start(False, queue.stream, after)
        except OperationFailed as error:
            self._cut_off(queue, op.value, job.operations, op.uses, error.failure)
            return
        except BaseException:
            failure = self._interrupted(job.operations[0])
            self._cut_off(queue, op.value, job.operations, op.uses, failure)
            raise
        started = Started(op.value, job.operations, marks, op.uses, op.waits, since_ns, job.host)
        queue.started.append(started)

    def hand_over(self, queue: Queue) -> None:
        """Hand the held launches to the driver, together if they are several."""
        held = queue.held
        if len(held) == 1:
            self._launch(queue, None)
            return
        with self._machine.together(queue.stream) as gate:
            self._launch(queue, gate or None)

    def _launch(self, queue: Queue, after: After) -> None:
        """Start the held launches, the first one behind marks. A refusal fails the rest, and so
        does what else ends the call, which may be a KeyboardInterrupt."""
        held, started, stream = queue.held, queue.started, queue.stream
        launch, since_ns = self._machine.launch, time.monotonic_ns()
        try:
            for value, bound, grid in held:
                mark = launch(bound.native, grid, stream, after)
                named = bound.operations
                started.append(Started(value, named, (mark,), bound.uses, (), since_ns))
                after = None
        except OperationFailed as error:
            del held[: value - held[0][0]]
            self._fail(queue, value, error.failure)
        except BaseException:
            del held[: value - held[0][0] + 1]
            failure = self._interrupted(bound.operations[0])
            self._cut_off(queue, value, bound.operations, bound.uses, failure)
            raise
        else:
            held.clear()

    def _interrupted(self, operation: str) -> Failure:
        text = "the call that handed it to the driver was interrupted"
        name = self._session.name
        return Failure(FailureKind.ABORTED, Scope.OPERATION, name, operation, text)

    def _cut_off(
        self,
        queue: Queue,
        value: int,
        operations: tuple[str, ...],
        uses: Sequence[Resource],
        failure: Failure,
    ) -> None:
        """Fail an operation that the driver may have begun: behind it comes a mark of its own."""
        marks = (self._machine.nothing(queue.stream, None),)
        now_ns = time.monotonic_ns()
        self.orphans.append(Started(value, operations, marks, uses, (), now_ns))
        self._fail(queue, value, failure)

    def is_idle(self, queue: Queue) -> bool:
        """Whether the driver is through with all that it has of the queue."""
        return not queue.started or self._machine.state(queue.started[-1].marks[-1]) <= 0

    def start_part(self, op: Operation) -> None:
        """Let the driver do a part of an operation that an injected fault cuts off, and wait for it
        (without the lock)."""
        assert isinstance(op.work, Job), "only jobs are for the driver"
        with LOCK:
            marks = op.work.start(True, op.queue.stream, None)
        until_s = time.monotonic() + self._session.info.limits.progress_s
        while self._machine.state(marks[-1]) > 0 and time.monotonic() < until_s:
            time.sleep(_LONGEST_S)

    def settle_all(self) -> None:
        """Take note of everything that the driver has ended."""
        for queue in self._session.queues:
            if queue.started or queue.held:
                self.settle(queue)
        if self.orphans:
            over = [op for op in self.orphans if self._machine.state(op.marks[-1]) <= 0]
            for op in over:
                self.orphans.remove(op)
                for resource in op.uses:
                    resource.let_go()

    def settle(self, queue: Queue) -> None:
        """Take note of what the driver has ended on a queue, once it has all that it shall have."""
        if queue.held and self._session.cause is None:
            self.hand_over(queue)
        started = queue.started
        while started and (state := self._machine.state(started[0].marks[-1])) <= 0:
            op, now_ns = started.popleft(), time.monotonic_ns()
            self._moved_ns = now_ns
            failure = self._failure(op) if state or len(op.marks) > 1 else None
            for resource in op.uses:
                resource.let_go()
            op.uses = ()
            if failure is not None:
                self._fail(queue, op.value, failure)
                return
            queue.value, op.until_ns = op.value, now_ns
            op.waits = ()
            if op.host:
                queue.keep(self._spans(op))
            else:
                queue.keep_ended(op)

    def spans(self, queue: Queue, value: int) -> tuple[Span, ...]:
        """When the parts of the operation that reached a value ran."""
        op = queue.ended_at(value)
        return queue.spans.get(value, ()) if op is None else self._spans(op)

    def _spans(self, op: Started) -> tuple[Span, ...]:
        """By the driver's clock, within the time for which the driver had the operation."""
        spans = []
        for operation, mark in zip(op.operations, op.marks, strict=True):
            begin_ns, end_ns = self._machine.times(mark)
            begin_ns = min(max(begin_ns, op.since_ns), op.until_ns - 1)
            end_ns = min(max(end_ns, begin_ns + 1), op.until_ns)
            spans.append(Span(operation.rpartition(" ")[2], begin_ns, end_ns))
        return tuple(spans)

    def watch(self) -> None:
        """Lose the device if an operation makes no progress."""
        patience_ns = self._session.info.limits.progress_s * 1e9
        if not patience_ns or self._session.cause is not None:
            return
        for queue in self._session.queues:
            waited = queue.started and self._waited_ns(queue) > patience_ns
            if waited and self._is_sure(queue, patience_ns):
                op = queue.started[0]
                at = next((i for i, m in enumerate(op.marks) if self._machine.state(m) > 0), 0)
                text = f"no progress for {self._session.info.limits.progress_s:g} s"
                name = self._session.name
                self._session.lose(
                    Failure(FailureKind.HANG, Scope.DEVICE, name, op.operations[at], text)
                )
                self._machine.abandon([*self.orphans, *(q.stream for q in self._session.queues)])
                self.orphans.clear()
                return

    def _is_sure(self, queue: Queue, patience_ns: float) -> bool:
        """Whether half of the patience more has passed, without the time for which a thread of this
        process, as the driver's are, was ready and no processor was free."""
        (about, since_ns, waits), now_ns = self._doubt, time.monotonic_ns()
        if about != (queue, queue.seen[0]):
            self._doubt = (queue, queue.seen[0]), now_ns, waits_s()
            return False
        more_ns = now_ns - since_ns
        if more_ns <= patience_ns / 2:
            return False
        starved_s = max(s - waits.get(thread, s) for thread, s in waits_s().items())
        return more_ns - starved_s * 1e9 > patience_ns / 2

    def pause_s(self, waited_s: float) -> float:
        """How long to sleep before looking again, after such a time of waiting."""
        if waited_s < _SPIN_S:
            return 0.0
        return min(max(_SHORTEST_S, waited_s / 8), _LONGEST_S)

    def forget(self, queue: Queue, first: int) -> None:
        """The queue's points from `first` on have failed, but the driver goes on with its
        work."""
        queue.drop_held(first)
        self.orphans.extend(queue.give_up(first))

    def busy(self) -> bool:
        """Whether the driver has anything that it may end."""
        return bool(self.orphans) or any(q.started or q.held for q in self._session.queues)

    def _waited_ns(self, queue: Queue) -> int:
        """For how long the oldest operation has been in the state in which it is. One that has not
        begun waits for whatever the device does instead."""
        op, now_ns = queue.started[0], time.monotonic_ns()
        state = self._machine.state(op.marks[-1])
        if state <= 0 or self._machine.is_patient() or not all(map(reached, op.waits)):
            return 0
        states = [self._machine.state(mark) for mark in op.marks]
        running = RUNNING in states
        seen = (op.value, states)
        if queue.seen[0] != seen:
            queue.seen = (seen, now_ns)
        since_ns = queue.seen[1] if running else max(queue.seen[1], self._moved_ns)
        return now_ns - since_ns

    def _failure(self, op: Started) -> Failure | None:
        """Why an operation that is over failed: by its waits or by itself."""
        states = [self._machine.state(mark) for mark in op.marks]
        bad = next((i for i, state in enumerate(states) if state < 0), None)
        if bad is None:
            return None
        for point in op.waits:
            self.settle(point.timeline.native)
        cause = next(filter(None, map(failure_of, op.waits)), None)
        return cause or self._machine.failure(op.operations[bad], states[bad])

    def _fail(self, queue: Queue, first: int, failure: Failure) -> None:
        if takes_device(failure):
            self._session.lose(failure)
        self._session.fail(queue, first, failure)

    def _mark(self, point: Point) -> Any:
        queue: Queue = point.timeline.native
        if queue.held:
            self.hand_over(queue)
        return queue.mark(point.value)
