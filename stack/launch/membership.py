"""The life of a job whose ranks may be replaced, decided purely, as `stack.launch.job` is.

A job has seats, one process at a time in each: those of its ranks, and spares. A process that has
declared its state has arrived, and can be a member. An **epoch** says which processes are the ranks
until the next one. The launcher alone makes epochs, so no two can disagree. A member that ends is
replaced by a spare; without one the others go on alone, as long as they are `least`; and a new
process is started in its seat, which becomes a member again once it arrives.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from stack.launch.job import (
    Alarm,
    Asked,
    Cause,
    Exited,
    Finish,
    Limits,
    Lost,
    Phase,
    Ready,
    Signal,
    ended,
)
from stack.launch.seats import Host, Seat

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Before a process in a seat whose last one ended before it was a rank; each later pause is twice
as long."""


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """The process number `start` of a seat, from 0 on."""

    seat: int
    start: int

    def __str__(self) -> str:
        return f"{self.seat}.{self.start}"

    @classmethod
    def of(cls, text: str) -> Member:
        """What `str` gave. Raises InvalidCall for anything else."""
        parts = text.split(".")
        if len(parts) != 2 or not all(part.isascii() and part.isdecimal() for part in parts):
            raise InvalidCall(f"{text[:80]!r} is no member of a job; it is SEAT.START, as 0.0")
        return cls(int(parts[0]), int(parts[1]))


@dataclass(frozen=True, slots=True)
class Epoch:
    """The members that are the ranks, in their order, from now on. Numbers begin at 1."""

    number: int
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Elastic:
    """How a job may change: it goes on with `least` to `size` ranks, beside `spares` processes that
    wait, and `restarts` more may be started in the places of those that ended."""

    size: int
    least: int
    spares: int = 0
    restarts: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.size:
            raise InvalidCall(
                f"--least is {self.least}; it must be from 1 to the number of ranks, {self.size}"
            )
        if self.spares < 0 or self.restarts < 0:
            raise InvalidCall("--spares and --restarts take numbers from 0 on")


@dataclass(frozen=True, slots=True)
class Arrived:
    """A process has declared its state: it can be a rank."""

    member: Member


@dataclass(frozen=True, slots=True)
class Faulty:
    """A process that runs is of no use, as `why` says."""

    member: Member
    why: str


@dataclass(frozen=True, slots=True)
class Entered:
    """A process is a rank now: it has the state of the others."""

    member: Member


@dataclass(frozen=True, slots=True)
class Held:
    """The agent of a host has a copy of the state of an epoch's ranks, which are on other hosts."""

    host: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Left:
    """A rank has come to the end of the training, together with `ranks`, of which it is one."""

    member: Member
    ranks: tuple[Member, ...]


Event = Ready | Lost | Exited | Asked | Alarm | Arrived | Faulty | Entered | Held | Left


@dataclass(frozen=True, slots=True)
class Begin:
    """Start the process of a seat that is empty."""

    member: Member


@dataclass(frozen=True, slots=True)
class Form:
    """Tell all that run of the new epoch. The state of the one before `is_lost` where no member has
    it, nor a host of theirs a copy."""

    epoch: Epoch
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """Kill the process of a seat."""

    seat: int


Instruction = Begin | Form | End | Signal | Finish


class Place(Enum):
    """What is in a seat."""

    EMPTY = "empty"
    STARTING = "starting"
    HERE = "here"
    DONE = "done"
    """A member that ended well."""


@dataclass(frozen=True, slots=True)
class _Seat:
    place: Place = Place.EMPTY
    start: int = -1
    due_s: float | None = None
    """When the next process is to be started; None for no such time."""
    usable: bool = True
    entered: bool = False
    """Whether its process has been a rank."""
    fails: int = 0
    """So many processes in a row ended here before they were ranks."""


class Membership:
    """An elastic job in these seats, from `now_s` on a clock that never goes back: those of the
    ranks first, then those of the spares."""

    def __init__(
        self,
        hosts: Sequence[Host],
        seats: Sequence[Seat],
        limits: Limits,
        elastic: Elastic,
        now_s: float,
    ) -> None:
        self._hosts, self._seats, self._limits, self._elastic = hosts, seats, limits, elastic
        self._unready = {seat.host for seat in seats}
        self._places = [_Seat() for _ in seats]
        self._restarts = elastic.restarts
        self._last_error = ""
        self._last_cause: Cause | None = None
        """Of the last new epoch that somebody's end has made."""
        self._has_left = False
        """Whether a rank has come to the end of the training: no new epoch is made."""
        self._phase_alarm_s: float | None = now_s + limits.meet_s
        self.phase = Phase.MEETING
        self.began = False
        self.cause: Cause | None = None
        self.statuses: dict[int, int] = {}
        self.epoch: Epoch | None = None
        self._holders: tuple[int, frozenset[int]] = (0, frozenset())
        """The last epoch that somebody has entered, and the hosts that have its state."""

    @property
    def running(self) -> set[int]:
        """The seats in which a process is."""
        return {i for i, s in enumerate(self._places) if s.place in (Place.STARTING, Place.HERE)}

    @property
    def alarm_s(self) -> float | None:
        """When `Alarm` is to come."""
        due = [] if self._is_ending else [s.due_s for s in self._places if s.due_s is not None]
        own = [] if self._phase_alarm_s is None else [self._phase_alarm_s]
        return min([*due, *own], default=None)

    @property
    def failed(self) -> bool:
        """Whether ranks ran and the job ended by something that nobody asked for."""
        return self.began and self.cause is not None and not self.cause.asked

    @property
    def holders(self) -> frozenset[int]:
        """The hosts that have the state of the last epoch that somebody has entered."""
        return self._holders[1]

    @property
    def unwatched(self) -> frozenset[int]:
        """The hosts whose silence nobody but the launcher notices: their ranks are all that there
        are, or still meet, so that none of another host waits for them in a call. Only where a
        process of another host could go on at once with the state."""
        if self.epoch is None:
            return frozenset()
        ranks_at = {self._seats[m.seat].host for m in self.epoch.members}
        if len(ranks_at) > 1 and self._holders[0] == self.epoch.number:
            return frozenset()
        ready = {self._seats[m.seat].host for m in self.here()} & self.holders
        return frozenset(host for host in ranks_at if ready - {host})

    def here(self) -> list[Member]:
        """The processes that have arrived and run."""
        found = enumerate(self._places)
        return [Member(i, s.start) for i, s in found if s.place is Place.HERE]

    @property
    def _is_ending(self) -> bool:
        return self.phase in (Phase.ENDING, Phase.KILLING, Phase.OVER)

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """What is to be done, in order, now that this has happened."""
        if self.phase is Phase.OVER:
            return []
        match event:
            case Ready(host):
                self._unready.discard(host)
                if self._unready or self.phase is not Phase.MEETING:
                    return []
                self.began = True
                self._gather(now_s)
                return [self._begin(i) for i in range(len(self._places))]
            case Arrived(member):
                if not self._is(member, Place.STARTING):
                    return []
                self._put(member.seat, place=Place.HERE)
                return self._form(now_s)
            case Faulty(member, _):
                runs = self._is(member, Place.STARTING) or self._is(member, Place.HERE)
                return [End(member.seat)] if runs else []
            case Entered(member):
                if self._is(member, Place.HERE) and self.epoch is not None:
                    self._put(member.seat, entered=True)
                    self._holds(self._seats[member.seat].host)
                return []
            case Held(host, epoch):
                if self.epoch is not None and self.epoch.number == epoch == self._holders[0]:
                    self._holds(host)
                return []
            case Left(member, ranks):
                if self._is_ending or not self._is(member, Place.HERE):
                    return []
                self._has_left = True
                for seat in range(len(self._places)):
                    self._put(seat, due_s=None)
                there = all(self._is(m, Place.HERE) or self._is(m, Place.DONE) for m in ranks)
                # One that had come to the end, too, may not have done what it does after it
                return (
                    [] if there or self._last_cause is None else self._end(self._last_cause, now_s)
                )
            case Exited(seat, status, error):
                return self._exited(seat, status, error, now_s)
            case Lost(host, why):
                return self._lost(host, why, now_s)
            case Asked(number):
                if self.phase is Phase.KILLING:
                    return []
                if self.phase is Phase.ENDING:
                    return self._kill(now_s)
                name = signal.Signals(number).name
                text = f"the launcher was asked to end by {name}"
                return self._end(Cause(text, 128 + number, asked=True), now_s, number)
            case Alarm():
                return self._alarm(now_s)

    # what happened

    def _exited(self, seat: int, status: int, error: str, now_s: float) -> list[Instruction]:
        before = self._places[seat]
        if before.place not in (Place.STARTING, Place.HERE):
            return []
        self.statuses[seat] = status
        was_member = self.epoch is not None and Member(seat, before.start) in self.epoch.members
        well = status == 0 and was_member
        self._put(seat, place=Place.DONE if well else Place.EMPTY)
        if self._is_ending:
            return self._finish_if_empty()
        if well:
            # A member ended well: the job has ended when all have that were ranks; who only waited
            # is told to end, also one that was to be a rank and came too late.
            assert self.epoch is not None
            self._has_left = True
            members = [m for m in self.epoch.members if self._is(m, Place.HERE)]
            if any(self._places[m.seat].entered for m in members):
                return []
            for seat in range(len(self._places)):
                self._put(seat, due_s=None)
            self.phase, self._phase_alarm_s = Phase.ENDING, now_s + self._limits.failed_s
            return self._finish_if_empty() or [Signal(signal.SIGTERM)]
        text = f"rank {seat} failed: {ended(status)}"
        code = 128 - status if status < 0 else status or 1
        if status == 0 and self.epoch is None:
            text = (
                f"rank {seat} ended before it declared its state, so no rank can be replaced; "
                "declare it by `stack.fault.Training`, or leave out --least and --spares"
            )
            return self._end(Cause(text, code, seat), now_s)
        if self._has_left and not before.entered:
            return []
        own_fault = status > 0 and (self.epoch is None or (error and error == self._last_error))
        if own_fault or self._has_left:
            return self._end(Cause(text, code, seat), now_s)
        self._last_error = error if status > 0 else self._last_error
        if self._restarts and self._places[seat].usable:
            self._restarts -= 1
            fails = 0 if before.entered else before.fails + 1
            self._put(seat, due_s=now_s + pause_after(fails), fails=fails)
        given = self._begin_due(now_s)
        return given + self._go_on(Cause(text, code, seat), now_s)

    def _lost(self, host: int, why: str, now_s: float) -> list[Instruction]:
        had_ranks = False
        for seat in self._seats:
            if seat.host == host:
                place = self._places[seat.rank].place
                had_ranks |= place is Place.HERE and self._places[seat.rank].entered
                gone = Place.DONE if place is Place.DONE else Place.EMPTY
                self._put(seat.rank, place=gone, usable=False, due_s=None)
        cause = Cause(f"{self._hosts[host]} is lost: {why}", 1)
        if self._is_ending:
            return self._finish_if_empty()
        if self._has_left and not had_ranks:
            return []
        if self.phase is Phase.MEETING or self._has_left:
            return self._end(cause, now_s)
        return self._go_on(cause, now_s)

    def _alarm(self, now_s: float) -> list[Instruction]:
        given = [] if self._is_ending else self._begin_due(now_s)
        if self._phase_alarm_s is None or now_s < self._phase_alarm_s:
            return given
        match self.phase:
            case Phase.MEETING:
                silent = ", ".join(str(self._hosts[host]) for host in sorted(self._unready))
                text = f"no answer from {silent} within {self._limits.meet_s:g} s"
                return given + self._end(Cause(text, 1), now_s)
            case Phase.GATHERING:
                here, least = len(self.here()), self._elastic.least
                if here >= least:
                    return given + self._form(now_s, late=True)
                text = (
                    f"only {here} processes declared their state within {self._limits.start_s:g} s;"
                    f" the job takes {least} at least"
                )
                return given + self._end(Cause(text, 1), now_s)
            case Phase.ENDING:
                return self._kill(now_s)
            case Phase.KILLING:
                return self._over()
        return given

    # what follows

    def _go_on(self, cause: Cause, now_s: float) -> list[Instruction]:
        """A new epoch of those who are left; the end where they will never be enough."""
        coming = [s for s in self._places if s.place is Place.STARTING or s.due_s is not None]
        if len(self.here()) + len(coming) < self._elastic.least:
            return self._end(cause, now_s)
        self._last_cause = cause
        return self._form(now_s)

    def _form(self, now_s: float, late: bool = False) -> list[Instruction]:
        """The next epoch, if it would be another one. Members that are left keep their order, and
        whoever comes for one that is not takes its place."""
        if self._is_ending or self._has_left:
            return []
        here = self.here()
        if self.epoch is None:
            if len(here) < self._elastic.size and not late:
                return []
            members = here[: self._elastic.size]
        else:
            waiting = [m for m in here if m not in self.epoch.members]
            if len(waiting) == len(here) and not late and self._state_may_come(waiting):
                if self.phase is not Phase.GATHERING:
                    self._gather(now_s)
                return []
            if len(waiting) == len(here):  # those first whose hosts have the state
                waiting.sort(key=lambda m: self._seats[m.seat].host not in self._holders[1])
            places = [
                m if m in here else (waiting.pop(0) if waiting else None)
                for m in self.epoch.members
            ]
            kept = [m for m in places if m is not None]
            members = kept + waiting[: self._elastic.size - len(kept)]
        if len(members) < self._elastic.least:
            if self.phase is not Phase.GATHERING:
                self._gather(now_s)
            return []
        self.phase, self._phase_alarm_s = Phase.RUNNING, None
        if self.epoch is not None and tuple(members) == self.epoch.members:
            return []
        self.epoch = Epoch(self.epoch.number + 1 if self.epoch else 1, tuple(members))
        left = {self._seats[m.seat].host for m in members} & self.holders
        return [Form(self.epoch, is_lost=bool(self.holders) and not left)]

    def _state_may_come(self, waiting: Sequence[Member]) -> bool:
        """Where no rank is left, the newest state is with the agents of their hosts: whether it is
        worth to wait for a process there, since none of those that wait is on such a host."""
        hosts = self._holders[1]
        coming = (
            s.place is Place.STARTING or s.due_s is not None
            for s, seat in zip(self._places, self._seats, strict=True)
            if seat.host in hosts and s.usable
        )
        return not any(self._seats[m.seat].host in hosts for m in waiting) and any(coming)

    def _holds(self, host: int) -> None:
        """A host has the state of this epoch."""
        assert self.epoch is not None
        number, hosts = self._holders
        before = hosts if number == self.epoch.number else frozenset()
        self._holders = self.epoch.number, before | {host}

    def _end(self, cause: Cause, now_s: float, number: int = signal.SIGTERM) -> list[Instruction]:
        self.cause = self.cause or cause
        patience_s = self._limits.asked_s if cause.asked else self._limits.failed_s
        self.phase, self._phase_alarm_s = Phase.ENDING, now_s + patience_s
        return self._finish_if_empty() or [Signal(number)]

    def _kill(self, now_s: float) -> list[Instruction]:
        self.phase, self._phase_alarm_s = Phase.KILLING, now_s + self._limits.kill_s
        return [Signal(signal.SIGKILL)]

    def _finish_if_empty(self) -> list[Instruction]:
        return [] if self.running else self._over()

    def _over(self) -> list[Instruction]:
        self.phase, self._phase_alarm_s = Phase.OVER, None
        return [Finish()]

    def _gather(self, now_s: float) -> None:
        self.phase, self._phase_alarm_s = Phase.GATHERING, now_s + self._limits.start_s

    def _begin(self, seat: int) -> Begin:
        start, fails = self._places[seat].start + 1, self._places[seat].fails
        self._places[seat] = _Seat(Place.STARTING, start, fails=fails)
        return Begin(Member(seat, start))

    def _begin_due(self, now_s: float) -> list[Instruction]:
        due = enumerate(self._places)
        return [self._begin(i) for i, s in due if s.due_s is not None and s.due_s <= now_s]

    def _is(self, member: Member, place: Place) -> bool:
        found = self._places[member.seat]
        return found.place is place and found.start == member.start

    def _put(self, seat: int, **changes: object) -> None:
        self._places[seat] = replace(self._places[seat], **changes)  # type: ignore[arg-type]


def pause_after(fails: int) -> float:
    """Seconds before the next process of a seat, once so many ended before they were ranks."""
    return min(FIRST_PAUSE_S * 2.0 ** min(fails - 1, 32), LONGEST_PAUSE_S) if fails else 0.0
