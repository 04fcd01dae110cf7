"""What tuning found, as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.markup import escape
from rich.table import Table

from stack.compiler.templates.blocking import Blocks, MatmulShape
from stack.compiler.templates.schedule import Block, Problem, Schedule
from stack.runtime.tuned import Record, TunedCandidate

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
        table.add_row(
            escape(name_of(row.problem)), str(row.count), *_measured(row.record), row.note
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
    order = sorted(range(len(record.results)), key=lambda i: _key(record.results[i]))
    for i in order:
        result = record.results[i]
        measured = "" if result.measured is None else f"{result.measured:.2f}"
        verdict = result.refused or _verdict(i, record)
        numbers = f"{result.predicted:.2f}", measured, str(result.rounds)
        table.add_row(text_of(result.schedule), *numbers, escape(verdict))
    return table


def name_of(problem: Problem) -> str:
    """A problem in a few words: "matmul 256x64x256 f32, batch 48, A by columns"."""
    if not isinstance(problem, MatmulShape):
        return problem.name
    return ", ".join(_words(problem))


def text_of(schedule: Schedule) -> str:
    """A schedule in a few words."""
    if isinstance(schedule, Blocks):
        s = schedule
        inner = f"{s.mr}x{s.nr} tile, depth {s.kc} by {s.kt}, unroll {s.unroll}"
        return f"{inner}, block {s.mp}x{s.np}, {s.mc} rows packed"
    if isinstance(schedule, Block):
        return f"block {schedule.rows}x{schedule.columns}, depth {schedule.depth}"
    return f"unroll {schedule.unroll}, {schedule.rows_on_grid} rows, chunk {schedule.chunk}"


def _words(shape: MatmulShape) -> Iterator[str]:
    wide = f" in {shape.accumulate.short}" if shape.accumulate is not shape.dtype else ""
    yield f"matmul {shape.m}x{shape.n}x{shape.k} {shape.dtype.short}{wide}"
    if shape.batch > 1:
        yield f"batch {shape.batch}"
    if shape.a_contiguous == "m":
        yield "A by columns"
    if shape.b_contiguous == "k":
        yield "B by columns"


def _measured(record: Record) -> Iterator[str]:
    ratio = record.results[record.chosen].measured or 1.0
    yield time_of(record.seconds)
    yield time_of(record.seconds * ratio) if record.chosen else "the same"
    yield f"{1 / ratio:.2f}" if record.chosen else "1"
    yield str(len(record.results))
    yield str(sum(bool(r.refused) for r in record.results) or "")


def time_of(seconds: float) -> str:
    """A time with a unit that leaves one to three digits before the point."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _verdict(number: int, record: Record) -> str:
    words = ["the rules'"] if number == 0 else []
    words += ["chosen"] if number == record.chosen else []
    return ", ".join(words)


def _key(result: TunedCandidate) -> tuple[bool, float]:
    return result.measured is None, result.measured or result.predicted


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column not in WORDS)
    return table
