"""The life of a job, decided purely: events in, instructions out, no process and no clock.

MEETING  every host is asked whether it can start its ranks; nothing runs yet
GATHERING  processes run, too few of them for a step (`stack.launch.membership` alone)
RUNNING  until every rank has ended well
ENDING   something failed or somebody asked: the ranks are told to end
KILLING  those that did not end in time are killed
OVER     there is nothing more to do
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from enum import Enum

from hal.core.facts import dataclass
from stack.launch.seats import Host, Seat


@dataclass(frozen=True, slots=True)
class Ready:
    """A host can start its ranks."""

    host: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A host is out of reach, or cannot do its part; nothing more is heard of its ranks."""

    host: int
    why: str


@dataclass(frozen=True, slots=True)
class Exited:
    """A rank's process has ended: `status` is its exit status, or -N for signal N. `error` is what
    a rank that failed by itself said of it and where it was; "" where nobody knows."""

    rank: int
    status: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """Somebody sent the launcher a signal that asks it to end."""

    number: int


@dataclass(frozen=True, slots=True)
class Alarm:
    """The time `Job.alarm_s` has come."""


Event = Ready | Lost | Exited | Asked | Alarm


@dataclass(frozen=True, slots=True)
class Start:
    """Start every rank."""


@dataclass(frozen=True, slots=True)
class Signal:
    """Send every rank that runs a signal."""

    number: int


@dataclass(frozen=True, slots=True)
class Finish:
    """End the agents: all is said."""


Instruction = Start | Signal | Finish


class Phase(Enum):
    """Where a job stands; see above."""

    MEETING = "meeting"
    GATHERING = "gathering"
    RUNNING = "running"
    ENDING = "ending"
    KILLING = "killing"
    OVER = "over"


GRACE_S = 30.0
"""How long ranks may take to save when they are asked to end, if nobody says."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: until all hosts have answered; from asking ranks to end, after a failure or when the
    user asks, until they are killed; from there until they are given up; and from the start of a
    process until it has declared its state."""

    meet_s: float = 60.0
    failed_s: float = 5.0
    asked_s: float = GRACE_S
    kill_s: float = 10.0
    start_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a job did not end well: `text` in words, with the exit status of the launcher. `rank` is
    the rank that failed first; None when it was a host, or somebody asked (`asked`)."""

    text: str
    code: int
    rank: int | None = None
    asked: bool = False


class Job:
    """A job of these seats on these hosts, from `now_s` on a clock that never goes back."""

    def __init__(
        self, hosts: Sequence[Host], seats: Sequence[Seat], limits: Limits, now_s: float
    ) -> None:
        self._hosts = hosts
        self._seats = seats
        self._limits = limits
        self._unready = {seat.host for seat in seats}
        self.phase = Phase.MEETING
        self.began = False
        self.cause: Cause | None = None
        self.statuses: dict[int, int] = {}
        self.running: set[int] = set()
        self.alarm_s: float | None = now_s + limits.meet_s

    @property
    def failed(self) -> bool:
        """Whether ranks ran and something went wrong that nobody asked for."""
        return self.began and self.cause is not None and not self.cause.asked

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """What is to be done, in order, now that this has happened."""
        if self.phase is Phase.OVER:
            return []
        match event:
            case Ready(host):
                self._unready.discard(host)
                if self._unready or self.phase is not Phase.MEETING:
                    return []
                self.phase, self.alarm_s, self.began = Phase.RUNNING, None, True
                self.running = {seat.rank for seat in self._seats}
                return [Start()]
            case Exited(rank, status):
                self.running.discard(rank)
                self.statuses[rank] = status
                if status and (self.cause is None or self._was_first(status)):
                    text = f"rank {rank} failed: {ended(status)}"
                    self.cause = Cause(text, 128 - status if status < 0 else status, rank)
                return self._go_on(signal.SIGTERM, self._limits.failed_s, now_s)
            case Lost(host, why):
                self.running -= {seat.rank for seat in self._seats if seat.host == host}
                if self.cause is None:
                    self.cause = Cause(f"{self._hosts[host]} is lost: {why}", 1)
                return self._go_on(signal.SIGTERM, self._limits.failed_s, now_s)
            case Asked(number):
                if self.cause is None:
                    name = signal.Signals(number).name
                    self.cause = Cause(
                        f"the launcher was asked to end by {name}", 128 + number, asked=True
                    )
                elif self.phase is Phase.ENDING:
                    return self._kill(now_s)
                return self._go_on(number, self._limits.asked_s, now_s)
            case Alarm():
                if self.phase is Phase.MEETING:
                    silent = ", ".join(str(self._hosts[host]) for host in sorted(self._unready))
                    text = f"no answer from {silent} within {self._limits.meet_s:g} s"
                    self.cause = Cause(text, 1)
                    return self._go_on(signal.SIGTERM, 0.0, now_s)
                if self.phase is Phase.ENDING:
                    return self._kill(now_s)
                if self.phase is Phase.KILLING:
                    self.phase, self.alarm_s = Phase.OVER, None
                    return [Finish()]
                return []

    def _was_first(self, status: int) -> bool:
        """Whether a rank ended before the one that is the cause, though its end came later: what a
        killed process had open is closed before its end is told, so that on a busy machine who
        misses it may fail sooner. Nobody is killed by the launcher while ranks are asked to end."""
        if status != -signal.SIGKILL or self.phase is not Phase.ENDING:
            return False
        assert self.cause is not None, "ranks are asked to end for a cause"
        return self.cause.rank is not None and self.statuses[self.cause.rank] > 0

    def _go_on(self, number: int, patience_s: float, now_s: float) -> list[Instruction]:
        """Finish when nothing runs; begin to end the ranks when there is a cause to."""
        if not self.running and (self.cause is not None or self.phase is not Phase.MEETING):
            self.phase, self.alarm_s = Phase.OVER, None
            return [Finish()]
        if self.cause is not None and self.phase is Phase.RUNNING:
            self.phase, self.alarm_s = Phase.ENDING, now_s + patience_s
            return [Signal(number)]
        return []

    def _kill(self, now_s: float) -> list[Instruction]:
        self.phase, self.alarm_s = Phase.KILLING, now_s + self._limits.kill_s
        return [Signal(signal.SIGKILL)]


def ended(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
