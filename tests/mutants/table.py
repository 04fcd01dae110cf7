"""Finds out which cases kill which mutant: python -m tests.mutants.table [MUTANT ...]

Runs the suite against each mutant in a child process until three cases that take no longer than
`QUICK_S` are red. First come the cases that name the broken sentence, then those of its group, then
all others. Writes killed.json, and from it docs/mutants.md.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from hal_conformance.case import Case
from hal_conformance.catalog import catalog
from tests.mutants import generated
from tests.mutants.zoo import Mutant, zoo

ROOT = Path(__file__).parents[2]
KILLED = Path(__file__).with_name("killed.json")
PAGE = ROOT / "docs/mutants.md"
WANTED = 3
QUICK_S = 0.8
SLOW_S = 1.5
"""A killer that takes longer is not repeated by the tests."""

LAST_TRIES = 5
"""How many cases more are tried for quick killers once there is one killer."""

HANG_S = 30.0
GREEN = ("pass", "unsupported")
UNBROKEN = {
    "group.processes": "the reference device has no groups between processes",
}
"""The sentences that no mutant breaks, and why."""

HEAD = """# Mutants

<!-- Written by `python -m tests.mutants.table` from tests/mutants. -->

A suite is worth what it finds. Each of these devices is the reference device with one thing wrong,
and each is found by the cases on its line; one is odd and right, and passes. *(timed)* marks a case
whose verdict depends on time, *(slow)* one that takes seconds to see it, *(hang)* one that does not
end, which the watchdog finds. The tests repeat the first case of each line unless it is slow or
hangs.

| mutant | what it does wrong | breaks | killed by |
| --- | --- | --- | --- |
"""


def killers(found: Mutant) -> list[dict[str, Any]]:
    """The first cases that are red on the mutant: those first that are quick, untimed and fail."""
    red: list[dict[str, Any]] = []
    tries = 0
    for result in _results(found, [case.id for case in _ordered(found)]):
        tries += bool(red)
        if result["outcome"] not in GREEN:
            red.append(result)
            click.echo(f"  {result['end']} {result['seconds']:.2f} s {result['detail'][:150]!r}")
        if sum(map(_quick, red)) == WANTED or (tries > LAST_TRIES and not found.passes):
            break
    naming = {case.id for case in catalog() if found.must in case.musts}
    red.sort(key=lambda r: (not _quick(r), r["end"] not in naming, r["seconds"]))
    return [_kept(result) for result in red[:WANTED]]


def _kept(result: dict[str, Any]) -> dict[str, Any]:
    slow = {"slow": True} if result["seconds"] > SLOW_S else {}
    return {"case": result["end"], "outcome": result["outcome"], **slow}


def read(path: Path) -> dict[str, list[dict[str, Any]]]:
    """What the last runs found."""
    found: dict[str, list[dict[str, Any]]] = json.loads(path.read_text()) if path.exists() else {}
    return found


def page(killed: dict[str, list[dict[str, Any]]]) -> str:
    """docs/mutants.md."""
    rows = (_row(found, killed.get(found.name, [])) for found in zoo().values())
    words = [f"No mutant breaks `{must}`: {why}." for must, why in UNBROKEN.items()]
    return HEAD + "\n".join([*rows, "", *words]) + "\n" + generated.page()


def _row(found: Mutant, red: list[dict[str, Any]]) -> str:
    timed = {case.id for case in catalog() if case.timed}
    cases = [f"`{r['case']}`{_mark(r, timed)}" for r in red]
    by = ", ".join(cases) or ("nothing: it is right" if found.passes else "**nothing**")
    return f"| {found.name} | {found.text} | `{found.must}` | {by} |"


def _mark(red: dict[str, Any], timed: set[str]) -> str:
    marks = {"timed": red["case"] in timed, "slow": red.get("slow"), "hang": False, "crash": False}
    marks[red["outcome"]] = red["outcome"] != "fail"
    return "".join(f" *({mark})*" for mark, holds in marks.items() if holds)


def _ordered(found: Mutant) -> list[Case]:
    naming = [case for case in catalog() if found.must in case.musts]
    groups = {case.group for case in naming}
    by_use = sorted(
        catalog(), key=lambda c: (c not in naming, c.timed, c.group not in groups, c.group == "J")
    )
    return [case for case in by_use if case.group != "K" or found.must.startswith("declared")]


def _quick(result: dict[str, Any]) -> bool:
    timed = {case.id for case in catalog() if case.timed}
    return (
        result["outcome"] == "fail" and result["seconds"] < QUICK_S and result["end"] not in timed
    )


def _results(found: Mutant, ids: list[str]) -> Iterator[dict[str, Any]]:
    """Every case's end; a child that hangs or crashes is followed by another one."""
    while ids:
        begun = ""
        for event in _events(found, ids):
            begun = event.get("begin", begun)
            if "end" in event:
                yield event
                ids = ids[ids.index(event["end"]) + 1 :]
                begun = ""
            if "broken" in event:
                yield {"end": begun, "outcome": event["broken"], "detail": "", "seconds": HANG_S}
        if begun:
            ids = ids[ids.index(begun) + 1 :]


def _events(found: Mutant, ids: list[str]) -> Iterator[dict[str, Any]]:
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.mutants.run", found.name, *ids],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        yield from _lines(child)
    finally:
        with contextlib.suppress(ProcessLookupError):  # all of it has ended
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(10)


def _lines(child: "subprocess.Popen[bytes]") -> Iterator[dict[str, Any]]:
    assert child.stdout is not None
    rest, number = b"", child.stdout.fileno()
    while True:
        if not select.select([number], [], [], HANG_S)[0]:
            yield {"broken": "hang"}
            return
        part = os.read(number, 1 << 16)
        if not part:
            if child.wait(10):
                yield {"broken": "crash"}
            return
        *lines, rest = (rest + part).split(b"\n")
        yield from map(json.loads, lines)


def main(*names: str) -> None:
    """Find the killers of these mutants, or of all, and write both files."""
    killed = read(KILLED)
    for name in names or tuple(zoo()):
        click.echo(f"{name} [{zoo()[name].must}]")
        killed[name] = killers(zoo()[name])
        naming = {case.id for case in catalog() if zoo()[name].must in case.musts}
        if not naming & {red["case"] for red in killed[name]} and not zoo()[name].passes:
            click.echo("  NOT KILLED BY A CASE OF ITS SENTENCE")
        write(killed)


def write(killed: dict[str, list[dict[str, Any]]]) -> None:
    """Write both files, in the order of the zoo."""
    ordered = {name: killed[name] for name in zoo() if name in killed}
    KILLED.write_text(json.dumps(ordered, indent=1) + "\n")
    PAGE.write_text(page(ordered))


if __name__ == "__main__":
    main(*sys.argv[1:])
