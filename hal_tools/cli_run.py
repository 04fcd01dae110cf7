"""The command `hal run`, which knows nothing of the stack until it runs."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

_IN = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
SHELL = "ssh -o BatchMode=yes -o ConnectTimeout=10 {host}"


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-n", "size", type=click.IntRange(1), help="Ranks (all slots of the hosts, or 1).")
@click.option("-m", "module", is_flag=True, help="TARGET is a module, as for `python -m`.")
@click.option("--devices", default="", help='"cpu:0,opencl:0": the ranks take them in turn.')
@click.option("--hosts", "hosts_file", type=_IN, help="A file of lines: NAME slots=N devices=...")
@click.option("--log-dir", "log_folder", type=_FOLDER, help="Keep each rank's output in a file.")
@click.option("--shell", default=SHELL, show_default=True, help="Runs a command on a host.")
@click.option("--address", default="", help="HOST[:PORT] by which other hosts reach this one.")
@click.option("--deadline", "deadline_s", default=300.0, help="Seconds that ranks wait for others.")
@click.option("--grace", "grace_s", default=30.0, help="Seconds to save in, when asked to end.")
@click.option("--restarts", type=click.IntRange(0), default=0, help="Start a failed job so often.")
@click.option("--least", type=int, help="Go on with so many ranks at least when one ends.")
@click.option(
    "--spares",
    type=click.IntRange(0),
    default=0,
    help="Processes that wait to take a rank's place.",
)
@click.option("--events", type=_IN, help="A file for a line of JSON for all that happens.")
@click.option("--keep", type=_FOLDER, help="Where an elastic job that is ended leaves its state.")
@click.option("--faults", default="", help='"kill at step nth 3 rank 1; ...", or a file of such.')
@click.option("--instead", default="", help="Goes on for a rank whose device is lost: cpu:0")
@click.option("--mpi", is_flag=True, help="Be a rank: `mpirun -n 4 hal run --mpi TARGET`.")
@click.argument("target")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(target: str, **options: Any) -> None:
    """Run the script TARGET as the ranks of one job, each with a device of its own.

    When one of them fails, all are ended, and the first cause is shown; its exit status is that of
    this command. With --restarts the job is then started anew, and goes on from what the script
    has kept. With --least or --spares ranks are replaced instead, where the script declares what
    they hold by `stack.fault.Training`; --restarts then says how many processes may be started
    again.
    """
    sys.exit(import_module("stack.launch.command").run(target, **options))


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--faults", type=click.IntRange(1), default=200, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the plans of faults.")
@click.option("-n", "ranks", type=click.IntRange(1), default=4, show_default=True)
@click.option("--spares", type=click.IntRange(0), default=1, show_default=True)
@click.option("--hosts", type=click.IntRange(1), default=1, help="Hosts, all of them here.")
@click.option("--devices", default="cpu:0", show_default=True)
@click.option("--steps", type=click.IntRange(1), default=60, help="Faults happen up to this step.")
@click.option("--limit", "limit_s", default=120.0, help="Seconds after which a start hangs.")
@click.argument("target", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def soak(target: Path, arguments: tuple[str, ...], faults: int, seed: int, **options: Any) -> None:
    """Train by the script TARGET again and again while random faults happen, until it were so many.

    Says what hung, which steps were lost, which faults nothing named, and what was left behind;
    exits with 1 if there is any.
    """
    module = import_module("stack.fault.soak")
    job = module.Job((str(target.absolute()), *arguments), **options)
    report = module.soak(job, faults, seed, lambda folder: "", click.echo)
    click.echo(str(report))
    sys.exit(0 if report.is_well else 1)
