"""Starting a job's ranks from this machine, and finding them again.

Every run of a job has a folder of files: `run-N` once its keeper has begun (with the keeper's
process id), `log-N`, and `exit-N` with the status once it is over. The keeper is a line of shell
that outlives the daemon. Whoever makes `run-N` first is the run; a second keeper ends at once.
`lost-N` names the host by whose loss the run has ended. All of its processes carry the run's name
in their environment.

They are processes and files of the job's user. He may put there what he likes: what is read there
is believed of his own job only, and nothing is written there but by himself."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hal.core.facts import dataclass
from stack.cluster.files import ClusterFile, JobFile
from stack.cluster.journal import Attempt
from stack.cluster.users import User, open_own
from stack.scheduler.events import Share

NAME = "HAL_CLUSTER_RUN"
STRATEGY = "HAL_STRATEGY"
"""What a job's ranks find that strategy under that was chosen for them."""
_KEEPER = """
trap : TERM INT HUP
folder=$1 number=$2 where=$3
shift 3
set -C
{ echo $$ > "$folder/run-$number"; } 2> /dev/null || exit 0
{ cd "$where" && "$@"; } > "$folder/log-$number" 2>&1 < /dev/null
echo $? > "$folder/exit-$number.part"
mv "$folder/exit-$number.part" "$folder/exit-$number"
"""
REACH_S = 15.0
"""A host that does not answer for so long is out of reach."""
_LINE = 400
_NAMES = 1 << 16
_WORD = 20
_BEGIN_S = 0.2
"""How long a keeper may take between making its file and writing into it."""


@dataclass(frozen=True, slots=True)
class Alive:
    """A run whose keeper is this process; `watched` is readable once it has ended."""

    pid: int
    watched: int


@dataclass(frozen=True, slots=True)
class Over:
    """A run that has ended, with this status; None where its keeper has written none."""

    status: int | None


class JobEngine:
    """Runs of a cluster's jobs, in folders below `folder`."""

    def __init__(self, folder: Path, name: str, config: ClusterFile) -> None:
        self._folder, self._name, self._config = folder, name, config
        self._children: set[int] = set()

    def folder(self, job: int) -> Path:
        """Where a job's files are."""
        return self._folder / str(job)

    def log(self, run: Attempt) -> Path:
        """What a run's ranks have written."""
        return self.folder(run.job) / f"log-{run.number}"

    def last_line(self, run: Attempt) -> str:
        """What a run's ranks wrote last, as the end of a sentence about it; "" if nothing."""
        try:
            with open_own(self.log(run)) as log:
                log.seek(max(log.seek(0, os.SEEK_END) - _LINE, 0))
                lines = log.read(_LINE).decode(errors="replace").split("\n")
        except OSError:
            return ""
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f": {last}" if last else ""

    def is_here(self, run: Attempt) -> bool:
        """Whether a run is on this machine alone, which it reaches without the shell."""
        return {share.host for share in run.shares} == {socket.gethostname()}

    def lost(self, run: Attempt) -> set[str]:
        """The hosts of a run whose loss has ended it, as it says itself."""
        try:
            with open_own(self.folder(run.job) / f"lost-{run.number}") as file:
                said = msgspec.json.decode(file.read(_NAMES), type=list[str])
        except (FileNotFoundError, msgspec.DecodeError):
            return set()
        return {share.host for share in run.shares} & set(said)

    def answers(self, host: str) -> bool:
        """Whether a host can be reached, as runs reach it, within `REACH_S`. From any thread."""
        command = [word.replace("{host}", host) for word in shlex.split(self._config.shell)]
        try:
            done = subprocess.run(
                [*command, "true"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=REACH_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0

    def start(self, run: Attempt, job: JobFile, user: User) -> Alive | Over:
        """Start a run as a user, or find it where it was started before.

        Raises OSError when there is no process or file to be had."""
        folder = self.folder(run.job)
        self._folder.mkdir(mode=0o711, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        os.chown(folder, user.uid, user.gid)
        plan = self._folder / f"plan-{run.job}-{run.number}.json"
        with plan.open("w") as out:
            os.fchmod(out.fileno(), 0o600)
            os.fchown(out.fileno(), user.uid, user.gid)
            json.dump(_plan(run, job, folder, self._config), out)
        before = os.environ if user.is_own else user.environment()
        chosen = {STRATEGY: run.strategy} if run.strategy else {}
        groups = None if user.is_own else os.getgrouplist(user.name, user.gid)
        keeper = subprocess.Popen(
            [
                *("sh", "-c", _KEEPER, "keeper", str(folder), str(run.number), job.folder),
                *(sys.executable, "-m", "stack.cluster.start", str(plan)),
            ],
            cwd="/",  # the keeper goes where its user may go
            env={**before, **job.environment, **chosen, NAME: self._named(run)},
            user=None if user.is_own else user.uid,
            group=None if user.is_own else user.gid,
            extra_groups=groups,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        keeper.returncode = 0  # it is reaped in `end`: Popen would do so when it is forgotten
        self._children.add(keeper.pid)
        return Alive(keeper.pid, os.pidfd_open(keeper.pid))

    def find(self, run: Attempt) -> Alive | Over | None:
        """The run as it is now; None when it was never started."""
        began = self.folder(run.job) / f"run-{run.number}"
        until_s = time.monotonic() + _BEGIN_S
        while (text := _number(began)) is not None:
            if over := self._over(run):
                return over
            if text:
                return self._alive(run, int(text)) or self._over(run) or Over(None)
            if time.monotonic() > until_s:
                return Over(None)
            time.sleep(0.01)
        return None

    def ask(self, alive: Alive) -> None:
        """Ask a run to save and end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(alive.pid, signal.SIGTERM)

    def kill(self, run: Attempt) -> None:
        """End all processes of a run, its keeper too."""
        with contextlib.suppress(FileNotFoundError):
            owner = self.folder(run.job).stat().st_uid
            for place in Path("/proc").glob("[0-9]*"):
                if self._is_of(run, place, owner):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(place.name), signal.SIGKILL)

    def _is_of(self, run: Attempt, place: Path, owner: int) -> bool:
        """Whether a process is its user's and carries the run's name."""
        try:
            variables = (place / "environ").read_bytes().split(b"\0")
            return f"{NAME}={self._named(run)}".encode() in variables and (
                place.stat().st_uid == owner
            )
        except OSError:
            return False

    def end(self, run: Attempt, alive: Alive) -> Alive | Over:
        """What became of a run whose keeper has ended; Alive where another keeper was first."""
        os.close(alive.watched)
        if alive.pid in self._children:
            self._children.remove(alive.pid)
            os.waitpid(alive.pid, os.WNOHANG)
        found = self.find(run) or Over(None)
        if found == Over(None):
            self.kill(run)
        return found

    def _named(self, run: Attempt) -> str:
        return f"{self._name}/{run.job}/{run.number}"

    def _over(self, run: Attempt) -> Over | None:
        status = _number(self.folder(run.job) / f"exit-{run.number}")
        return Over(int(status)) if status else None

    def _alive(self, run: Attempt, pid: int) -> Alive | None:
        try:
            watched = os.pidfd_open(pid)
        except OSError:
            return None
        if self._is_of(run, Path(f"/proc/{pid}"), self.folder(run.job).stat().st_uid):
            return Alive(pid, watched)
        os.close(watched)
        return None


def _number(path: Path) -> str | None:
    """The digits of a number that a keeper has written, "" before it has; None without a file."""
    try:
        with open_own(path) as file:
            text = file.read(_WORD).decode(errors="replace").strip()
    except FileNotFoundError:
        return None
    return text if text.isascii() and text.isdecimal() and len(text) < 10 else ""


def _plan(run: Attempt, job: JobFile, folder: Path, config: ClusterFile) -> Mapping[str, object]:
    """What `stack.cluster.start` is to run. Hosts but this one are reached by the shell; `hosts` is
    where it names them."""
    by_host: dict[str, list[Share]] = {}
    for share in run.shares:
        by_host.setdefault(share.host, []).append(share)
    names = {
        host: [f"{share.kind}:{index}" for share in shares for index in share.devices]
        for host, shares in by_host.items()
    }
    hosts, lines = "", ""
    if set(names) != {socket.gethostname()}:
        hosts = str(folder / f"hosts-{run.number}")
        lines = "".join(
            f"{host} slots={len(devices)} devices={','.join(devices)}\n"
            for host, devices in names.items()
        )
    return {
        "target": job.script,
        "arguments": list(job.arguments),
        "module": job.module,
        "size": sum(map(len, names.values())),
        "devices": "" if hosts else ",".join(name for found in names.values() for name in found),
        "hosts": hosts,
        "names": list(names),
        "events": str(folder / f"events-{run.number}"),
        "lost": str(folder / f"lost-{run.number}"),
        "lines": lines,
        "shell": config.shell,
        "address": config.address,
        "restarts": job.restarts,
        "grace_s": job.grace_s,
    }
