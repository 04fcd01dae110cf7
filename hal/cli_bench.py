"""The command `hal bench`, which knows nothing of the stack until it runs."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

_PNG = click.Path(dir_okay=False, path_type=Path)


@click.group(invoke_without_command=True)
@click.option("--device", help='The device whose operators are measured: "cpu:0".')
@click.option("--roofline", is_flag=True, help="Draw them under the device's roofline.")
@click.option("--out", type=_PNG, default="roofline.png", show_default=True, help="The picture.")
@click.pass_context
def bench(context: click.Context, device: str | None, **options: Any) -> None:
    """Measure the operators of a device, or (with a command) groups of ranks."""
    if context.invoked_subcommand is not None:
        return
    if device is None:
        raise click.UsageError('say what to measure: --device "cpu:0", or a command')
    sys.exit(import_module("stack.bench.operators").run(device, **options))
