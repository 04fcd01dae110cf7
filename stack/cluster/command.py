"""What `hal cluster`, `hal submit`, `hal jobs` and their kin do and show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from hal.core.errors import InvalidCall
from stack.cluster import kubernetes, ray, slurm
from stack.cluster.client import ask
from stack.cluster.files import ClusterFile, JobFile, check_script, read, told
from stack.scheduler.spec import SpecError

START_S = 20.0


def default_folder() -> Path:
    """The folder of this user's cluster: $HAL_CLUSTER, else one in the state of the user."""
    if named := os.environ.get("HAL_CLUSTER"):
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state, "hal", "cluster")


def start(
    folder: Path, config: Path | None, port: int | None, background: bool, in_slurm: bool
) -> int:
    """Run a daemon; in the background, until it answers. Gives the exit status. With `in_slurm` its
    hosts are those of the allocation that it runs in."""
    from stack.cluster.daemon import Daemon  # noqa: PLC0415  who only asks one loads none

    if background:
        return _start_apart(folder, config, port, in_slurm)
    try:
        file = read(config, ClusterFile) if config else ClusterFile()
        if in_slurm:
            daemon = Daemon(folder.absolute(), slurm.allocated(file), port, slurm.lost)
        else:
            daemon = Daemon(folder.absolute(), file, port)
    except SpecError as error:
        raise InvalidCall(str(error)) from error
    _say(f"the cluster in {folder} is up" + (f"; its page: {daemon.page}" if daemon.page else ""))
    daemon.run()
    return 0


def _start_apart(folder: Path, config: Path | None, port: int | None, in_slurm: bool) -> int:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    options = [*(["--config", str(config)] if config else [])]
    options += ["--page", str(port)] if port is not None else []
    options += ["--slurm"] if in_slurm else []
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
    with os.fdopen(os.open(folder / "daemon.log", flags, 0o600), "ab") as log:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "stack.cluster.command", str(folder.absolute()), *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    until_s = time.monotonic() + START_S
    while daemon.poll() is None and time.monotonic() < until_s:
        said = (folder / "daemon.log").read_text()
        if " is up" in said:
            _say(said.rstrip())
            return 0
        time.sleep(0.02)
    sys.stderr.write((folder / "daemon.log").read_text())
    if daemon.poll() is None:
        daemon.terminate()
        sys.stderr.write(f"the daemon did not answer within {START_S:g} s\n")
    return 1


def stop(folder: Path) -> int:
    """End the daemon; jobs go on."""
    ask(folder, "POST", "/end")
    _say("the daemon ends; jobs go on, and the next daemon finds them (in an allocation they save)")
    return 0


def page(folder: Path) -> int:
    """Print where this user finds the daemon's page."""
    _say(ask(folder, "GET", "/page")["page"])
    return 0


def schema() -> int:
    """Print what a job's file may say, as JSON schema."""
    return _print_json(msgspec.json.schema(JobFile))


def submit(
    folder: Path,
    target: str,
    arguments: Sequence[str],
    given: Mapping[str, Any],
    to: str,
    write: bool,
    as_json: bool,
) -> int:
    """Hand in the job of a TOML file, or a script with what is given by options; `to` Slurm,
    Kubernetes, Ray, or to the daemon. With `write` only show what these would be given."""
    if target.endswith(".toml"):
        if arguments:
            raise InvalidCall("a job's file has its own arguments; give none behind it")
        base = msgspec.to_builtins(read(Path(target), JobFile))
    else:
        base = {"script": target, "arguments": list(arguments)}
    file = told({"folder": str(Path.cwd()), **_named(base), **given}, JobFile, target)
    if to == "k8s":
        return _to_kubernetes(file, write, as_json)
    if to == "ray":
        return ray.submit(file, _say)
    if to == "slurm":
        if write:
            sys.stdout.write(slurm.script(file))
            return 0
        check_script(file)
        found = {"job": slurm.submit(file)}
    else:
        check_script(file)
        found = ask(folder, "POST", "/jobs", msgspec.to_builtins(file))
    _say(json.dumps(found) if as_json else f"job {found['job']}")
    return 0


def _to_kubernetes(file: JobFile, write: bool, as_json: bool) -> int:
    """Hand a job in and follow it until it is over; its name tells which one it is, so that who was
    cut off follows it again by the same command."""
    if not file.name:
        raise InvalidCall("a job for Kubernetes needs a name (--name): by it, it is found again")
    made = kubernetes.manifests(file, file.name)
    if write:
        sys.stdout.write(kubernetes.text_of(made))
        return 0
    api = kubernetes.Kubernetes()
    api.submit(made)
    course = None
    for course in api.follow(made[-1]):
        _say(json.dumps({"job": file.name, "why": course.text}) if as_json else course.text)
    return 0 if course is not None and course.well else 1


def _named(base: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in base.items() if key != "folder" or value}


def jobs(folder: Path, as_json: bool) -> int:
    """List the jobs that are here, and the last ones that ended."""
    rows = ask(folder, "GET", "/jobs")
    if as_json:
        return _print_json(rows)
    shown = (
        (r["job"], r["user"], r["name"] or r["script"], r["queue"], r["state"], _ranks(r), r["why"])
        for r in rows
    )
    _table(("job", "user", "name", "queue", "state", "ranks", "why"), shown)
    return 0


def _ranks(row: Mapping[str, Any]) -> str:
    return f"{row['ranks']} of {row['wanted']}" if row["ranks"] else str(row["wanted"])


def why(folder: Path, job: int, as_json: bool) -> int:
    """Say what a job waits for, or how it ended."""
    found = ask(folder, "GET", f"/jobs/{job}/why")
    _say(json.dumps(found) if as_json else found["why"])
    return 0


def logs(folder: Path, job: int, follow: bool) -> int:
    """Print what the newest start of a job has written; with `follow` until it has ended."""
    place = ask(folder, "GET", f"/jobs/{job}/log")["path"]
    at = 0
    while True:
        over = all(r["job"] != job or r["state"] == "ended" for r in ask(folder, "GET", "/jobs"))
        if place and Path(place).exists():
            with Path(place).open("rb") as log:
                log.seek(at)
                for piece in iter(lambda: log.read(1 << 16), b""):
                    sys.stdout.buffer.write(piece)
                at = log.tell()
            sys.stdout.flush()
        if over or not follow:
            return 0
        time.sleep(0.2)
        newest = ask(folder, "GET", f"/jobs/{job}/log")["path"]
        if newest != place:
            place, at = newest, 0


def change(folder: Path, job: int, verb: str) -> int:
    """Cancel, hold or release a job."""
    ask(folder, "POST", f"/jobs/{job}/{verb}")
    return 0


def resize(folder: Path, job: int, ranks: int) -> int:
    """Want another number of ranks for a job."""
    ask(folder, "POST", f"/jobs/{job}/resize", {"ranks": ranks})
    return 0


def hosts(folder: Path, verb: str, name: str, as_json: bool) -> int:
    """List the hosts, or drain, join or lose one."""
    if verb:
        ask(folder, "POST", f"/hosts/{name}/{verb}")
        return 0
    rows = ask(folder, "GET", "/hosts")
    if as_json:
        return _print_json(rows)
    shown = (
        (
            *("/".join((*row["domains"], row["name"])), "" if row["usable"] else "drained"),
            *(chip["kind"], f"{sum(j is not None for j in chip['jobs'])} of {len(chip['jobs'])}"),
            ", ".join(str(job) for job in sorted({j for j in chip["jobs"] if j is not None})),
        )
        for row in rows
        for chip in row["chips"]
    )
    _table(("host", "", "kind", "taken", "jobs"), shown)
    return 0


def _print_json(rows: Any) -> int:
    _say(json.dumps(rows, indent=2))
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table; into a pipe plain lines with tabs."""
    if not sys.stdout.isatty():
        for row in (heads, *rows):
            _say("\t".join(map(str, row)))
        return
    table = Table(*heads, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*map(str, row))
    Console(highlight=False).print(table)


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--page", type=int)
    parser.add_argument("--slurm", action="store_true")
    asked = parser.parse_args()
    try:
        sys.exit(
            start(asked.folder, asked.config, asked.page, background=False, in_slurm=asked.slurm)
        )
    except InvalidCall as error:
        sys.exit(f"error: {error}")
