"""A cluster in simulated time, decided by the same scheduler: jobs come, run for as long as they
need, save when asked, hosts fail; what came of it is counted."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field

from hal.core.facts import dataclass
from stack.scheduler.core import Scheduler
from stack.scheduler.events import (
    Admit,
    Alarm,
    AskToStop,
    Cancelled,
    Decision,
    Ended,
    Event,
    Held,
    HostJoined,
    Measured,
    Refuse,
    Released,
    Resize,
    Resized,
    Saved,
    Share,
    Stop,
    Submitted,
    Wanted,
)
from stack.scheduler.spec import HostSpec, JobSpec, QueueSpec, Rules


@dataclass(frozen=True, slots=True)
class Task:
    """A job of a trace: submitted at `at`, it needs `work_s` seconds with all its ranks (with
    fewer, in proportion longer); one with options needs them by the fastest one."""

    at: float
    job: int
    spec: JobSpec
    work_s: float


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that a running job needs to save when it is asked to stop, to start again from what
    it saved, to change its number of ranks, and to be gone once it was told to stop."""

    save_s: float = 0.0
    restore_s: float = 0.0
    resize_s: float = 0.0
    stop_s: float = 0.0


@dataclass(slots=True)
class Course:
    """What became of a job. `waited_s` is the time from submission to its first start, `lost_s` the
    device seconds of work done twice, because it ended unsaved. `gain` is how much faster its
    option makes it than its number of ranks alone would (1 for a job without options)."""

    task: Task
    started: float = math.inf
    ended: float = math.inf
    refused: str = ""
    starts: int = 0
    resizes: int = 0
    lost_s: float = 0.0
    left_s: float = 0.0
    saved_s: float = 0.0
    since: float = 0.0
    ranks: int = 0
    gain: float = 1.0
    version: int = 0
    cancelled: bool = False
    over: bool = False

    @property
    def waited_s(self) -> float:
        """Seconds until it first started."""
        return self.started - self.task.at


@dataclass(slots=True)
class Outcome:
    """A simulation's end: every job's course, the time it took, and device seconds used and
    there."""

    courses: dict[int, Course] = field(default_factory=dict)
    ended_at: float = 0.0
    used_s: float = 0.0
    devices: int = 0
    decisions: int = 0

    @property
    def use(self) -> float:
        """The part of all device time until the last job ended in which a rank held the device."""
        return self.used_s / (self.devices * self.ended_at) if self.ended_at else 0.0

    def waits(self, courses: Iterable[Course] | None = None) -> list[float]:
        """Waiting times in seconds, sorted, of jobs that started."""
        chosen = self.courses.values() if courses is None else courses
        return sorted(c.waited_s for c in chosen if math.isfinite(c.started))


class Simulation:
    """Runs tasks through a scheduler on hosts that join at time 0; `faults` are further events
    (hosts lost, drained, joined again, jobs cancelled, held) at their times."""

    def __init__(
        self,
        tasks: Iterable[Task],
        hosts: Sequence[HostSpec],
        queues: Sequence[QueueSpec],
        levels: Sequence[str] = (),
        rules: Rules | None = None,
        costs: Costs | None = None,
        faults: Iterable[Event] = (),
    ) -> None:
        self.scheduler = Scheduler(queues, levels, rules)
        self.outcome = Outcome(devices=sum(chip.devices for host in hosts for chip in host.chips))
        self._costs = costs or Costs()
        self._tasks = {task.job: task for task in tasks}
        self._count = 0
        self._alarm = math.inf
        self._heap: list[tuple[float, int, Event, int]] = []
        for event in (
            *(HostJoined(0.0, host) for host in hosts),
            *(Submitted(task.at, task.job, task.spec) for task in self._tasks.values()),
            *faults,
        ):
            self._later(event)
        self._given, self._heap = sorted(self._heap, reverse=True), []

    def _later(self, event: Event, version: int = -1) -> None:
        """An event in the future; one of a job's course happens only in that version of it."""
        self._count += 1
        heapq.heappush(self._heap, (event.at, self._count, event, version))

    def run(self, until: float = math.inf) -> Outcome:
        """All events up to a time; what came of them."""
        for _ in self.steps(until):
            pass
        return self.outcome

    def steps(self, until: float = math.inf) -> Iterator[tuple[Event, list[Decision]]]:
        """Each event that happens, with what was decided."""
        given, heap = self._given, self._heap
        while given or heap:
            from_given = bool(given) and not (heap and heap[0] < given[-1])
            if (given[-1] if from_given else heap[0])[0] > until:
                return
            _, _, event, version = given.pop() if from_given else heapq.heappop(heap)
            if not self._happens(event, version):
                continue
            decisions = self.scheduler.handle(event)
            self.outcome.decisions += len(decisions)
            for decision in decisions:
                course = self.outcome.courses[decision.job]
                spec = course.task.spec
                match decision:
                    case Refuse(_, why):
                        course.refused = why
                    case Admit(_, shares, strategy):
                        course.started = min(course.started, event.at)
                        course.starts += 1
                        course.since, course.ranks = event.at, _ranks(shares, spec)
                        course.gain = _gain(shares, strategy, spec)
                        self._goes_on(course, event.at)
                    case Resize(job, shares, _, number, strategy):
                        self._advance(course, event.at)
                        course.resizes += 1
                        course.ranks, course.gain = (
                            _ranks(shares, spec),
                            _gain(shares, strategy, spec),
                        )
                        course.left_s += (
                            self._costs.resize_s * course.ranks / spec.ranks * course.gain
                        )
                        self._goes_on(course, event.at)
                        self._later(
                            Resized(event.at + self._costs.resize_s, job, number), course.version
                        )
                    case AskToStop(job, by, _):
                        if event.at + self._costs.save_s <= by:
                            self._later(Saved(event.at + self._costs.save_s, job), course.version)
                    case Stop(job, why):
                        course.version += 1
                        course.over |= "limit" in why
                        self._later(
                            Ended(event.at + self._costs.stop_s, job, done=False), course.version
                        )
            if self._alarm <= event.at or self.scheduler.alarm_at < self._alarm:
                self._alarm = self.scheduler.alarm_at
                if math.isfinite(self._alarm):
                    self._later(Alarm(max(self._alarm, event.at)))
            yield event, decisions

    def _happens(self, event: Event, version: int) -> bool:
        courses = self.outcome.courses
        match event:
            case Submitted(_, job, _):
                work_s = self._tasks[job].work_s
                courses[job] = Course(self._tasks[job], left_s=work_s, saved_s=work_s)
                return True
            case Ended(at, job, done):
                course = courses[job]
                if version != course.version:
                    return False
                self._advance(course, at)
                course.ranks, course.version = 0, course.version + 1
                if done or course.cancelled or course.over:
                    course.ended = self.outcome.ended_at = at
                else:
                    lost_s = course.saved_s - course.left_s
                    course.lost_s += lost_s * course.task.spec.ranks * course.task.spec.devices
                    course.left_s = course.saved_s + self._costs.restore_s
            case Alarm(at):
                return self.scheduler.alarm_at <= at
            case (
                Cancelled(_, job)
                | Held(_, job)
                | Released(_, job)
                | Wanted(_, job, _)
                | Measured(_, job, _)
            ):
                course = courses[job]
                if course.refused or math.isfinite(course.ended):
                    return False
                if isinstance(event, Cancelled) and not course.ranks:
                    course.ended = event.at
                course.cancelled |= isinstance(event, Cancelled)
                return True
            case Resized(_, job, _):
                return version == courses[job].version
            case Saved(at, job):
                if version != courses[job].version:
                    return False
                self._advance(courses[job], at)
                courses[job].saved_s = courses[job].left_s
        return True

    def _advance(self, course: Course, now: float) -> None:
        """Account for the time since something last changed for a job."""
        spec = course.task.spec
        seconds = now - course.since
        self.outcome.used_s += seconds * course.ranks * spec.devices
        done_s = seconds * course.ranks / spec.ranks * course.gain
        course.left_s = max(course.left_s - done_s, 0.0)
        course.since = now

    def _goes_on(self, course: Course, now: float) -> None:
        """Foresee the end of a job's work, if nothing changes."""
        course.version += 1
        rest_s = course.left_s * course.task.spec.ranks / course.ranks / course.gain
        self._later(Ended(now + rest_s, course.task.job), course.version)


def _ranks(shares: tuple[Share, ...], spec: JobSpec) -> int:
    return sum(len(share.devices) for share in shares) // spec.devices


def _gain(shares: tuple[Share, ...], strategy: str, spec: JobSpec) -> float:
    """How much faster a job is on these devices than its number of ranks alone would make it."""
    if not spec.options:
        return 1.0
    ranks = _ranks(shares, spec)
    way = (shares[0].kind, ranks, strategy)
    speed = next(o.speed for o in spec.options if (o.kind, o.ranks, o.strategy) == way)
    return speed / spec.fastest * spec.ranks / ranks
