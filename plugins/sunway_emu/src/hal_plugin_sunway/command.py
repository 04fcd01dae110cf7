"""The commands that this plugin adds to `hal`."""

from __future__ import annotations

from pathlib import Path

import click

from hal_plugin_sunway.athread import Run, run
from hal_plugin_sunway.chip import Chip, changed, published
from hal_plugin_sunway.coregroup import Outcome

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUT = click.Path(dir_okay=False, writable=True)


@click.group()
def athread() -> None:
    """Run athread programs on an emulated SW26010-Pro."""


@athread.command("run")
@click.argument("host", type=_FILE)
@click.argument("slaves", type=_FILE, required=False)
@click.option("--trace", default="", type=_OUT, help="Write each CPE's timeline, for Perfetto.")
@click.option("--chip", "figures", default="", help="Other figures of the chip: NAME=NUMBER,...")
@click.option("--patience", default=60.0, help="Host seconds that a CPE may compute in a row.")
def run_command(host: Path, slaves: Path | None, trace: str, figures: str, patience: float) -> None:
    """Compile and run HOST, which has the slave part too unless SLAVES does; say what it took."""
    chip = changed(published(), figures)
    outcome = run(chip, Run(host, slaves or host, trace, patience))
    click.echo(summary(chip, outcome), err=True)


def summary(chip: Chip, outcome: Outcome) -> str:
    """A run's emulated time in a few lines."""
    cpes, cycles = chip["cpes"], outcome.cycles
    shares = {
        "computing": outcome.busy,
        "waiting for transfers": outcome.dma_wait,
        "waiting for others": outcome.sync_wait,
    }
    of_all = (f"{share / cpes / cycles:.1%} {what}" for what, share in shares.items() if cycles)
    moved = outcome.get_nbytes + outcome.put_nbytes
    hint = "" if outcome.flops else "\nno work was counted: plain C is free, see athread_work_f64"
    return (
        f"emulated: {cycles:.0f} CPE cycles, {chip.seconds(cycles) * 1e6:.2f} us; of 64 CPEs' time "
        f"{', '.join(of_all)}\n"
        f"DMA: {outcome.get_nbytes:.0f} bytes in, {outcome.put_nbytes:.0f} out, "
        f"{moved / chip.seconds(cycles) / 1e9 if cycles else 0:.2f} GB/s; "
        f"counted {outcome.flops:.0f} floating-point operations{hint}"
    )
