"""What `hal submit`, `hal jobs` and their kin ask the daemon, and show.

`hal submit` is to start a job within a tenth of a second: what takes long to import is imported
where it is needed."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stack.cluster.client import ask
from stack.cluster.given import check_script, wanted


def default_folder() -> Path:
    """The folder of this user's cluster: $HAL_CLUSTER, else one in the state of the user."""
    if named := os.environ.get("HAL_CLUSTER"):
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state, "hal", "cluster")


def stop(folder: Path) -> int:
    """End the daemon; jobs go on."""
    ask(folder, "POST", "/end")
    say("the daemon ends; jobs go on, and the next daemon finds them (in an allocation they save)")
    return 0


def page(folder: Path) -> int:
    """Print where this user finds the daemon's page."""
    say(ask(folder, "GET", "/page")["page"])
    return 0


def submit(
    folder: Path, target: str, arguments: Sequence[str], given: Mapping[str, Any], as_json: bool
) -> int:
    """Hand in the job of a TOML file, or a script with what is given by options."""
    job = wanted(target, arguments, given)
    script = job.get("script")
    if isinstance(script, str) and script:  # what else a file may say, the daemon refuses
        check_script(str(job["folder"]), script, bool(job.get("module")))
    found = ask(folder, "POST", "/jobs", job)
    say(json.dumps(found) if as_json else f"job {found['job']}")
    return 0


def jobs(folder: Path, as_json: bool) -> int:
    """List the jobs that are here, and the last ones that ended."""
    rows = ask(folder, "GET", "/jobs")
    if as_json:
        return _print_json(rows)
    shown = (
        (
            r["job"],
            r["user"],
            r["name"] or r["script"],
            r["queue"],
            r["state"],
            (f"{r['ranks']} of {r['wanted']}" if r["ranks"] else str(r["wanted"])),
            r["why"],
        )
        for r in rows
    )
    _table(("job", "user", "name", "queue", "state", "ranks", "why"), shown)
    return 0


def why(folder: Path, job: int, as_json: bool) -> int:
    """Say what a job waits for, or how it ended."""
    found = ask(folder, "GET", f"/jobs/{job}/why")
    say(json.dumps(found) if as_json else found["why"])
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


def speed(folder: Path, job: int, measured: float) -> int:
    """Tell how fast a job is by the option that it has."""
    ask(folder, "POST", f"/jobs/{job}/speed", {"speed": measured})
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
            "/".join((*row["domains"], row["name"])),
            # what keeps the host from getting jobs
            "out of reach" if row["lost"] else "" if row["usable"] else "drained",
            *(chip["kind"], f"{sum(j is not None for j in chip['jobs'])} of {len(chip['jobs'])}"),
            ", ".join(str(job) for job in sorted({j for j in chip["jobs"] if j is not None})),
        )
        for row in rows
        for chip in row["chips"]
    )
    _table(("host", "", "kind", "taken", "jobs"), shown)
    return 0


def _print_json(rows: Any) -> int:
    say(json.dumps(rows, indent=2))
    return 0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table; into a pipe plain lines with tabs."""
    if not sys.stdout.isatty():
        for row in (heads, *rows):
            say("\t".join(map(str, row)))
        return
    # who writes into a pipe loads none
    from rich import box  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(*heads, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*map(str, row))
    Console(highlight=False).print(table)
