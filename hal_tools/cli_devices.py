"""The commands that look at devices: what there is, what one says about itself, and programs on
them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import hal
from hal.core.description_json import to_json
from hal_tools.cli_tables import devices_table, info_tables
from hal_tools.doctor.examine import examine
from hal_tools.doctor.finding import BAD
from hal_tools.doctor.shown import findings_text
from hal_tools.new.project import write_project

_PICTURE = click.Path(dir_okay=False, path_type=Path)
_OUT = click.Path(dir_okay=False, writable=True)
_WITH = 'Make groups of DEVICE and these ("opencl:0,cpu:0") by the stack, for group H.'


@contextlib.contextmanager
def _plugins_print_aside() -> Iterator[None]:
    """What plugins and their drivers print in the body goes to stderr: it is no part of an
    answer."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def devices(as_json: bool) -> None:
    """List every device, and every plugin that cannot give one, with the cause.

    Opens and closes each device, in a process of its own, to say which cannot be opened.
    """
    rows = hal.devices(opens=True)
    if as_json:
        _print_json([asdict(row) for row in rows])
    elif rows:
        Console().print(devices_table(rows))
    else:
        Console().print("No plugin is installed. Install one: pip install hal-plugin-cpu")


@click.command()
@click.argument("device")
@click.option("--json", "as_json", is_flag=True, help="Print one object.")
def info(device: str, as_json: bool) -> None:
    """Show what DEVICE ("cpu:0") says about itself."""
    with _plugins_print_aside(), hal.open(device) as opened:
        facts = opened.info
    if as_json:
        _print_json(to_json(facts))
        return
    console = Console()
    for table in info_tables(facts):
        console.print(table)


@click.command()
@click.argument("name")
@click.option("--into", default=".", metavar="FOLDER", help="Where the project's folder goes.")
def new_plugin(name: str, into: str) -> None:
    """Write the project of a plugin NAME ("mychip"): a copy of the reference device that works."""
    taken = [found.name for found in hal.registry().found()]
    folder = write_project(name, Path(into), taken)
    click.echo(f"{folder} is written. Next:")
    click.echo(f"  cd {folder} && pip install --editable '.[dev]' && hal doctor {name}")


@click.command()
@click.argument("plugin", default="")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def doctor(plugin: str, as_json: bool) -> None:
    """Explain why each plugin, or PLUGIN ("cpu") alone, works or does not, and what to do.

    Opens and closes its devices, in a process of its own. Exits with 1 if something is wrong.
    """
    findings = examine(hal.registry(), plugin)
    if as_json:
        _print_json([asdict(finding) for finding in findings])
    else:
        click.echo(findings_text(findings))
    sys.exit(1 if any(finding.outcome == BAD for finding in findings) else 0)


@click.command()
@click.argument("device")
@click.option("--level", default="L4", help="The cases up to this level: L0 to L4 (the default).")
@click.option("--group", default="", help='The cases of these groups alone: "C,F".')
@click.option("--case", "texts", multiple=True, help="The cases whose id has this text.")
@click.option("--with", "others", default="", metavar="DEVICES", help=_WITH)
@click.option("--sample", default=0, metavar="N", help="N of these cases, drawn by --seed.")
@click.option("--seed", default=0, help="The seed of everything random in the cases.")
@click.option("--seeds", help='"0:200": once for each, also as the device\'s setting "seed".')
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A device setting.")
@click.option("--no-timed", is_flag=True, help="Leave out what a loaded machine can turn.")
@click.option("--caps", is_flag=True, help="Show what the device declares, too.")
@click.option("--json", "json_file", type=_OUT, help="Write the certificate.")
@click.option("--html", "html_file", type=_OUT, help="Write the report as a page.")
def conform(device: str, **options: Any) -> None:
    """Run the conformance suite on DEVICE ("cpu:0"). Exits with 1 if a case is red."""
    commands = import_module("hal_conformance.commands")
    # end as the signal asks, but with what the command has on disk taken away
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        sys.exit(0 if commands.run(device, **options) else 1)
    finally:
        signal.signal(signal.SIGTERM, before)


@click.command()
@click.argument("device")
@click.argument("script", nargs=-1, type=click.UNPROCESSED, metavar="[-- SCRIPT [ARGS]...]")
@click.option("--matmul", "products", multiple=True, metavar="[BATCHx]MxNxK", help="A product.")
@click.option("--dtype", default="f32", help='The element type of --matmul: "f32", "bf16".')
@click.option("--budget", default=120.0, metavar="SECONDS", help="How long to measure in all.")
@click.option("--again", is_flag=True, help="Measure also what was measured before.")
@click.option("--all", "every", is_flag=True, help="Show every candidate that was tried.")
def tune(device: str, **options: Any) -> None:
    """Measure which schedules make kernels fast on DEVICE ("cpu:0"), and keep them for later runs.

    The kernels are those of the graphs that SCRIPT computes on DEVICE, or the products that are
    named. A candidate that fails, hangs or is wrong is refused; the first one is the compiler's
    own choice, and stays chosen unless another one is surely faster.
    """
    commands = import_module("stack.tune.commands")
    sys.exit(commands.run(device, **options))


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--device", default="cpu:0", show_default=True, help="Whose kernels are explained.")
@click.option("--picture", type=_PICTURE, help="Write an SVG: roofline and timeline.")
@click.option("--all", "every", is_flag=True, help="Show every kernel and every compilation.")
@click.argument("script", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]")
def explain(device: str, **options: Any) -> None:
    """Run SCRIPT and show which of its kernels take longest beyond what the device's limits allow.

    For each kernel: calls, time, bytes of its arguments, operations, and the least time in which
    memory and units could do them, as a share. And what was compiled, and why.
    """
    sys.exit(import_module("stack.bench.explain").run(device, **options))


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
def verify_certificate(file: str) -> None:
    """Check that FILE is a whole certificate of this suite that nobody changed."""
    import_module("hal_conformance.commands").verify(file)


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2))
