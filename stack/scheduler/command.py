"""`hal simulate`: policies compared on a trace, or on a load that is generated."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from hal.core.errors import InvalidCall
from stack.scheduler.compare import POLICIES, PolicyRow, data, simulate
from stack.scheduler.simulate import Costs
from stack.scheduler.spec import Chip, HostSpec, SpecError
from stack.scheduler.traces import FORMATS, Setting, gang_mix, kueue_baseline

_HEADS = (
    *("policy", "jobs", "refused", "mean", "median", "p99", "longest", "makespan", "use"),
    *("preempted", "resized", "lost_h"),
)


def run(
    trace: Path | None,
    shape: str,
    load: str,
    seed: int,
    policies: Sequence[str],
    hosts: int,
    chips: int,
    costs: Costs,
    as_json: bool,
    picture: Path | None,
) -> int:
    """Compare policies; gives the exit status. Raises InvalidCall for what cannot be read."""
    unknown = [name for name in policies if name not in POLICIES]
    if unknown:
        raise InvalidCall(f"there is no policy {unknown[0]!r}; there are: {', '.join(POLICIES)}")
    try:
        setting = _setting(trace, shape, load, seed)
        if hosts:
            kinds = {kind for task in setting[0] for kind in task.spec.kinds}
            there = tuple(Chip(kind, chips, kind) for kind in sorted(kinds))
            setting = setting[0], [HostSpec(f"h{i}", there) for i in range(hosts)], setting[2]
        found = [simulate(name, setting, costs) for name in policies or POLICIES]
    except SpecError as error:
        raise InvalidCall(str(error)) from error
    rows = [row for row, _ in found]
    if as_json:
        sys.stdout.write(json.dumps(data(rows), indent=2) + "\n")
    else:
        _show(rows)
    if picture:
        # How many jobs waited at most so long, by policy.
        try:
            from matplotlib.figure import Figure  # noqa: PLC0415  an extra
        except ModuleNotFoundError as error:
            raise InvalidCall("a picture needs matplotlib: pip install hal-accel[train]") from error
        axes = Figure(figsize=(8, 5), layout="constrained").add_subplot()
        for row, outcome in found:
            waits = outcome.waits()
            parts = [(number + 1) / len(waits) for number in range(len(waits))]
            axes.step([max(wait, 1e-3) for wait in waits], parts, where="post", label=row.policy)
        axes.set(xscale="log", xlabel="waiting time, s", ylabel="part of the jobs")
        axes.legend()
        axes.grid(alpha=0.3)
        figure = axes.get_figure()
        assert isinstance(figure, Figure), "it was made so"
        figure.savefig(picture)
    return 0


def _setting(trace: Path | None, shape: str, load: str, seed: int) -> Setting:
    if trace is None:
        return kueue_baseline() if load == "kueue" else gang_mix(seed)
    if shape not in FORMATS:
        raise InvalidCall(f"--trace needs --format: one of {', '.join(FORMATS)}")
    try:
        return FORMATS[shape](trace)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidCall(f"{trace} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, SpecError):
            raise
        raise InvalidCall(f"{trace} is no {shape} trace: {error}") from error


def _show(rows: Sequence[PolicyRow]) -> None:
    lines = [
        (
            *(row.policy, str(row.jobs), str(row.refused)),
            *(_time(s) for s in (row.mean_wait_s, row.median_wait_s, row.p99_wait_s)),
            *(_time(row.longest_wait_s), _time(row.makespan_s), f"{row.use:.3f}"),
            *(str(row.preemptions), str(row.resizes), f"{row.lost_device_h:.1f}"),
        )
        for row in rows
    ]
    if not sys.stdout.isatty():
        for line in (_HEADS, *lines):
            sys.stdout.write("\t".join(line) + "\n")
        return
    table = Table(*_HEADS, box=box.SIMPLE_HEAD)
    for line in lines:
        table.add_row(*line)
    Console(highlight=False).print(table)


def _time(seconds: float) -> str:
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
