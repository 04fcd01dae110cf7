"""The command `hal goodput`, which knows nothing of the stack until it runs."""

from __future__ import annotations

from importlib import import_module

import click

_MINUTES = click.FloatRange(0, min_open=True)


@click.command()
@click.option("--mtbf", "mtbf_min", type=_MINUTES, required=True, help="Minutes between failures.")
@click.option("--save", "save_min", type=_MINUTES, required=True, help="Minutes that a save costs.")
@click.option("--restore", "restore_min", type=_MINUTES, required=True, help="Minutes to go on.")
@click.option("--every", "every_min", type=_MINUTES, help="Minutes between saves (the best).")
@click.option("--near", type=(_MINUTES, _MINUTES, float, _MINUTES), help="See below.")
@click.option("--seed", type=int, default=0)
def goodput(
    mtbf_min: float,
    save_min: float,
    restore_min: float,
    every_min: float | None,
    near: tuple[float, float, float, float] | None,
    seed: int,
) -> None:
    """Say how often a training should be saved, and what share of its time then counts.

    --near SAVE RESTORE SURVIVES EVERY is a tier before the one of --save and --restore, as the
    memory of hosts: minutes of a save and a restore there, the share of failures that it survives,
    and minutes between its saves.
    """
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
