"""The command `hal bench`, which knows nothing of the stack until it runs."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from hal_tools.cli_run import SHELL

_EXPLAIN = "Measure nothing: show what the model holds for fastest among so many hosts and ranks."
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group(invoke_without_command=True)
@click.option("--device", help='The device whose operators are measured: "cpu:0".')
@click.option("--roofline", is_flag=True, help="Draw them under the device's roofline.")
@click.option("--out", type=_FILE, default="roofline.png", show_default=True, help="The picture.")
@click.pass_context
def bench(context: click.Context, /, device: str | None, **options: Any) -> None:
    """Measure the operators of a device, or (with a command) groups of ranks."""
    if context.invoked_subcommand is not None:
        if device is not None:
            raise click.UsageError(f"--device is not for {context.invoked_subcommand}")
        return
    if device is None:
        raise click.UsageError('say what to measure: --device "cpu:0", or a command')
    sys.exit(import_module("stack.bench.operators").run(device, **options))


@bench.command()
@click.option("-n", "size", type=click.IntRange(1), help="Ranks (2, or all slots of the hosts).")
@click.option("--kind", default="all_reduce", show_default=True, help="The collective.")
@click.option("--sizes", default="8:64M", show_default=True, help="FIRST:LAST, or a list: bytes.")
@click.option("--shared", is_flag=True, help="In memory that all ranks of a host map.")
@click.option("--devices", default="", help='In the memory of these: "cpu:0,opencl:0", in turn.')
@click.option("--explain", "predicted", metavar="HOSTSxRANKS", default="", help=_EXPLAIN)
@click.option("--hosts", "hosts_file", type=_FILE, help="A file of hosts, as for `hal run`.")
@click.option("--shell", default=SHELL, help="Runs a command on a host, as for `hal run`.")
@click.option("--address", default="", help="HOST[:PORT] by which other hosts reach this one.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def comm(**options: Any) -> None:
    """Measure a collective of float32 between ranks, by size: how it ran, time and bandwidths.

    Starts ranks of its own, or takes part under `hal run`. Between hosts it first measures the
    programs that come into question, and keeps their times: later groups choose by them.
    """
    sys.exit(import_module("stack.bench.comm.command").run(**options))
