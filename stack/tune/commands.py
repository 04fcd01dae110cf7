"""The command `hal tune`."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.console import Console
from rich.status import Status

import hal
from hal.cache import cache_dir
from hal.core.dtypes import DType
from hal.tile.node import Type
from stack import ops as build
from stack.compiler.program import GraphRequest
from stack.compiler.tune import Tunable
from stack.runtime.tuned import Record
from stack.tune.process import Process
from stack.tune.report import ReportRow, details, left_out, name_of, summary
from stack.tune.rig import Rig
from stack.tune.script import graphs_of
from stack.tune.session import problems_of, tune

LIMIT_S = 30.0
"""How long building and running one candidate may take."""
INTERRUPTED = 130


def run(
    device: str,
    script: Sequence[str],
    products: Sequence[str],
    dtype: str,
    budget: float,
    again: bool,
    every: bool,
) -> int:
    """Tune what is asked for and print what was found; the exit status."""
    if bool(script) == bool(products):
        raise click.UsageError("say what to tune: a SCRIPT, or --matmul MxNxK")
    if not budget >= 0:  # which is so of nan, too
        raise click.UsageError(f"--budget is {budget:g}; it is a number of seconds, 0 or more")
    requests = [product(text, dtype) for text in products]
    if script:
        requests = graphs_of(script[0], script[1:], device)
    with hal.open(device) as opened:
        info = opened.info
    console, rows, status = Console(), list[ReportRow](), 0
    problems = problems_of(requests, info)
    try:
        with Rig(lambda: Process(device), LIMIT_S) as rig, console.status("") as shown:
            told = Progress(rows, problems, shown)
            tune(problems, info, rig, str(cache_dir()), budget, again, told)
    except KeyboardInterrupt:
        status = INTERRUPTED
    if not rows:
        console.print(f"No kernel of {device} was measured.")
    else:
        for row in rows if every else ():
            if row.record is not None:
                console.print(details(row.record))
        console.print(summary(f"kernels of {device}", rows))
        for line in left_out(rows):
            console.print(line, markup=False)
    return status


def product(text: str, dtype: str) -> GraphRequest:
    """The graph of a product "MxNxK" or "BATCHxMxNxK". Raises click.UsageError."""
    try:
        *batch, m, n, k = (int(part) for part in text.split("x"))
        element = DType(dtype)
    except ValueError as error:
        raise click.UsageError(f"--matmul {text} --dtype {dtype} is no product: {error}") from error
    if len(batch) > 1 or min(*batch, m, n, k) < 1:
        raise click.UsageError(f"--matmul {text}: give three or four positive sizes")
    a = build.input(0, Type((*batch, m, k), element))
    b = build.input(1, Type((*batch, k, n), element))
    return GraphRequest((build.matmul(a, b),), (a, b))


class Progress:
    """Keeps a row for each problem that is done, and shows which one is next."""

    def __init__(self, rows: list[ReportRow], problems: Sequence[Tunable], shown: Status) -> None:
        self._rows, self._problems, self._shown = rows, problems, shown
        self._show()

    def __call__(self, tunable: Tunable, record: Record | None, note: str) -> None:
        self._rows.append(ReportRow(tunable.problem, tunable.count, record, note))
        self._show()

    def _show(self) -> None:
        done, count = len(self._rows), len(self._problems)
        if done < count:
            self._shown.update(f"{done + 1} of {count}: {name_of(self._problems[done].problem)}")
