"""What would be chosen, and why, as a table to read."""

from __future__ import annotations

from collections.abc import Iterable

from stack.comm.choose.chooser import AlgorithmChooser, Demand, Estimate
from stack.comm.choose.predict import Element
from stack.comm.plan.program import PlanKind

SIZES = tuple(1 << exponent for exponent in range(3, 28, 4))


def explain(
    chooser: AlgorithmChooser, kind: PlanKind, element: Element, sizes: Iterable[int] = SIZES
) -> str:
    """A line for each size: what runs, and the microseconds of each algorithm, in its best cut.

    A star marks what was measured, or corrected by a measurement at another size; the rest is
    predicted. What runs is not the fastest where a rule of the user says so.
    """
    calls = [Demand(kind, nbytes, element) for nbytes in sizes]
    tables: list[dict[str, Estimate]] = []
    for call in calls:
        fastest: dict[str, Estimate] = {}  # of each algorithm, as estimates come in order
        for estimate in chooser.estimates(call):
            fastest.setdefault(estimate.algorithm.partition("/")[0], estimate)
        tables.append(fastest)
    names = sorted(tables[0])
    lines = [["bytes", "runs", *names]]
    for call, table in zip(calls, tables, strict=True):
        found = (table[name] for name in names)
        cells = [f"{e.seconds * 1e6:.1f}{'*' if e.measured else ''}" for e in found]
        lines.append([str(call.nbytes), chooser.algorithm(call), *cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) + "\n"
        for line in lines
    )
