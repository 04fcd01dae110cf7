"""The one owner of a cluster's state: what is told is decided, written, and then carried out."""

from __future__ import annotations

import math
import os
import secrets
import select
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from hal.core.errors import HalError, InvalidCall
from hal.core.facts import dataclass
from stack.cluster.engine import Alive, JobEngine, Over
from stack.cluster.files import ClusterFile, JobFile
from stack.cluster.given import check_folder, check_script
from stack.cluster.journal import Attempt, JobRecord, Journal
from stack.cluster.users import NotAllowed, named, own
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
    HostDrained,
    HostJoined,
    HostLost,
    Measured,
    Refuse,
    Released,
    Resize,
    Resized,
    Stop,
    Submitted,
    Wanted,
)
from stack.scheduler.gang import Gang, State
from stack.scheduler.snapshot import host_data, restored, snapshot
from stack.scheduler.spec import HostSpec, SpecError

STOP_S = 2.0
"""How long a run that is told to stop may take before it is killed."""
AGAIN = 3
"""How often a job starts again whose hosts were lost to it, though they answer."""
SNAPSHOT_EVENTS = 1000
_SHOWN = 200
_AGAIN_S = 1.0


@dataclass(slots=True)
class LiveJob:
    """How a job that has devices is carried out. `run` is its newest start, `alive` what runs, of
    the start `runs`; `asked` tells that it was asked to end, and `kill_at` when it is killed.
    `is_over` where it has ended by the loss of the hosts `lost`, of which nobody knows yet whether
    they are well; `losses` counts how often that was."""

    file: JobFile
    user: str
    run: Attempt
    runs: Attempt | None = None
    alive: Alive | None = None
    asked: bool = False
    kill_at: float = math.inf
    is_over: bool = False
    lost: set[str] = field(default_factory=set)
    losses: int = 0


class LiveCluster:
    """A cluster in a folder, whose runs `engine` starts. Not for several threads.

    Raises InvalidCall, and SpecError for a cluster that cannot be as it is written."""

    def __init__(
        self,
        folder: Path,
        config: ClusterFile,
        engine: Callable[[Path, str, ClusterFile], JobEngine] = JobEngine,
    ) -> None:
        self.config = config
        # Who may use a cluster, by name: who runs it first. Raises InvalidCall.
        mine = own()
        if config.users and mine.uid != 0:
            raise InvalidCall(
                f"the cluster's file has users, whose jobs run as they: {mine.name} cannot start "
                "these; have root start the daemon, or leave out `users`"
            )
        self.users = {mine.name: mine, **{name: named(name) for name in config.users}}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o711 if len(self.users) > 1 else 0o700)
        self._journal = Journal(folder)
        self._courses: dict[int, LiveJob] = {}
        self._told: list[Event] = []
        self._todo: list[Decision] = []
        try:
            name = self._journal.fact("name") or f"{os.getuid()}-{secrets.token_hex(8)}"
            self._journal.set_fact("name", name)
            self._away: set[str] = set(self._journal.fact("away") or ())
            self._scheduler = self._replayed()
            self._reconfigure()
            self._journal.commit()
        except (SpecError, InvalidCall):
            self._journal.close()
            raise
        except sqlite3.Error as error:
            self._journal.close()
            raise InvalidCall(_full(error)) from error
        self._engine = engine(folder / "jobs", name, config)
        self._look_again = math.inf
        self._find_runs()

    def __len__(self) -> int:
        """How many jobs are here: that wait, are held, or run."""
        return len(self._scheduler.books.gangs)

    def close(self) -> None:
        """Leave the cluster: jobs go on, and a later daemon finds them. In an allocation, which may
        end with this, they are asked to save; the daemon of another one starts them anew."""
        if self.config.allocation:
            left = {course.alive.watched for course in self._courses.values() if course.alive}
            until_s = time.monotonic()
            for course in self._courses.values():
                if course.alive is not None:
                    self._engine.ask(course.alive)
                    until_s = max(until_s, time.monotonic() + course.file.grace_s)
            while left and time.monotonic() < until_s:
                poll = select.poll()
                for descriptor in left:
                    poll.register(descriptor, select.POLLIN)
                left -= {one for one, _ in poll.poll((until_s - time.monotonic()) * 1000)}
        self._keep_snapshot()
        self._journal.close()

    # what people ask for

    def owned(self, job: int, user: str) -> int:
        """The number of a job that this user may see and change, if it is here at all. Raises
        NotAllowed for somebody else's."""
        record = self._journal.job(job)
        if record is not None and user not in (record.user, own().name):
            raise NotAllowed(f"job {job} is another user's; `hal jobs` lists yours")
        return job

    def submit(self, file: JobFile, user: str = "") -> int:
        """Take a job of a user (or of who runs this); gives its number. Raises InvalidCall for one
        that can never run here."""
        who = self.users[user or own().name]
        # what others do not find is said when it runs, as they: here it would tell what is where
        if who.is_own:
            check_script(file.folder, file.script, file.module)
        else:
            check_folder(file.folder)
        try:
            spec = file.spec(who.name)
        except SpecError as error:
            raise InvalidCall(str(error)) from error
        if spec.devices != 1:
            raise InvalidCall("a rank has one device here")
        job = self._journal.next_job()
        now = self._now()
        self._journal.add_job(job, file, who.name, now)
        self._tell(Submitted(now, job, spec))
        refused = [one.why for one in self._todo if isinstance(one, Refuse) and one.job == job]
        if refused:
            self._todo = [one for one in self._todo if one.job != job]
            self._journal.end_job(job, now, f"refused: {refused[0]}")
            raise InvalidCall(refused[0])
        return job

    def cancel(self, job: int) -> None:
        """End a job, wherever it stands. Raises InvalidCall for one that is not here."""
        self._gang(job)
        now = self._now()
        self._tell(Cancelled(now, job))
        if job not in self._scheduler.books.gangs:
            self._journal.end_job(job, now, "cancelled")

    def hold(self, job: int) -> None:
        """Let a waiting job not start. Raises InvalidCall for one that is not here, or runs."""
        if self._gang(job).state not in (State.WAITING, State.HELD):
            state = self._gang(job).state.value
            raise InvalidCall(f"job {job} is {state}; only one that waits can be held")
        self._tell(Held(self._now(), job))

    def release(self, job: int) -> None:
        """Let a held job start. Raises InvalidCall for one that is not here."""
        self._gang(job)
        self._tell(Released(self._now(), job))

    def resize(self, job: int, ranks: int) -> None:
        """Want another number of ranks for a job. Raises InvalidCall for one that is not here or
        stops, SpecError for a number that it cannot have."""
        if self._gang(job).state is State.STOPPING:
            raise InvalidCall(f"job {job} is stopping; submit it again with {ranks} ranks")
        if not self.config.rules.elastic:
            raise InvalidCall("the cluster's rules keep the sizes of jobs (elastic = false)")
        spec = self._scheduler.with_ranks(job, ranks)
        record = self._journal.job(job)
        assert record is not None, "it is here"
        file = msgspec.structs.replace(record.file, ranks=spec.ranks, least=spec.least)
        self._journal.set_file(job, file)
        self._tell(Wanted(self._now(), job, ranks))

    def drain(self, host: str) -> None:
        """Start nothing new on a host. Raises InvalidCall for one that is not here."""
        self._check_host(host)
        self._tell(HostDrained(self._now(), host))

    def lose(self, host: str) -> None:
        """Take a host for gone, with what ran there. Raises InvalidCall for one that is not
        here."""
        self._check_host(host)
        self._tell(HostLost(self._now(), host))

    def join(self, host: str) -> None:
        """Use a host of the cluster's file again. Raises InvalidCall for one that is not in it."""
        spec = next((spec for spec in self._hosts() if spec.name == host), None)
        if spec is None:
            raise InvalidCall(f"the cluster's file has no host {host!r}")
        self._tell(HostJoined(self._now(), spec))

    def usable(self) -> list[str]:
        """The hosts that get jobs."""
        hosts = self._scheduler.books.hosts.items()
        return [name for name, (_, leaves) in hosts if all(leaf.usable for leaf in leaves)]

    def why(self, job: int) -> str:
        """What a job waits for, or how it ended. Raises InvalidCall for one that never was."""
        record = self._journal.job(job)
        if record is None:
            raise InvalidCall(f"there is no job {job}; `hal jobs` lists them")
        return record.outcome or self._scheduler.why(job)

    def log(self, job: int) -> Path | None:
        """The output of a job's newest start; None before there is one. Raises InvalidCall."""
        if self._journal.job(job) is None:
            raise InvalidCall(f"there is no job {job}; `hal jobs` lists them")
        runs = self._journal.runs(job)
        return self._engine.log(runs[-1]) if runs else None

    def measured(self, job: int, speed: float) -> None:
        """Count how fast a job says that it is, by the option that it has. Raises InvalidCall for
        one that is not here, SpecError for a speed that is none."""
        self._gang(job)
        self._tell(Measured(self._now(), job, speed))

    def doubted(self) -> list[str]:
        """The hosts of which nobody knows whether they are well: those that jobs have lost, and
        those that were found to be out of reach before."""
        lost = {host for course in self._courses.values() for host in course.lost}
        return sorted(lost | self._away)

    @property
    def loses_hosts(self) -> bool:
        """Whether a job waits to hear of a host that it has lost."""
        return any(course.lost for course in self._courses.values())

    def answers(self, host: str) -> bool:
        """Whether a host can be reached. From any thread; it may take a while."""
        return self._engine.answers(host)

    def heard(self, host: str, answers: bool) -> None:
        """A host that was doubted answers, or it does not: then it is lost until it does again.
        Jobs whose run has ended by its loss go on."""
        books = self._scheduler.books
        here = host in books.hosts
        struck = [c for c in self._courses.values() if host in c.lost]
        for course in struck:
            course.lost.discard(host)
        usable = here and host in self.usable()
        if not answers and (usable or struck):
            if usable:
                self._away.add(host)
            self._tell(HostLost(self._now(), host))
        elif answers and host in self._away:
            self._away.discard(host)
            self.join(host)
        elif not here:
            self._away.discard(host)
        self._journal.set_fact("away", sorted(self._away))
        decided = {decision.job for decision in self._todo}
        for course in struck:
            if not course.lost and course.run.job not in decided:
                self._again(course)

    def jobs(self, user: str = "") -> list[dict[str, Any]]:
        """The jobs that are here and the last ones that ended, as plain data, by number: of a user
        his own, of who runs this all."""
        whose = "" if user == own().name else user
        return [self._row(record) for record in self._journal.jobs(_SHOWN, whose)]

    def hosts(self) -> list[dict[str, Any]]:
        """The hosts with their devices, and who holds these, as plain data."""
        held: dict[tuple[str, str], dict[int, int]] = {}
        for gang in self._scheduler.books.gangs.values():
            for share in gang.shares():
                place = held.setdefault((share.host, share.chip), {})
                place.update(dict.fromkeys(share.devices, gang.job))
        rows = []
        for host, leaves in self._scheduler.books.hosts.values():
            chips = [
                {
                    "kind": chip.kind,
                    "chip": chip.name,
                    "jobs": [
                        held.get((host.name, chip.name), {}).get(i) for i in range(chip.devices)
                    ],
                }
                for chip in host.chips
            ]
            usable = all(leaf.usable for leaf in leaves)
            known = {"usable": usable, "lost": host.name in self._away, "chips": chips}
            rows.append({**host_data(host), **known})
        return rows

    def queues(self) -> list[dict[str, Any]]:
        """The queues with what they own and how many jobs wait and run there."""
        rows = []
        for queue in self._scheduler.books.queues.values():
            gangs = [g for g in self._scheduler.books.gangs.values() if g.queue is queue]
            rows.append(
                {
                    "name": queue.spec.name,
                    "quota": dict(queue.spec.quota),
                    "cohort": queue.spec.cohort,
                    "waiting": sum(not g.ranks for g in gangs),
                    "running": sum(bool(g.ranks) for g in gangs),
                }
            )
        return rows

    # what the daemon does

    def do(self, calls: Sequence[Callable[[LiveCluster], Any]]) -> list[Any]:
        """What each call gives, or the HalError or SpecError that it raises. They are durable then,
        together, and carried out; where the journal cannot be written nothing of it has happened,
        and that is the answer of all."""
        try:
            answers = [self._answer(call) for call in calls]
            self._journal.commit()
        except sqlite3.Error as error:
            return [self._undone(error)] * len(calls)
        self.settle()
        return answers

    def _answer(self, call: Callable[[LiveCluster], Any]) -> Any:
        try:
            return call(self)
        except (HalError, SpecError) as error:
            return error

    def settle(self) -> None:
        """Make what was told durable, then carry out what was decided."""
        try:
            while self._todo or not self._journal.is_clean:
                self._journal.commit()
                todo, self._todo = self._todo, []
                for decision in todo:
                    job = decision.job
                    match decision:
                        case Admit():
                            record = self._journal.job(job)
                            assert record is not None, "it was admitted"
                            run = self._journal.runs(job)[-1]
                            course = self._courses[job] = LiveJob(record.file, record.user, run)
                            self._start(job, course)
                        case Resize():
                            course = self._courses[job]
                            course.run = self._journal.runs(job)[-1]
                            self._ask_or_end(job, course, course.file.grace_s, wanted=False)
                        case AskToStop(_, by, _):
                            patience_s = by - self._now() + STOP_S
                            self._ask_or_end(job, self._courses[job], patience_s, wanted=True)
                        case Stop():
                            self._ask_or_end(job, self._courses[job], STOP_S, wanted=True)
                        case Refuse(_, why):
                            self._journal.end_job(job, self._now(), f"refused: {why}")
            if len(self._told) >= SNAPSHOT_EVENTS:
                self._keep_snapshot()
        except sqlite3.Error as error:
            self._undone(error)

    def _undone(self, error: sqlite3.Error) -> InvalidCall:
        """Go back to what the journal has, and look what runs a little later."""
        self._journal.rollback()
        for course in self._courses.values():
            if course.alive is not None:
                os.close(course.alive.watched)
        self._courses, self._todo, self._look_again = {}, [], self._now() + _AGAIN_S
        self._scheduler = self._replayed()
        return InvalidCall(_full(error))

    def watched(self) -> dict[int, int]:
        """What becomes readable when a run ends: descriptors, with the job of each."""
        return {c.alive.watched: job for job, c in self._courses.items() if c.alive is not None}

    def ended(self, job: int) -> None:
        """A job's run has ended."""
        course = self._courses[job]
        assert course.alive is not None, "it was watched"
        assert course.runs is not None, "it runs"
        found = self._engine.end(course.runs, course.alive)
        course.alive = found if isinstance(found, Alive) else None
        if isinstance(found, Over):
            over = found
            self.do([lambda cluster: cluster._over(job, course, over)])

    def look(self) -> float:
        """Do what is due by the clock; gives the seconds until something is due again."""
        now = self._now()
        if self._look_again <= now:
            self._look_again = math.inf
            self._find_runs()
        for course in list(self._courses.values()):
            if course.kill_at <= now and course.runs is not None:
                self._engine.kill(course.runs)
                course.kill_at = now + _AGAIN_S
        if self._scheduler.alarm_at <= now:
            self.do([lambda cluster: cluster._tell(Alarm(now))])
        due = min((course.kill_at for course in self._courses.values()), default=math.inf)
        return max(min(due, self._look_again, self._scheduler.alarm_at) - self._now(), 0.0)

    # within

    def _now(self) -> float:
        return max(time.time(), self._scheduler.books.now)

    def _tell(self, event: Event) -> None:
        """Decide, and write the event and the starts that were decided."""
        self._journal.add_event(event)
        decisions = self._scheduler.handle(event)
        self._told.append(event)
        for decision in decisions:
            if isinstance(decision, Admit | Resize):
                number = len(self._journal.runs(decision.job)) + 1
                resize = decision.number if isinstance(decision, Resize) else None
                run = Attempt(decision.job, number, decision.shares, resize, decision.strategy)
                self._journal.add_run(run)
        self._todo += decisions

    def _replayed(self) -> Scheduler:
        """The scheduler as the journal has it."""
        state = self._journal.fact("snapshot")
        config = self._journal.config() or self.config
        queues, rules = config.queue_specs(), config.rule_spec()
        if state is None:
            scheduler = Scheduler(queues, config.levels, rules)
        else:
            scheduler = restored(queues, config.levels, rules, state)
        self._told = list(self._journal.events())
        for event in self._told:
            scheduler.handle(event)
        return scheduler

    def _keep_snapshot(self) -> None:
        self._journal.keep_snapshot(snapshot(self._scheduler), self.config)
        self._journal.commit()
        self._told = []

    def _reconfigure(self) -> None:
        """Take up what the cluster's file says now."""
        before = self._journal.config()
        if before != self.config:
            state = snapshot(self._scheduler)
            names = {queue.name for queue in self.config.queue_specs()}
            for gang in self._scheduler.books.gangs.values():
                if gang.spec.queue not in names:
                    raise InvalidCall(
                        f"job {gang.job} is in queue {gang.spec.queue!r}, which the cluster's file "
                        "has no more; keep it until its jobs have ended"
                    )
            levels, rules = self.config.levels, self.config.rule_spec()
            if before is not None and before.levels != levels and state["jobs"]:
                raise InvalidCall("the levels can change only while there is no job")
            self._scheduler = restored(self.config.queue_specs(), levels, rules, state)
            self._keep_snapshot()
        there = {host.name: host for host, _ in self._scheduler.books.hosts.values()}
        wanted = {host.name: host for host in self._hosts()}
        if before is not None and before.allocation != self.config.allocation:
            for name in there:  # what ran there ended with it, also where a host is here again
                self._tell(HostLost(self._now(), name))
            there = {}
        for name in there:
            if wanted.get(name) != there[name]:
                self._tell(HostLost(self._now(), name))
        for name, host in wanted.items():
            if there.get(name) != host:
                self._tell(HostJoined(self._now(), host))

    def _hosts(self) -> list[HostSpec]:
        return self.config.host_specs()

    def _find_runs(self) -> None:
        """Find what ran on while nobody watched, and do what was only decided."""
        self._todo = []  # it is found by looking
        gangs = self._scheduler.books.gangs.values()
        here = [gang for gang in gangs if gang.state in (State.RUNNING, State.STOPPING)]
        for gang in here:
            record = self._journal.job(gang.job)
            assert record is not None, "it was submitted"
            run = self._journal.runs(gang.job)[-1]
            self._courses[gang.job] = LiveJob(record.file, record.user, run)
        for gang in here:  # each may end, and so change those behind it
            course, runs = self._courses[gang.job], self._journal.runs(gang.job)
            course.runs = course.run
            found = self._engine.find(course.run)
            if found is None and len(runs) > 1 and runs[-1].resize is not None:
                before = self._engine.find(runs[-2])
                if isinstance(before, Alive):
                    course.runs, found = runs[-2], before
            self.do([partial(LiveCluster._take_up, gang=gang, course=course, found=found)])

    def _take_up(self, gang: Gang, course: LiveJob, found: Alive | Over | None) -> None:
        if isinstance(found, Alive):
            course.alive = found
        elif found is None:
            self._start(gang.job, course)
        else:
            self._over(gang.job, course, found)
            return
        if gang.state is State.STOPPING:
            self._ask(course, STOP_S if gang.told else gang.spec.grace_s, wanted=True)
        elif course.runs is not course.run:
            self._ask(course, gang.spec.grace_s, wanted=False)
        elif course.run.resize is not None:
            self._tell(Resized(self._now(), gang.job, course.run.resize))

    def _ask(self, course: LiveJob, patience_s: float, wanted: bool) -> None:
        """Ask what runs to save and end; `wanted` when it is not to go on elsewhere."""
        course.asked |= wanted
        course.kill_at = min(course.kill_at, self._now() + patience_s)
        if course.alive is not None:
            self._engine.ask(course.alive)

    def _ask_or_end(self, job: int, course: LiveJob, patience_s: float, wanted: bool) -> None:
        """Ask what runs to save and end; do at once what follows where it has ended before, by the
        loss of a host."""
        self._ask(course, patience_s, wanted)
        if course.is_over:
            self._over(job, course, Over(1))

    def _again(self, course: LiveJob) -> None:
        """Start a job again where it was."""
        before = course.run
        number = len(self._journal.runs(before.job)) + 1
        course.run = Attempt(before.job, number, before.shares, None, before.strategy)
        self._journal.add_run(course.run)
        self._start(before.job, course)

    def _start(self, job: int, course: LiveJob) -> None:
        course.runs, course.kill_at = course.run, math.inf
        course.is_over, course.lost = False, set()
        try:
            found = self._engine.start(course.run, course.file, named(course.user))
        except (OSError, InvalidCall) as error:
            self._gone(job, done=False, outcome=f"failed: it could not be started: {error}")
            return
        course.alive = found if isinstance(found, Alive) else None

    def _over(self, job: int, course: LiveJob, over: Over) -> None:
        course.alive = None
        well = over.status == 0
        lost = set() if well or course.runs is None else self._engine.lost(course.runs)
        if course.runs is not course.run and not course.asked and not well:
            self._start(job, course)  # on the devices that it has now
            if course.run.resize is not None:
                self._tell(Resized(self._now(), job, course.run.resize))
        elif lost and not course.asked and course.losses < AGAIN:
            course.losses += 1
            if self._engine.is_here(course.run):  # this machine is well
                self._again(course)
            else:
                course.is_over, course.lost = True, lost  # until `heard` tells
        else:
            how = f"exit status {over.status}"
            if over.status is None:
                how = "its keeper left no exit status: it was killed, or the disk is full"
            if over.status and course.runs is not None:
                how += self._engine.last_line(course.runs)
            self._gone(job, well and not course.asked, "done" if well else f"failed: {how}")

    def _gone(self, job: int, done: bool, outcome: str) -> None:
        gang = self._gang(job)
        reason = gang.why
        del self._courses[job]
        now = self._now()
        self._tell(Ended(now, job, done))
        if job not in self._scheduler.books.gangs:
            self._journal.end_job(job, now, f"stopped: {reason}" if reason else outcome)

    def _gang(self, job: int) -> Gang:
        gang = self._scheduler.books.gangs.get(job)
        if gang is None:
            record = self._journal.job(job)
            how = f"; it ended: {record.outcome}" if record else "; `hal jobs` lists them"
            raise InvalidCall(f"there is no job {job} here{how}")
        return gang

    def _check_host(self, host: str) -> None:
        names = [spec.name for spec, _ in self._scheduler.books.hosts.values()]
        if host not in names:
            raise InvalidCall(f"there is no host {host!r}; there are: {', '.join(names) or 'none'}")

    def _row(self, record: JobRecord) -> dict[str, Any]:
        gang = self._scheduler.books.gangs.get(record.job)
        return {
            "job": record.job,
            "user": record.user,
            "name": record.file.name,
            "queue": record.file.queue,
            "script": record.file.script,
            "submitted": record.at,
            "ended": record.ended,
            "state": "ended" if gang is None else gang.state.value,
            "ranks": 0 if gang is None else gang.ranks,
            "wanted": record.file.first_ranks if gang is None else gang.spec.ranks,
            "why": record.outcome or ("" if gang is None else self._scheduler.why(record.job)),
        }


def _full(error: sqlite3.Error) -> str:
    return f"the journal cannot be written: {error}; make room on its disk and try again"
