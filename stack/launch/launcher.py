"""Carries out what a job decides: the effects of `hal run`, in one loop."""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from hal.net.loop import turn
from stack.comm.store import StoreServer, Usage
from stack.comm.world import World
from stack.launch.address import listen_at, reached_at
from stack.launch.events import EventLog
from stack.launch.faults import EPOCH, STEP, JobFaults
from stack.launch.job import (
    Alarm,
    Asked,
    Exited,
    Finish,
    Job,
    Limits,
    Lost,
    Phase,
    Ready,
    Start,
    ended,
)
from stack.launch.job import Signal as SignalRanks
from stack.launch.lines import Tail, last_exception
from stack.launch.link import AgentLink, agent_command
from stack.launch.loop import signals_heard
from stack.launch.membership import (
    Arrived,
    Begin,
    Elastic,
    End,
    Entered,
    Epoch,
    Faulty,
    Form,
    Held,
    Left,
    Member,
    Membership,
)
from stack.launch.pace import Pace
from stack.launch.placement import grouped
from stack.launch.progress import STEP as STEP_KEY
from stack.launch.report import TAIL_LINES, report
from stack.launch.screen import Screen, Sink, standard_sinks
from stack.launch.seats import Host, Seat

LEASE_S = 30.0
COPIES = 2
"""Hosts whose memory has the newest state, where there are so many: one may be lost."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CLOSE_S = 15.0
_LEAST_CLOSE_S = 0.5
_SHOW_S = 5.0
_TURN_S = 1.0
_BY_OTHERS = ("SIGKILL", "SIGTERM")
"""How the causes of ranks end that the system, or a person, has ended."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What `hal run` was asked for. `command` is what every rank runs, in `folder`; `shell` runs a
    command on another host; `address` is where these reach the launcher ("" when there are none).
    `deadline_s` is the ranks'. `restart` is how often the job was started before. With `elastic`
    ranks may be replaced; `seats` are then those of the ranks and behind them those of spares.
    `events` is a file that gets a line of JSON for all that happens; `keep` is a folder for the
    newest state of a job that ends before its time. `faults` happen to it on demand. A rank whose
    device is lost is started again on the device `instead`, "" for the same one."""

    hosts: tuple[Host, ...]
    seats: tuple[Seat, ...]
    command: tuple[str, ...]
    folder: Path
    log_folder: Path | None
    shell: str
    address: str
    deadline_s: float
    limits: Limits
    restart: int = 0
    elastic: Elastic | None = None
    events: Path | None = None
    keep: Path | None = None
    faults: JobFaults | None = None
    instead: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """How a start of a job failed: `cause` in words, of `rank` if it was one, the `exception` that
    it wrote last ("" without), and the last `step` that the job has kept ("" for none)."""

    cause: str
    rank: int | None
    exception: str
    step: str

    def comes_back(self, before: Failure | None) -> bool:
        """Whether it would come again: it is the same as the one before. What somebody else does to
        a rank, or a host, does not count."""
        own = self.rank is not None and not self.cause.endswith(_BY_OTHERS)
        return own and self == before

    def __str__(self) -> str:
        what = self.cause + (f": {self.exception}" if self.exception else "")
        return what + (f", after step {self.step}" if self.step else "")


def _job(plan: RunRequest) -> Job | Membership:
    given, now_s = (plan.hosts, plan.seats, plan.limits), time.monotonic()
    return Job(*given, now_s) if plan.elastic is None else Membership(*given, plan.elastic, now_s)


def form_words(epoch: Epoch, plan: RunRequest, giver: Member | None) -> dict[str, Any]:
    """What ranks are told of an epoch: for each its process, and the number of its host; and whose
    state is copied to another host."""
    members = [[str(m), plan.seats[m.seat].host] for m in epoch.members]
    given = "" if giver is None else str(giver)
    return {"say": "epoch", "number": epoch.number, "members": members, "giver": given}


class Launcher:
    """Runs one job. `run` gives the exit status, 0 when every rank ended well."""

    def __init__(self, plan: RunRequest) -> None:
        self._plan = plan
        self._token = secrets.token_hex(16)
        self._name = secrets.token_hex(4)
        self._selector = selectors.PollSelector()
        self._links: dict[int, AgentLink] = {}
        self._tails = {seat.rank: Tail() for seat in plan.seats}
        ranks = [seat.rank for seat in plan.seats]
        self._screen = Screen(ranks, plan.log_folder, standard_sinks())
        self._job = _job(plan)
        self._steps: dict[int, int] = {}
        self._pace = Pace(0)
        self._accused: set[Member] = set()
        self._devices = {seat.rank: seat.device for seat in plan.seats}
        self._without_device: set[int] = set()
        """Seats whose processes have lost their devices."""
        self._copies_at: dict[int, str] = {}
        """Where the agents of hosts take copies of the state of others."""
        self._copied: tuple[int, int] | None = None
        """From which host to which one the state is copied."""
        self._without_room: set[int] = set()
        """Hosts that took no copies in this epoch."""
        self._cut_off: set[int] = set()
        """Hosts with a process that was silent, since none has come from there."""
        self._reached: dict[str, int] = {}
        self._log = EventLog(plan.events)
        self._store = ""
        self._step = ""
        self._usage: Callable[[], Usage]
        self._begin_s = time.monotonic()

    def run(self) -> int:
        """Run the job to its end. Raises InvalidCall when its address is taken, and when what the
        ranks write finds no room."""
        host, port = listen_at(self._plan.address)
        with ExitStack() as stack:
            server = stack.enter_context(StoreServer(self._token, host, port, LEASE_S))
            self._usage = server.usage
            self._store = reached_at(self._plan.address, server.port)
            signals = stack.enter_context(signals_heard(_ENDING))
            self._selector.register(signals, selectors.EVENT_READ, partial(self._ask, signals))
            stack.callback(self._log.close)
            stack.callback(self._selector.close)
            stack.callback(self._close)
            self._meet()
            while self._job.phase is not Phase.OVER:
                self._turn()
            self._step = (server.value(STEP_KEY) or b"").decode(errors="replace")
        self._refuse_loss()
        return self._job.cause.code if self._job.cause else 0

    @property
    def failure(self) -> Failure | None:
        """What went wrong that nobody asked for while ranks ran."""
        cause = self._job.cause
        if not self._job.failed or cause is None:
            return None
        last = [] if cause.rank is None else self._tails[cause.rank].lines(TAIL_LINES)
        return Failure(cause.text, cause.rank, last_exception(last), self._step)

    def _meet(self) -> None:
        """Start an agent on every host that has ranks, and ask whether it can do its part."""
        for number in sorted({seat.host for seat in self._plan.seats}):
            host = self._plan.hosts[number]
            hears, loses = partial(self._hear, number), partial(self._lose, number)
            command = agent_command(host.name, self._plan.shell)
            try:
                link = AgentLink(command, self._selector, hears, loses)
            except OSError as error:
                loses(f"{command[0]} cannot be started: {error}")
                return
            self._links[number] = link
            store = self._store if host.name else ""
            key = f"hal/agent/{number}"
            if self._plan.keep is not None:
                link.say({"say": "keep", "folder": str(self._plan.keep.absolute())})
            for fault in self._plan.faults.at_keep() if self._plan.faults else ():
                self._log.write("fault", fault=str(fault), kind=fault.kind, host=str(host))
                link.say({"say": "fault", "kind": fault.kind})
            words = {"say": "meet", "store": store, "token": self._token, "key": key}
            link.say({**words, "copies": isinstance(self._job, Membership)})

    def _turn(self) -> None:
        now_s = time.monotonic()
        alarm_s = self._job.alarm_s
        job = self._job
        alone = job.unwatched if isinstance(job, Membership) else frozenset()
        due_s = [link.patience_s(host in alone) for host, link in self._links.items()]
        due_s += [] if alarm_s is None else [alarm_s - now_s]
        left_s = max(0.0, min(_TURN_S, *due_s))
        turn(self._selector, left_s)
        if alarm_s is not None and time.monotonic() >= alarm_s:
            self._feed(Alarm())
        for host, link in self._links.items():
            link.look(left_s, host in alone)
            link.pause(self._screen.full)
        # Let the terminal take what waits for it, and show how far the job is
        passed_s = int(time.monotonic() - self._begin_s)
        clock = f"{passed_s // 60}:{passed_s % 60:02}"
        ranks = f"{len(self._job.running)} of {len(self._plan.seats)} ranks"
        usage = self._usage()
        store = f"store {usage.keys} keys, {usage.nbytes / (1 << 10):.0f} KiB"
        self._screen.progress(f"hal run: {self._job.phase.value}, {ranks}, {clock}, {store}")
        for sink in self._screen.sinks.values():
            listening = sink.descriptor in self._selector.get_map()
            if sink.outbox and not listening:
                self._selector.register(
                    sink.descriptor, selectors.EVENT_WRITE, partial(self._flush, sink)
                )
            elif listening and not sink.outbox:
                self._selector.unregister(sink.descriptor)

    def _feed(self, event: Any) -> None:
        """Tell the job what happened, and do what it says."""
        if not isinstance(event, Entered):
            self._log.note(event)
        for instruction in self._job.handle(event, time.monotonic()):
            self._log.note(instruction)
            match instruction:
                case Begin(member):
                    self._begin(member)
                case End(seat):
                    words = {"say": "signal", "number": int(signal.SIGKILL), "rank": seat}
                    self._links[self._plan.seats[seat].host].say(words)
                case Form(epoch, is_lost):
                    if is_lost:
                        step = max(self._steps.values(), default=0)
                        begin = "what --keep had" if self._plan.keep else "its begin"
                        self._screen.tell(
                            "hal run: no process that is left, nor its host, has the state after "
                            f"step {step}: the training goes on from {begin}"
                        )
                    self._pace = Pace(len(epoch.members))
                    self._without_room.clear()
                    is_copied = self._place_copies(epoch)
                    giver = epoch.members[0] if is_copied else None
                    words = form_words(epoch, self._plan, giver)
                    for host, link in self._links.items():  # on the lines of all that run
                        here = [i for i in self._job.running if self._plan.seats[i].host == host]
                        link.say({"say": "tell", "ranks": here, "words": words})
                    self._strike(EPOCH, epoch.number)
                case Start():
                    folder, seats = str(self._plan.folder), self._plan.seats
                    for host, link in self._links.items():
                        ranks = [self._rank(seat) for seat in seats if seat.host == host]
                        link.say({"say": "start", "folder": folder, "ranks": ranks})
                case SignalRanks(number):
                    words = {"say": "signal", "number": int(number)}
                    for link in self._links.values():
                        link.say(words)
                case Finish():
                    cause, plan = self._job.cause, self._plan
                    if cause is None:
                        for link in self._links.values():
                            link.say({"say": "well"})
                    if isinstance(self._job, Membership) and self._job.epoch is not None:
                        self._log.write("report", **asdict(self._log.report))
                        self._screen.tell(f"hal run: {self._log.report}")
                    if cause is not None:
                        last = (
                            [] if cause.rank is None else self._tails[cause.rank].lines(TAIL_LINES)
                        )
                        statuses = self._job.statuses
                        self._screen.tell(report(cause, plan.hosts, plan.seats, statuses, last))

    def _ask(self, signals: socket.socket) -> None:
        for number in signals.recv(64):
            self._feed(Asked(number))

    def _lose(self, host: int, why: str) -> None:
        for seat in self._plan.seats:
            if seat.host == host and seat.rank in self._job.running:
                self._found("host lost", seat.rank, why)
        self._feed(Lost(host, why))
        if isinstance(self._job, Membership) and self._job.epoch is not None:
            self._place_copies(self._job.epoch)

    def _place_copies(self, epoch: Epoch) -> bool:
        """Where all ranks are on one host, let another one have a copy of their state after each
        step; whether it is so. Ranks on several hosts hold the same, all of it."""
        ranks_at = {self._plan.seats[m.seat].host for m in epoch.members}
        fit = self._copies_at.keys() - self._without_room - self._cut_off
        alive = [host for host in fit if not self._links[host].is_lost]
        copied = None
        if len(ranks_at) == 1 and len(alive) >= COPIES and ranks_at <= set(alive):
            source, to = grouped(sorted(alive), COPIES).holders(ranks_at.pop())
            copied = source, to
        if copied != self._copied:
            if self._copied is not None:
                self._links[self._copied[0]].say({"say": "copy to", "address": ""})
            if copied is not None:
                address = self._copies_at[copied[1]]
                self._links[copied[0]].say({"say": "copy to", "address": address})
            names = [str(self._plan.hosts[host]) for host in copied or ()] or ["", ""]
            self._log.write("copies", host=names[0], to=names[1])
            self._copied = copied
        return copied is not None

    def _hear(self, host: int, words: dict[str, Any], data: bytes) -> None:
        match words:
            case {"say": "wrote", "rank": rank, "stream": stream}:
                if stream == "stderr":
                    self._tails[rank].add(data)
                self._screen.wrote(rank, stream, data)
            case {"say": "exited", "rank": rank, "status": status}:
                self._screen.ended(rank)
                error = last_exception(self._tails[rank].lines(TAIL_LINES))
                where = f" after step {self._steps[rank]}" if rank in self._steps else ""
                if status and self._job.phase in (Phase.RUNNING, Phase.GATHERING):
                    self._found("ended", rank, ended(status) + (f": {error}" if error else ""))
                # A device that is lost is no error of the script, which may come again
                is_own = bool(error) and rank not in self._without_device
                self._feed(Exited(rank, status, f"{error}{where}" if is_own else ""))
            case {"say": "told", "rank": rank, "words": words}:
                self._hear_rank(rank, words)
            case {"say": "ready", "copies": address}:
                if address:
                    self._copies_at[host] = address
                self._feed(Ready(host))
            case {
                "say": "copied",
                "epoch": epoch,
                "step": step,
                "why": why,
                "to": to,
                "over": over,
            }:
                name = str(self._plan.hosts[host])
                self._log.write("copied", host=name, epoch=epoch, step=step, why=why)
                if self._copied is None or self._copies_at[self._copied[1]] != to:
                    return
                partner, job = self._copied[1], self._job
                if over:
                    # A host takes no more copies: let another one, if there is one.
                    name = str(self._plan.hosts[partner])
                    self._screen.tell(
                        f"hal run: {name} takes no copy of the state after step {step}: {why}"
                    )
                    self._without_room.add(partner)
                    self._links[partner].suspect()
                    if isinstance(self._job, Membership) and self._job.epoch is not None:
                        self._place_copies(self._job.epoch)
                elif not why and isinstance(job, Membership) and partner not in job.holders:
                    self._feed(Held(partner, epoch))
            case {"say": "refused", "why": why}:
                self._feed(Lost(host, why))
            case {"say": "kept", "step": step, "lacks": lacks}:
                self._log.write("kept", host=str(self._plan.hosts[host]), step=step, lacks=lacks)
                for lack in lacks:
                    self._screen.tell(f"hal run: {self._plan.hosts[host]}: {lack}")

    def _hear_rank(self, seat: int, words: dict[str, Any]) -> None:
        """What the process of a seat says on its line."""
        match words:
            case {"say": "arrived", "member": member}:
                self._cut_off.discard(self._plan.seats[seat].host)  # it has reached the store
                self._feed(Arrived(Member.of(member)))
            case {"say": "faulty", "member": member, "kind": kind, "why": why}:
                # The process of a seat, or its agent, says that another one is of no use. Whoever
                # was accused before is not heard: two that do not reach each other are not both to
                # blame.
                member = Member.of(member)
                if (
                    any(m.seat == seat and m != member for m in self._accused)
                    or member in self._accused
                ):
                    return
                if member not in (self._job.here() if isinstance(self._job, Membership) else ()):
                    return
                self._accused.add(member)
                self._found(kind, member.seat, why)
                if kind == "silent":
                    host = self._plan.seats[member.seat].host
                    self._links[host].suspect()
                    self._cut_off.add(host)
                self._feed(Faulty(member, why))
            case {"say": "entered", "member": member}:
                self._feed(Entered(Member.of(member)))
                # A job that goes on begins with steps that were done before it
                self._reached.setdefault(STEP, words["step"])
                self._log.write(str(words.pop("say")), seat=seat, **words)
            case {"say": "left", "member": member, "ranks": ranks}:
                self._feed(Left(Member.of(member), tuple(map(Member.of, ranks))))
            case {"say": "device lost", "why": why}:
                self._found("device lost", seat, why)
                self._without_device.add(seat)
            case {"say": "wrong", "member": member, "why": why}:
                self._found("wrong", Member.of(member).seat, why)
            case {"say": "step", "step": int(step), "own_s": own_s, "parts": parts}:
                self._steps[seat] = step
                self._log.write("step", seat=seat, step=step, own_s=own_s, save_s=words["save_s"])
                rank = self._rank_of(seat)
                if rank is None:
                    return
                for slow in self._pace.step(rank, step, own_s, parts):
                    why = f"it takes {slow.ratio:.2f} times as long as the others for its part"
                    self._found("slow", self._member(slow.rank).seat, why)
                self._strike(STEP, step)
            case _:
                self._log.write(str(words.pop("say", "")), seat=seat, **words)

    def _found(self, kind: str, seat: int, why: str) -> None:
        """Name what is wrong with a process: in the log, and on the screen."""
        if not isinstance(self._job, Membership):
            return
        place, rank, step = self._plan.seats[seat], self._rank_of(seat), self._steps.get(seat)
        host = str(self._plan.hosts[place.host])
        device = self._devices[seat]
        where = {"rank": rank, "host": host, "device": device, "step": step}
        self._log.write("found", kind=kind, seat=seat, **where, why=why)
        what = f"process {seat}" if rank is None else f"rank {rank}"
        after = "" if step is None else f", after step {step}"
        self._screen.tell(f"hal run: {what} on {host}, {device}{after}: {kind}: {why}")

    def _member(self, rank: int) -> Member:
        assert isinstance(self._job, Membership)
        assert self._job.epoch is not None
        return self._job.epoch.members[rank]

    def _rank_of(self, seat: int) -> int | None:
        """The rank of the process of a seat in this epoch."""
        epoch = self._job.epoch if isinstance(self._job, Membership) else None
        members = () if epoch is None else epoch.members
        return next((r for r, member in enumerate(members) if member.seat == seat), None)

    def _strike(self, hook: str, count: int) -> None:
        """Let happen what the plan of faults has for now."""
        epoch = self._job.epoch if isinstance(self._job, Membership) else None
        if self._plan.faults is None or epoch is None:
            return
        before = self._reached.setdefault(hook, count - 1)
        self._reached[hook] = max(before, count)
        for number in range(before + 1, count + 1):
            for strike in self._plan.faults.struck(hook, number, len(epoch.members)):
                fault, member = strike.fault, self._member(strike.rank)
                seat = self._plan.seats[member.seat]
                link, host = self._links[seat.host], str(self._plan.hosts[seat.host])
                said = {
                    "fault": str(fault),
                    "kind": fault.kind,
                    "member": str(member),
                    "host": host,
                }
                self._log.write("fault", **said, rank=strike.rank)
                match fault.kind:
                    case "launcher-kill":
                        os.kill(os.getpid(), signal.SIGKILL)
                    case "kill" | "stop":
                        which = signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP
                        link.say({"say": "signal", "number": int(which), "rank": member.seat})
                    case "slow" | "flip":
                        own = {"factor": fault.factor, "number": strike.number}
                        told = {"say": "fault", "kind": fault.kind, **own}
                        link.say({"say": "tell", "ranks": [member.seat], "words": told})
                    case _:
                        link.say({"say": "fault", "kind": fault.kind})

    def _begin(self, member: Member) -> None:
        """Start the process of a seat; what the one before wrote is not what this one dies of."""
        seat = self._plan.seats[member.seat]
        self._accused = {one for one in self._accused if one.seat != member.seat}
        if member.seat in self._without_device:
            self._without_device.discard(member.seat)
            self._devices[member.seat] = self._plan.instead or self._devices[member.seat]
            self._log.write("moved", seat=member.seat, device=self._devices[member.seat])
        self._tails[member.seat] = Tail()
        self._steps.pop(member.seat, None)
        words = [self._rank(seat, str(member))]
        link = self._links[seat.host]
        link.say({"say": "start", "folder": str(self._plan.folder), "ranks": words})

    def _rank(self, seat: Seat, member: str = "") -> dict[str, Any]:
        """What an agent is told of a rank. Settings of HAL in this environment hold everywhere."""
        world = World(
            seat.rank,
            len(self._plan.seats),
            seat.local_rank,
            seat.local_size,
            self._plan.hosts[seat.host].name or socket.gethostname(),
            self._devices[seat.rank],
            self._store,
            self._token,
            self._name,
            self._plan.deadline_s,
            self._plan.restart,
            member=member,
        )
        own = {name: value for name, value in os.environ.items() if name.startswith("HAL_")}
        return {"command": self._plan.command, "environment": {**own, **world.environment()}}

    def _flush(self, sink: Sink) -> None:
        sink.flush()
        if isinstance(sink.broken, BrokenPipeError):
            self._feed(Asked(signal.SIGPIPE))
        self._refuse_loss()

    def _refuse_loss(self) -> None:
        """Raise InvalidCall when something that was written found no room; a reader who has gone
        wants no more."""
        for sink in self._screen.sinks.values():
            if sink.broken is not None and not isinstance(sink.broken, BrokenPipeError):
                raise InvalidCall(f"the ranks' output cannot be shown: {sink.broken}")

    def _close(self) -> None:
        """Let all agents go at once, and then wait for each."""
        for link in self._links.values():
            link.let_go()
        until_s = time.monotonic() + _CLOSE_S
        for link in self._links.values():
            if why := link.close(max(_LEAST_CLOSE_S, until_s - time.monotonic())):
                self._log.write("unkept", why=why)
                self._screen.tell(f"hal run: {why}")
        self._screen.close(_SHOW_S)
