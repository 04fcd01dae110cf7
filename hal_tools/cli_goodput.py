"""The command `hal goodput`, which knows nothing of the stack until it runs."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import click

_MINUTES = click.FloatRange(0, min_open=True)


@click.command()
@click.option("--mtbf", "mtbf_min", type=_MINUTES, help="Minutes between failures.")
@click.option("--save", "save_min", type=_MINUTES, help="Minutes that a save costs.")
@click.option("--restore", "restore_min", type=_MINUTES, help="Minutes to go on.")
@click.option("--every", "every_min", type=_MINUTES, help="Minutes between saves (the best).")
@click.option("--near", type=(_MINUTES, _MINUTES, float, _MINUTES), help="See below.")
@click.option("--hosts", type=click.IntRange(1, 1 << 16), help="See below.")
@click.option("--copies", type=click.IntRange(1), default=2, show_default=True)
@click.option("--seed", type=int, default=0)
@click.option("--events", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def goodput(
    mtbf_min: float | None,
    save_min: float | None,
    restore_min: float | None,
    every_min: float | None,
    near: tuple[float, float, float, float] | None,
    hosts: int | None,
    copies: int,
    seed: int,
    events: Path | None,
) -> None:
    """Say how often a training should be saved, and what share of its time then counts.

    --near SAVE RESTORE SURVIVES EVERY is a tier before the one of --save and --restore, as the
    memory of hosts: minutes of a save and a restore there, the share of failures that it survives,
    and minutes between its saves.

    With --hosts N alone, say how probable it is that copies of each host's state in the memory of
    so many hosts outlive the loss of several at once: in groups, and in a ring.

    With --events FILE alone, which `hal run --events` has written, say where the time of that job
    went.
    """
    if events is not None:
        _say_where(events)
        return
    if hosts is not None:
        placement = import_module("stack.launch.placement")
        grouped, ringed = (p(range(hosts), copies) for p in (placement.grouped, placement.ringed))
        for lost in range(1, min(hosts, copies + 2) + 1):
            said = f"{grouped.survives(lost):.1%} in groups, {ringed.survives(lost):.1%} in a ring"
            click.echo(f"{lost} of {hosts} hosts lost at once, {copies} copies: {said}")
        return
    if mtbf_min is None or save_min is None or restore_min is None:
        raise click.UsageError(
            "give --mtbf, --save and --restore, or --hosts, or --events of a job"
        )
    rates = import_module("stack.fault.rates")
    mtbf_s, far = mtbf_min * 60, rates.Tier(save_min * 60, restore_min * 60)
    every_s = every_min * 60 if every_min else rates.best_interval_s(far.save_s, mtbf_s)
    tiers, intervals = [far], [every_s]
    if near is not None:
        tiers.insert(0, rates.Tier(near[0] * 60, near[1] * 60, near[2]))
        intervals.insert(0, near[3] * 60)
    hours = 5000 * mtbf_min / 60
    drawn = rates.simulated(tiers, intervals, mtbf_s, hours, seed)
    click.echo(f"save every {every_s / 60:.1f} minutes")
    if near is None:
        click.echo(f"goodput {rates.goodput(far, mtbf_s, every_s):.1%} (Daly, 2006)")
    click.echo(f"goodput {drawn:.1%} over {hours:,.0f} simulated hours, seed {seed}")


def _say_where(file: Path) -> None:
    module = import_module("stack.launch.spent")
    spent = module.Spent()
    for number, line in enumerate(file.read_text().splitlines(keepends=True), 1):
        if not line.endswith("\n"):  # the launcher was killed while it wrote
            break
        try:
            spent.add(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise click.ClickException(
                f"line {number} of {file} is no event of a job, as `hal run --events` writes them: "
                f"{error!r}"
            ) from error
    report = spent.report
    for kind, text in module.KINDS.items():
        seconds = report.seconds[kind]
        share = seconds / report.total_s if report.total_s else 0.0
        click.echo(f"{kind:8} {seconds:10.2f} s {share:6.1%}  {text}")
    click.echo(f"{report.steps} steps, {report.redone} done again; {report.recoveries} recoveries")
