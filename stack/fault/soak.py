"""Random faults in one job after the other, and whether all of them came to their end.

A round is a training from its first step to its last, with a random plan of faults: several at one
step, some while ranks recover. Where the launcher or all copies die, or too few are left, the job
is started again with what is kept on disk, and with the faults that are still to come.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from random import Random
from typing import Any

from hal.core.facts import dataclass
from stack.fault.compare import COMPARE_EVERY
from stack.launch.faults import DISK_FULL, EPOCH, STEP, TORN_WRITE, JobFault, JobFaults
from stack.launch.keeping import whole_step

_HAL = (sys.executable, "-m", "hal")
_SHELL = "sh -c 'eval \"exec $1\"' {host}"
_LONG = 8
_LOOK_S = 1.0
_SHOWN = 8
"""Events, or lines of output, that are shown with a defect, at most."""
_STARTS = 20
"""Of a round, at most."""
_WEIGHTS = {
    "kill": 8,
    "stop": 3,
    "cut": 1,
    "slow": 3,
    "flip": 3,
    "agent-kill": 1,
    "launcher-kill": 2,
}
_NAMES = {
    "kill": ("ended", "host lost"),
    "stop": ("stopped", "silent", "ended", "host lost"),
    "cut": ("host lost",),
    "slow": ("slow",),
    "flip": ("wrong",),
    "agent-kill": ("host lost",),
}
"""How what follows from a fault is named in the log of events."""
_SHOWS_IN = 40
"""Steps that ranks do together until a slow one, or a wrong one, is named, at most."""

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """What a soak runs: a script with its arguments, `ranks` and `spares` on so many `hosts`, which
    are all this machine. Faults happen in the first `steps` steps. A start hangs of which nothing
    is heard for `limit_s` seconds, or that does not end within `_LONG` times that."""

    command: tuple[str, ...]
    devices: str = "cpu:0"
    ranks: int = 4
    spares: int = 1
    hosts: int = 1
    steps: int = 60
    limit_s: float = 120.0


@dataclass(slots=True)
class SoakReport:
    """What a soak has seen. `hung`, `failed`, `unnamed`, `lost` and `left` are defects, in words;
    of faults in `unseen` the process, or the job, had ended before they could show. In `alone`
    trainings a bit flipped in the only rank, so nobody could compare, and nothing is checked."""

    faults: int = 0
    rounds: int = 0
    starts: int = 0
    unseen: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)
    hung: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    all_copies_died: int = 0
    alone: int = 0
    took_s: float = 0.0

    @property
    def defects(self) -> list[str]:
        said = ("hung", "failed", "lost", "unnamed", "left")
        return [f"{name}: {text}" for name in said for text in getattr(self, name)]

    @property
    def is_well(self) -> bool:
        return not self.defects

    def __str__(self) -> str:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(self.by_kind.items()))
        rows = [
            f"{self.faults} faults in {self.rounds} trainings, {self.starts} starts, "
            f"{self.took_s:.0f} s: {kinds}",
            f"{len(self.hung)} hung, {len(self.failed)} failed, {len(self.lost)} lost steps, "
            f"{len(self.unnamed)} faults not named ({self.unseen} ended before they could show), "
            f"{len(self.left)} left something; all copies died {self.all_copies_died} times, "
            f"a bit flipped {self.alone} times with one rank left",
        ]
        return "\n".join([*rows, *self.defects])


def drawn_plan(random: Random, job: Job) -> JobFaults:
    """Four to twelve faults; of two that follow each other some happen at one step, and some while
    the ranks recover from what was before."""
    faults: list[JobFault] = []
    step, epoch = 0, 1
    kinds = random.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=random.randint(4, 12))
    if "launcher-kill" in kinds and random.random() < 0.5:
        kinds.append(random.choice((DISK_FULL, TORN_WRITE)))
    for kind in kinds:
        if kind in (DISK_FULL, TORN_WRITE):
            faults.append(JobFault(kind, "keep", nth=1))
        elif faults and random.random() < 0.25:
            epoch += 1
            faults.append(JobFault(kind, EPOCH, nth=epoch))
        else:
            if not faults or random.random() < 0.7:
                step = random.randint(1, job.steps)
            faults.append(JobFault(kind, STEP, nth=step))
    return JobFaults(random.randrange(1 << 30), tuple(faults))


def soak(
    job: Job, faults: int, seed: int, check: Callable[[Path], str], say: Callable[[str], None]
) -> SoakReport:
    """Train until so many faults have happened. `check` takes the folder in which a training ran to
    its end, and gives what is wrong with it, "" for nothing; `say` hears of each round."""
    report, began_s = SoakReport(), time.monotonic()
    while report.faults < faults and not report.hung:
        plan = drawn_plan(Random(f"{seed} {report.rounds}"), job)
        before = set(report.defects)
        with tempfile.TemporaryDirectory(prefix="hal-soak-") as name:
            _round(job, plan, Path(name), report, check)
        report.rounds += 1
        report.took_s = time.monotonic() - began_s
        say(f"{report.rounds}: {report.faults} faults, {report.took_s:.0f} s; {_one_line(plan)}")
        for defect in report.defects:
            if defect not in before:
                say(defect)
    return report


def _round(
    job: Job, plan: JobFaults, folder: Path, report: SoakReport, check: Callable[[Path], str]
) -> None:
    kept, alone = -1, False  # the newest step that is on disk
    for start in range(_STARTS):
        where = f"round {report.rounds} start {start}, {_one_line(plan)}"
        token, defects = f"{os.getpid()}-{report.rounds}-{start}", len(report.lost)
        status = _start(job, plan, folder, f"events-{start}", token)
        report.starts += 1
        file = folder / f"events-{start}"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        went_on = max((e["step"] for e in events if e["event"] == "kept"), default=-1)
        if went_on < kept and not any(e["lacks"] for e in events if e["event"] == "kept"):
            report.lost.append(f"step {kept} was on disk, {went_on} was found: {where}")
        struck = [e for e in events if e["event"] == "fault"]
        is_well = status == 0
        for event in struck:
            if event["kind"] in (DISK_FULL, TORN_WRITE) and is_well:
                continue  # nothing was written
            report.faults += 1
            report.by_kind[event["kind"]] = report.by_kind.get(event["kind"], 0) + 1
        if status is None:
            report.hung.append(f"{where}: {json.dumps(events[-3:])}")
        _look_at_names(events, report, where)
        whole = _look_at_steps(events, report, where)
        _look_at_left(folder, token, is_well, report, where)
        alone = alone or _flipped_alone(events)
        if status is None or len(report.lost) > defects:
            return
        if is_well:
            report.alone += alone
            if not alone and (wrong := check(folder)):
                report.failed.append(f"{wrong}: {where}")
            return
        if not struck:
            said = (folder / "output").read_text(errors="replace").splitlines()[-_SHOWN:]
            report.failed.append(f"status {status} without a fault: {where}: {said}")
            return
        report.all_copies_died += status != -signal.SIGKILL
        kept = max(whole_step(folder / "kept" / name) for name in ("state.bin", "state.before.bin"))
        kinds = {event["kind"] for event in struck}
        least = whole - COMPARE_EVERY if "flip" in kinds else whole  # where ranks held the same
        if kept < least and status == -signal.SIGKILL and not {DISK_FULL, TORN_WRITE} & kinds:
            report.lost.append(f"step {whole} was done, {kept} is on disk: {where}")
            return
        done = {event["fault"] for event in struck}
        plan = replace(plan, faults=tuple(f for f in plan.faults if str(f) not in done))
    report.failed.append(f"no end after {_STARTS} starts: {where}")


def _start(job: Job, plan: JobFaults, folder: Path, events: str, token: str) -> int | None:
    """Run the job once; its status, None where it did not end."""
    size = job.ranks + job.spares
    options = ["-n", str(job.ranks), "--least", "1", "--spares", str(job.spares)]
    options += ["--restarts", "12", "--events", events, "--keep", "kept", "--devices", job.devices]
    if job.hosts > 1:
        rows = [f"host{i} slots={-(-size // job.hosts)}\n" for i in range(job.hosts)]
        (folder / "hosts").write_text("".join(rows))
        options += ["--hosts", "hosts", "--shell", _SHELL, "--address", "127.0.0.1"]
    if plan.faults:
        (folder / "plan").write_text(str(plan))
        options += ["--faults", "plan"]
    environment = {**os.environ, "HAL_SOAK": token}
    with (folder / "output").open("ab") as output:
        process = subprocess.Popen(
            [*_HAL, "run", *options, *job.command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        began_s = heard_s = time.monotonic()
        heard = 0
        while (now_s := time.monotonic()) - heard_s < job.limit_s:
            if now_s - began_s > _LONG * job.limit_s:
                break
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_LOOK_S)
            size = (folder / events).stat().st_size if (folder / events).exists() else 0
            heard, heard_s = size, now_s if size > heard else heard_s
        process.kill()
        process.wait(job.limit_s)
        return None


# what is seen of it


def _look_at_names(events: Sequence[Event], report: SoakReport, where: str) -> None:
    """Every fault is named behind it, unless its process, or the job, had ended before."""
    slows = (e for e in events if e["event"] == "fault" and e["kind"] == "slow")
    slowed = {int(e["member"].split(".")[0]) for e in slows}
    for at, event in enumerate(events):
        if event["event"] != "fault" or event["kind"] not in _NAMES:
            continue
        after = events[at + 1 :]
        seat = int(event["member"].split(".")[0])
        named = [e for e in after if e["event"] == "found" and e["kind"] in _NAMES[event["kind"]]]
        if event["kind"] in ("cut", "agent-kill"):
            is_named = any(e["host"] == event["host"] for e in named)
        else:
            is_named = any(e["seat"] == seat for e in named)
        shows = event["kind"] not in ("slow", "flip") or _could_show(after, seat, event["kind"])
        if event["kind"] == "slow":  # slower than its peers, if they are not
            shows = shows and slowed == {seat}
        if not is_named and shows and not _ended_soon(after):
            came = [e for e in after if e["event"] not in ("step", "copied")][:_SHOWN]
            said = f"of seat {seat}; then came {json.dumps(came)}"
            report.unnamed.append(f"{event['fault']}: {where}: {said}")
        elif not is_named:
            report.unseen += 1


def _flipped_alone(events: Sequence[Event]) -> bool:
    size = 0
    for event in events:
        if event["event"] == "form":
            size = len(event["epoch"]["members"])
        elif event["event"] == "fault" and event["kind"] == "flip" and size == 1:
            return True
    return False


def _could_show(after: Sequence[Event], seat: int, kind: str) -> bool:
    """Whether the ranks of one epoch did enough steps together with the process of the seat; of a
    slow one only those count of which all ranks know how long they took."""
    steps: set[int] = set()
    unknown: set[int] = set()
    for event in after:
        if event["event"] == "step" and event["own_s"] is None and kind == "slow":
            unknown.add(event["step"])
        if event["event"] == "step" and event["seat"] == seat:
            steps.add(event["step"])
        elif event["event"] in ("form", "lost") or (
            event["event"] == "exited" and event["rank"] == seat
        ):
            break
    return len(steps - unknown) > _SHOWS_IN


def _ended_soon(after: Sequence[Event]) -> bool:
    """Whether the launcher was killed, or all ended, before anybody could look."""
    began_s = after[0]["at_s"] if after else 0.0
    ends = (e for e in after if e["event"] in ("finish", "fault"))
    fatal = (e for e in ends if e["event"] == "finish" or e["kind"] == "launcher-kill")
    return any(e["at_s"] - began_s < 15.0 for e in fatal) or not after


def _look_at_steps(events: Sequence[Event], report: SoakReport, where: str) -> int:
    """Whoever goes on does so from the newest step that all ranks had done, but after a wrong one,
    which all compute again; where the only host with ranks is lost, from the newest copy of it.
    Gives the newest step that counts."""
    done: dict[int, set[int]] = {}
    members: list[str] = []
    whole = copied = -1
    giver = ""
    for event in events:
        match event["event"]:
            case "form":
                members = event["epoch"]["members"]
            case "step":
                done.setdefault(event["step"], set()).add(event["seat"])
                if done[event["step"]] >= {int(m.split(".")[0]) for m in members} and members:
                    whole = max(whole, event["step"])
            case "copies":
                giver, copied = event["host"], -1
            case "copied" if not event["why"]:
                copied = max(copied, event["step"])
            case "found" if event["kind"] == "host lost" and event["host"] == giver:
                whole, done = min(whole, copied), {}
            case "back":
                whole, copied, done = -1, -1, {}
            case "entered" if event["back"]:
                whole, done = -1, {}
            case "entered" if event["step"] < whole:
                report.lost.append(f"step {whole} was done, {event['step']} counts: {where}")
                return whole
    return whole


def _look_at_left(folder: Path, token: str, is_well: bool, report: SoakReport, where: str) -> None:
    """Nothing that a start began runs on, and of a training that ended well nothing is kept."""
    until_s = time.monotonic() + 20.0
    while (left := list(_processes(token))) and time.monotonic() < until_s:
        time.sleep(0.05)
    for process in left:
        report.left.append(f"process {process}: {where}")
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    kept = [file.name for file in (folder / "kept").glob("*")]
    if is_well and kept:
        report.left.append(f"{', '.join(kept)}: {where}")
    if extra := [name for name in kept if name.startswith("state.bin.")]:
        report.left.append(f"{', '.join(extra)}: {where}")


def _processes(token: str) -> Iterator[int]:
    wanted = f"HAL_SOAK={token}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                state = (folder / "stat").read_bytes().rpartition(b")")[2].split()[0]
                if state != b"Z":
                    yield int(folder.name)


def _one_line(plan: JobFaults) -> str:
    return str(plan).strip().replace("\n", "; ")
