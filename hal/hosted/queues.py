"""The state of a timeline: operations in order, a counter, and from which value on it failed."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import field
from enum import Enum
from typing import Any, Protocol

from hal.core.errors import Failure, FailureKind
from hal.core.facts import dataclass
from hal.core.values import Grid, Point, Span
from hal.hosted.watch import Doing

KEPT_SPANS = 1024
KEPT_MARKS = 8192
"""How many marks of a driver a timeline keeps for their spans."""


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

    def work_for_all(self, doing: Doing) -> None:
        """Do the work and end every operation (without the lock); `doing` says how far it is."""

    def lose(self, failure: Failure) -> None:
        """A device is lost in the work, which does not come to its end (with the lock)."""

    def expire(self, op: Operation, waited_s: float) -> None:
        """An operation has waited for the others for so long."""

    def leave(self, op: Operation, cause: Failure) -> None:
        """An operation ended without its work."""


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of work that the host does."""

    hook: str
    """The hook that submitted it."""
    name: str
    """What its span is called."""
    run: Callable[[bool], float | None]
    """Does the work, with True only a part of it. Gives `Span.device_ns`."""
    uses: tuple[Resource, ...] = ()
    """What must live until it is done."""
    after: tuple[int, ...] | None = None
    """The tasks of the same operation that come first, by index; None means all earlier ones."""
    kind: FailureKind = FailureKind.LAUNCH_FAULT
    """The failure that an exception of `run` means."""

    @property
    def operation(self) -> str:
        return self.hook if self.hook == self.name else f"{self.hook} {self.name}"


@dataclass(frozen=True, slots=True)
class HostTasks:
    """Work for the host: tasks, which the session's thread runs, or with `apart` a thread that they
    have for themselves."""

    tasks: tuple[Task, ...] = ()
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """Work that a stream of the driver does."""

    operations: tuple[str, ...]
    """The names of its parts: a replay has one for each command."""
    start: Callable[[bool, Any, Sequence[Any] | None], Sequence[Any]]
    """`start(part, stream, after)` hands the work to the stream, to begin after the marks `after`;
    with `part` only a part of it. Gives a mark for each of `operations`; the last one ends last."""
    uses: tuple[Resource, ...] = ()
    """What must live until it is done."""
    host: bool = False
    """Whether a mark keeps memory of the host alive, and so must not be kept for its times."""


@dataclass(eq=False, slots=True)
class Started:
    """An operation that the driver has, or had and that is kept for its spans: without the work
    itself and what that holds. The driver had it from `since_ns` to `until_ns` of the monotonic
    clock."""

    value: int
    operations: tuple[str, ...]
    marks: Sequence[Any]
    uses: Sequence[Resource]
    waits: Sequence[Point]
    since_ns: int
    host: bool = False
    until_ns: int = 0


class Launched(Protocol):
    """A bound program: what the machine launches, and what a launch uses."""

    @property
    def operations(self) -> tuple[str, ...]:
        """A name for each mark."""
        ...

    @property
    def native(self) -> Any:
        """What the machine bound."""
        ...

    @property
    def uses(self) -> Sequence[Resource]:
        """What must live as long as a launch."""
        ...


Held = tuple[int, Launched, Grid]
"""A launch that the driver does not have yet: the value that it reaches, and what it launches."""


class Stage(Enum):
    """How far an operation of the host is."""

    WAITING = 0
    """In its queue."""
    ARRIVED = 1
    """At a collective whose other members have not come."""
    HANGING = 2
    """By an injected fault: it makes no progress."""
    RUNNING = 3
    ENDED = 4
    """Done, failed or given up."""


@dataclass(eq=False, slots=True)
class Operation:
    """A submitted operation."""

    queue: Queue
    work: HostTasks | Job | Together
    """What the host does, what the driver does, or a part in a collective call."""
    waits: tuple[Point, ...]
    """Points that must be reached before it begins."""
    uses: tuple[Resource, ...]
    """What must live until it is over."""
    fault: Failure | None = None
    """The failure that was injected into it."""
    value: int = 0
    """The value that its queue reaches with it."""
    number: int = 0
    """Its place among all operations of the session."""
    stage: Stage = Stage.WAITING
    since_s: float = 0.0
    """When it was taken on, by the monotonic clock."""

    @property
    def is_for_driver(self) -> bool:
        """Whether it is handed over and left to the driver."""
        return isinstance(self.work, Job) and self.fault is None


@dataclass(eq=False, slots=True)
class Queue:
    """A timeline's payload. Its operations are, from old to new, in `started`, then in `held` or in
    `todo`."""

    host_driven: bool
    stream: Any = None
    """The driver's stream; None on a machine without streams and on a host-driven timeline."""
    value: int = 0
    """The counter: every operation up to this value is done."""
    submitted: int = 0
    """The value of the newest operation."""
    freed: bool = False
    todo: deque[Operation] = field(default_factory=deque)
    """What the host holds."""
    started: deque[Started] = field(default_factory=deque)
    """What the driver has on `stream`."""
    held: list[Held] = field(default_factory=list)
    """Launches that could go to the driver, held for more to come (`bursts.py`)."""
    launched_ns: int = 0
    """When the last launch came."""
    held_ns: int = 0
    """When the first of `held` came."""
    seen: tuple[object, int] = (None, 0)
    """The state in which the oldest of `started` was seen, and since when."""
    failures: list[tuple[int, Failure]] = field(default_factory=list)
    """(first value that fails, cause), in the order in which they came: each begins lower than the
    one before."""
    # The oldest of a plain dict is found only behind all that were taken from its front.
    spans: OrderedDict[int, tuple[Span, ...]] = field(default_factory=OrderedDict)
    ended: deque[Started] = field(default_factory=deque)
    marks: int = 0

    @property
    def is_over(self) -> bool:
        """Whether it was freed, and has no more work."""
        return self.freed and not (self.todo or self.started or self.held)

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

    def give_up(self, first: int) -> list[Started]:
        """Take every operation from the value `first` on from what the driver owes."""
        lost = []
        while self.started and self.started[-1].value >= first:
            lost.append(self.started.pop())
        return lost[::-1]

    def drop_held(self, first: int) -> None:
        """Forget the held launches from the value `first` on."""
        while self.held and self.held[-1][0] >= first:
            for resource in self.held.pop()[1].uses:
                resource.let_go()

    def keep(self, spans: tuple[Span, ...]) -> None:
        """Keep the spans of the value just reached and forget the oldest."""
        self.spans[self.value] = spans
        if len(self.spans) > KEPT_SPANS:
            self.spans.popitem(last=False)

    def keep_ended(self, op: Started) -> None:
        """Keep an operation that the driver has ended for its spans, and forget the oldest."""
        self.ended.append(op)
        self.marks += len(op.marks)
        while self.marks > KEPT_MARKS and len(self.ended) > 1:
            self.marks -= len(self.ended.popleft().marks)

    def ended_at(self, value: int) -> Started | None:
        """The operation that reached a value, if it is kept."""
        at = bisect_left(self.ended, value, key=lambda op: op.value)
        found = self.ended[at] if at < len(self.ended) else None
        return found if found is not None and found.value == value else None

    def mark(self, value: int) -> Any:
        """The driver's mark of a value that it owes; None if it has no operation for it."""
        started = self.started
        if not started or not started[0].value <= value <= started[-1].value:
            return None
        return started[value - started[0].value].marks[-1]


def reached(point: Point) -> bool:
    """Whether the point's counter is there."""
    queue: Queue = point.timeline.native
    return queue.value >= point.value


def failure_of(point: Point) -> Failure | None:
    """The first cause of a failed point."""
    queue: Queue = point.timeline.native
    return queue.failure(point.value)
