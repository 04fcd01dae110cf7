"""The state of a timeline: operations in order, a counter, and from which value on it failed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from hal.core.errors import Failure, FailureKind
from hal.core.values import Point, Span

KEPT_SPANS = 1024


class Resource(Protocol):
    """What operations use and must not lose before they end."""

    def check(self, hook: str) -> None:
        """Raise StaleHandle when it is gone."""

    def hold(self) -> None:
        """One user more."""

    def let_go(self) -> None:
        """One user less."""


class Together(Protocol):
    """A collective call, in which operations of several devices are done together."""

    @property
    def complete(self) -> bool:
        """Whether every member has submitted its operation."""
        ...

    def arrive(self, op: Operation) -> bool:
        """An operation's turn has come; True for the last one, which then works for all."""
        ...

    def work_for_all(self) -> None:
        """Do the work and end every operation (without the lock)."""

    def expire(self, op: Operation, waited_s: float) -> None:
        """An operation has waited for the others for so long."""

    def leave(self, op: Operation, cause: Failure) -> None:
        """An operation ended without its work."""


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of work. `run(True)` does only a part of it, `after` names tasks by index (None: all
    earlier ones), `kind` is the failure that an exception means, `uses` what must live so long."""

    hook: str
    name: str
    run: Callable[[bool], None]
    uses: tuple[Resource, ...] = ()
    after: tuple[int, ...] | None = None
    kind: FailureKind = FailureKind.LAUNCH_FAULT

    @property
    def operation(self) -> str:
        return self.hook if self.hook == self.name else f"{self.hook} {self.name}"


class Stage(Enum):
    """WAITING in its queue; ARRIVED at a collective; HANGING by a fault; RUNNING; over: ENDED."""

    WAITING = 0
    ARRIVED = 1
    HANGING = 2
    RUNNING = 3
    ENDED = 4


@dataclass(eq=False, slots=True)
class Operation:
    """A submitted operation: tasks, or a part in a collective call. `fault` is injected."""

    queue: Queue
    tasks: tuple[Task, ...]
    waits: tuple[Point, ...]
    uses: tuple[Resource, ...]
    fault: Failure | None = None
    call: Together | None = None
    apart: bool = False
    value: int = 0
    number: int = 0
    stage: Stage = Stage.WAITING
    since_s: float = 0.0


@dataclass(eq=False, slots=True)
class Queue:
    """A timeline's payload. `failures` are (first value that fails, cause), in the order in which
    they came: each begins lower than the one before."""

    host_driven: bool
    value: int = 0
    submitted: int = 0
    freed: bool = False
    todo: deque[Operation] = field(default_factory=deque)
    failures: list[tuple[int, Failure]] = field(default_factory=list)
    spans: dict[int, tuple[Span, ...]] = field(default_factory=dict)

    def failure(self, value: int) -> Failure | None:
        """Why the value will not be reached; None while it may be or when it is."""
        if self.value >= value:
            return None
        return next((cause for first, cause in self.failures if first <= value), None)

    def fail(self, first: int, cause: Failure) -> list[Operation]:
        """Fail every value from `first` on. Gives the operations that thereby will not end."""
        if self.failure(first) is None:
            self.failures.append((first, cause))
        lost = []
        while self.todo and self.todo[-1].value >= first:
            lost.append(self.todo.pop())
        return lost[::-1]

    def keep(self, spans: tuple[Span, ...]) -> None:
        """Keep the spans of the value just reached and forget the oldest."""
        self.spans[self.value] = spans
        if len(self.spans) > KEPT_SPANS:
            del self.spans[next(iter(self.spans))]


def reached(point: Point) -> bool:
    """Whether the point's counter is there."""
    queue: Queue = point.timeline.native
    return queue.value >= point.value


def failure_of(point: Point) -> Failure | None:
    """The first cause of a failed point."""
    queue: Queue = point.timeline.native
    return queue.failure(point.value)
