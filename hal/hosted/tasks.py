"""Running the tasks of one operation, in an order that they allow."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Sequence

from hal.core.errors import Failure, OperationFailed, Scope
from hal.core.values import Span
from hal.hosted.order import Order
from hal.hosted.queues import Task
from hal.hosted.watch import Doing


class Agenda:
    """Which of the tasks may run: those whose `after` are done. `ready` has them by number."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.ready: list[int] = []
        self._done = [False] * len(tasks)
        self._unmet = [0] * len(tasks)
        self._followers: list[list[int]] = [[] for _ in tasks]
        # Tasks that wait for all before them wait for a number of first tasks to be done.
        self._first = 0
        self._behind_all = [i for i, task in enumerate(tasks) if task.after is None][::-1]
        for index, task in enumerate(tasks):
            if task.after is not None:
                after = set(task.after)
                self._unmet[index] = len(after)
                for earlier in after:
                    self._followers[earlier].append(index)
                if not after:
                    self.ready.append(index)
        self._open()

    def done(self, index: int) -> None:
        """Note that a ready task was run."""
        self.ready.remove(index)
        self._done[index] = True
        for follower in self._followers[index]:
            self._unmet[follower] -= 1
            if not self._unmet[follower]:
                insort(self.ready, follower)
        self._open()

    def _open(self) -> None:
        while self._first < len(self._done) and self._done[self._first]:
            self._first += 1
        while self._behind_all and self._behind_all[-1] <= self._first:
            insort(self.ready, self._behind_all.pop())


def run_tasks(
    device: str, order: Order, tasks: Sequence[Task], fault: Failure | None, doing: Doing
) -> tuple[tuple[Span, ...], Failure | None]:
    """Run all tasks of an operation of `device`; with a fault only a part of them. Gives their
    spans in the order of the tasks, and what failed. `doing` says meanwhile how far it is."""
    spans: dict[int, Span] = {}
    agenda, wanted = Agenda(tasks), len(tasks)
    if fault is not None and wanted > 1:
        wanted //= 2
    while len(spans) < wanted:
        index = agenda.ready[order.pick(agenda.ready)]
        task, start_ns = tasks[index], time.monotonic_ns()
        doing.step(task.operation)
        done = _run(device, task, fault is not None and len(tasks) == 1)
        if isinstance(done, Failure):
            return (), done
        end_ns = max(time.monotonic_ns(), start_ns + 1)
        spans[index] = Span(task.name, start_ns, end_ns, device_ns=done)
        agenda.done(index)
    return tuple(spans[i] for i in sorted(spans)), fault


def _run(device: str, task: Task, part: bool) -> Failure | float | None:
    try:
        return task.run(part)
    except OperationFailed as error:
        return error.failure
    except BaseException as error:  # noqa: BLE001  foreign code: its error is the point's failure
        text = f"{type(error).__name__}: {error}"
        return Failure(task.kind, Scope.OPERATION, device, task.operation, text)
