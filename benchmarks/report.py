"""The table on the terminal, the results as JSON, and the page made from them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.row import Row

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "results"
COLUMNS = ("claim", "ours", "peer", "unit", "ratio", "bar", "status")
COLOURS = {"ok": "green", "missed": "red", "absent": "yellow", "info": "default"}
INTRODUCTION = """# Benchmarks

`make bench` (or `python -m benchmarks [NAME...] [--quick]`) measures every claim, prints a table
and writes `results/NAME.json`. This page is made from those files. The ratio is how many times as
good as the peer ours is; a row without a bar informs. Peers run in turns with ours, with the same
number of threads.
"""


def table(rows: Iterable[Row]) -> Table:
    """The rows as a table for a terminal."""
    shown = Table(*COLUMNS)
    for row in rows:
        *cells, status = _cells(row.as_json())
        colour = COLOURS[status]
        shown.add_row(*cells, f"[{colour}]{status}[/]")
    return shown


def write_results(name: str, rows: Sequence[Row], origin: dict[str, Any]) -> None:
    """Write one benchmark's rows, with where they come from, to `results/NAME.json`."""
    RESULTS.mkdir(exist_ok=True)
    found = {"name": name, **origin, "rows": [row.as_json() for row in rows]}
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")


def write_page() -> None:
    """Make README.md from all results."""
    parts = [INTRODUCTION]
    parts += [_section(json.loads(path.read_text())) for path in sorted(RESULTS.glob("*.json"))]
    (FOLDER / "README.md").write_text("\n".join(parts))


def _section(found: dict[str, Any]) -> str:
    machine, versions = found["machine"], found["versions"]
    where = f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB"
    made_of = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [
        f"## {found['name']}",
        "",
        f"`{found['command']}` at {found['commit']}, {found['date']}.",
    ]
    lines += [f"{where}. {made_of}.", "", _line(COLUMNS), _line("---" for _ in COLUMNS)]
    lines += [_line(_cells(row)) for row in found["rows"]]
    notes = [f"* {row['claim']}: {row['note']}" for row in found["rows"] if row["note"]]
    return "\n".join([*lines, "", *notes, ""] if notes else [*lines, ""])


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cells(row: dict[str, Any]) -> list[str]:
    peer = f"{_number(row['peer'])} ({row['peer_name']})" if row["peer_name"] else ""
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    cells = [row["claim"], _number(row["ours"]), peer, row["unit"], ratio, row["bar"] or ""]
    return [*cells, row["status"]]


def _number(value: float | None) -> str:
    return "absent" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
