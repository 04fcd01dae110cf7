"""The driver: `python -m benchmarks [NAME...] [--quick]`."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import click
from rich.console import Console

import benchmarks
from benchmarks import machine, report
from benchmarks.row import BenchmarkError, Row

PREFIX = "bench_"


def names() -> list[str]:
    """Every benchmark of this folder: a module `bench_NAME` with a function `rows(quick)`."""
    found = pkgutil.iter_modules(benchmarks.__path__)
    return sorted(m.name.removeprefix(PREFIX) for m in found if m.name.startswith(PREFIX))


@click.command(help=f"Measure the claims: {', '.join(names())} (all without a NAME).")
@click.argument("chosen", metavar="[NAME]...", nargs=-1, type=click.Choice(names()))
@click.option("--quick", is_flag=True, help="Fewer repetitions: a look, which is not written down.")
def main(chosen: tuple[str, ...], quick: bool) -> None:
    console = Console()
    failed = False
    for name in chosen or names():
        module = importlib.import_module(f"benchmarks.{PREFIX}{name}")
        console.rule(f"{name}: {_title(module)}")
        try:
            rows: list[Row] = list(module.rows(quick))
        except BenchmarkError as error:
            console.print(f"[red]{name} failed: {error}")
            failed = True
            continue
        console.print(report.table(rows))
        if not quick:
            report.write_results(name, rows, _origin(name))
    report.write_page()
    sys.exit(failed)


def _origin(name: str) -> dict[str, Any]:
    return {
        "command": f"python -m benchmarks {name}",
        "commit": machine.commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine.facts(),
        "versions": machine.versions(),
    }


def _title(module: ModuleType) -> str:
    return (module.__doc__ or "").partition("\n")[0].rstrip(".")


if __name__ == "__main__":
    main()
