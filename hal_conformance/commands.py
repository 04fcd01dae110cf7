"""What `hal conform` shows and says at its end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from hal.core.errors import InvalidCall
from hal_conformance.catalog import GROUPS
from hal_conformance.certificate import certificate
from hal_conformance.conform import GroupRun, Request, complete, conform
from hal_conformance.expect import Unproved
from hal_conformance.judge import Result
from hal_conformance.page import page
from hal_conformance.plan import Choice, level_named, seeds_named
from hal_conformance.results import RED, by_seed, green, level_reached, over_seeds, summary
from hal_conformance.runner import NOT_RUN, Look
from hal_conformance.verify import read

MIXED = "H"
"""The cases that make groups."""
_MOST_SHOWN = 40


def run(
    device: str,
    level: str,
    group: str,
    texts: Sequence[str],
    seed: int,
    seeds: str | None,
    settings: Sequence[str],
    no_timed: bool,
    sample: int,
    caps: bool,
    others: str,
    json_file: str | None,
    html_file: str | None,
) -> bool:
    """`hal conform`: whether the run is green."""
    groups = tuple(name.upper() for name in _names(group))
    if others:
        groups = _only_mixed(groups)
    choice = Choice(level_named(level), groups, tuple(texts), not no_timed, sample=sample)
    some = seeds_named(seeds) if seeds else (seed,)
    request = Request(device, choice, some, seeds is not None, _settings(settings), _names(others))
    _check_folders(json_file, html_file)
    results, seen, seconds = run_and_show(request)
    table = certificate(request, results, seen, seconds)
    if caps:
        _show_capabilities(table["capabilities"])
    for path, text in ((json_file, f"{json.dumps(table, indent=1)}\n"), (html_file, page(table))):
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
    return green(results)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _only_mixed(groups: tuple[str, ...]) -> tuple[str, ...]:
    """The group of cases that mixed groups have."""
    if groups not in ((), (MIXED,)):
        raise InvalidCall(f"--with is for the cases of group {MIXED}, not {', '.join(groups)}")
    return (MIXED,)


def _check_folders(*paths: str | None) -> None:
    """A run of a minute does not end in a file that cannot be written."""
    for path in paths:
        if path is not None and not Path(path).resolve().parent.is_dir():
            raise InvalidCall(f"there is no folder for {path}; make it first")


def verify(path: str) -> None:
    """`hal verify-certificate`: says what the file certifies, or raises BadCertificate."""
    table = read(path)
    part = "the whole suite" if table["complete"] else "a part of the suite"
    level = f"level {table['level']}" if table["level"] else "no level"
    plugin = table["plugin"]
    click.echo(
        f"{path} is valid: {table['run']['device']}, {plugin['distribution']} {plugin['version']}, "
        f"{level}, {len(table['cases'])} cases, {part}"
    )


def _settings(pairs: Sequence[str]) -> dict[str, str]:
    if wrong := [pair for pair in pairs if "=" not in pair]:
        raise InvalidCall(f"a setting is KEY=VALUE, not {wrong[0]!r}")
    return dict(pair.split("=", 1) for pair in pairs)


def run_and_show(request: Request) -> tuple[tuple[Result, ...], Look | None, float]:
    """Run, with a line for each group as it ends; gives every result, what the first look found
    and the seconds of the whole."""
    begin = time.monotonic()
    found: list[Result] = []
    seen: Look | None = None
    for group in conform(request):
        seen = seen or group.look
        found += group.results
        if group.results:
            _show_group(group)
    seconds = time.monotonic() - begin
    _show_seeds(found)
    click.echo(_last_line(over_seeds(found), seconds))
    return tuple(found), seen, seconds


def _show_group(run: GroupRun) -> None:
    seconds = sum(result.seconds for result in run.results)
    counts = _counts(run.results)
    click.echo(f"{run.group}  {GROUPS[run.group]:28} {counts}  {seconds:.1f} s")
    for line in _red_lines(run.results):
        click.echo(line)


def _red_lines(results: Sequence[Result]) -> Iterator[str]:
    """The red results with their detail, without those that had no chance."""
    red = [r for r in over_seeds(results) if r.outcome in RED]
    told = [result for result in red if NOT_RUN not in result.detail]
    for result in told[:_MOST_SHOWN]:
        head = f"   {click.style(result.outcome.value.upper(), fg='red')} {result.id}: "
        yield head + result.detail.strip().replace("\n", "\n      ")
    if len(told) > _MOST_SHOWN:
        yield f"   and {len(told) - _MOST_SHOWN} more; --json FILE has them all"
    if rest := [result for result in red if NOT_RUN in result.detail]:
        yield f"   {len(rest)} cases {rest[0].detail}"


def _show_seeds(results: Sequence[Result]) -> None:
    seeds = by_seed(results)
    if len(seeds) < 2:
        return
    for seed, same in seeds.items():
        click.echo(f"seed {seed:<6} {_counts(same)}  {sum(r.seconds for r in same):.1f} s")


def _last_line(results: Sequence[Result], seconds: float) -> str:
    level = level_reached((r.level, r.outcome.value) for r in results)
    verdict = click.style("green", fg="green") if green(results) else click.style("red", fg="red")
    part = "" if complete(results) else " by the cases chosen"
    reached = f"level {level} reached{part}" if level is not None else "no level reached"
    unproved = [r.id for r in results if r.detail.startswith(Unproved.PREFIX)]
    but = f", without proof of {', '.join(unproved)}" if unproved else ""
    return f"{verdict}: {len(results)} cases: {_counts(results)}; {reached}{but}; {seconds:.1f} s"


def _show_capabilities(declared: Mapping[str, bool]) -> None:
    for name, has in declared.items():
        click.echo(f"{name:12} {'declared' if has else 'not declared'}")


def _counts(results: Sequence[Result]) -> str:
    parts = [f"{count} {outcome}" for outcome, count in summary(results).items() if count]
    return ", ".join(parts) or "nothing"
