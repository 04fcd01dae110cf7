"""What tuning found, as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from hal.core.facts import dataclass
from stack.compiler.templates.blocking import Blocks, MatmulShape
from stack.compiler.templates.schedule import Block, Problem, Schedule
from stack.runtime.tuned import Record

WORDS = ("problem", "candidate", "verdict", "")
"""Columns that are folded where a line is short."""
NAMED = 3
"""Problems that are named where many were left out."""


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A problem with the number of its kernels, its record or None, and what else to say of it."""

    problem: Problem
    count: int
    record: Record | None
    note: str


def summary(title: str, rows: Sequence[ReportRow]) -> Table:
    """A line for each problem that has a record: what the rules' schedule takes, what the chosen
    one does."""
    table = _table(title, "problem", "kernels", "rules", "chosen", "gain", "tried", "refused", "")
    for row in rows:
        if row.record is None:
            continue
        record = row.record
        ratio = record.results[record.chosen].measured or 1.0
        table.add_row(
            escape(name_of(row.problem)),
            str(row.count),
            time_of(record.seconds),
            time_of(record.seconds * ratio) if record.chosen else "the same",
            f"{1 / ratio:.2f}" if record.chosen else "1",
            str(len(record.results)),
            str(sum(bool(r.refused) for r in record.results) or ""),
            row.note,
        )
    return table


def left_out(rows: Sequence[ReportRow]) -> Iterator[str]:
    """Why problems have no record, each cause with those that it keeps from having one."""
    causes: dict[str, list[str]] = {}
    for row in rows:
        if row.record is None:
            causes.setdefault(row.note, []).append(name_of(row.problem))
    for cause, names in causes.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        yield f"not measured: {'; '.join(names[:NAMED])}{more}: {cause}"


def details(record: Record) -> Table:
    """A line for each candidate that was tried, the fastest first."""
    table = _table(
        name_of(record.problem), "candidate", "predicted", "measured", "rounds", "verdict"
    )
    results = record.results
    seconds = [r.measured or r.predicted for r in results]
    order = sorted(range(len(results)), key=lambda i: (results[i].measured is None, seconds[i]))
    for i in order:
        result = record.results[i]
        measured = "" if result.measured is None else f"{result.measured:.2f}"
        words = ["the rules'"] * (i == 0) + ["chosen"] * (i == record.chosen)
        verdict = result.refused or ", ".join(words)
        numbers = f"{result.predicted:.2f}", measured, str(result.rounds)
        table.add_row(text_of(result.schedule), *numbers, escape(verdict))
    return table


def name_of(problem: Problem) -> str:
    """A problem in a few words: "matmul 256x64x256 f32, batch 48, A by columns"."""
    if not isinstance(problem, MatmulShape):
        return problem.name
    p = problem
    wide = f" in {p.accumulate.short}" if p.accumulate is not p.dtype else ""
    words = [f"matmul {p.m}x{p.n}x{p.k} {p.dtype.short}{wide}"]
    words += [f"batch {p.batch}"] * (p.batch > 1)
    words += ["A by columns"] * (p.a_contiguous == "m")
    words += ["B by columns"] * (p.b_contiguous == "k")
    return ", ".join(words)


def text_of(schedule: Schedule) -> str:
    """A schedule in a few words."""
    if isinstance(schedule, Blocks):
        s = schedule
        inner = f"{s.mr}x{s.nr} tile, depth {s.kc} by {s.kt}, unroll {s.unroll}"
        return f"{inner}, block {s.mp}x{s.np}, {s.mc} rows packed"
    if isinstance(schedule, Block):
        return f"block {schedule.rows}x{schedule.columns}, depth {schedule.depth}"
    return f"unroll {schedule.unroll}, {schedule.rows_on_grid} rows, chunk {schedule.chunk}"


def time_of(seconds: float) -> str:
    """A time with a unit that leaves one to three digits before the point."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column not in WORDS)
    return table
