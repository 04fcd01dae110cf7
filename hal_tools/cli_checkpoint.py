"""The command `hal checkpoint`, which knows nothing of the stack until it runs."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click

_STEP = click.option("--step", type=click.IntRange(0), help="This step, not the newest (or all).")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _do(name: str, *arguments: Any) -> None:
    sys.exit(getattr(import_module("stack.storage.command"), name)(*arguments))


@click.group()
def checkpoint() -> None:
    """Look at checkpoints, verify and repair them.

    WHERE is a folder, or stores by their URLs: "file:/nvme/run, s3://bucket/run".
    """


@checkpoint.command("list")
@click.argument("where")
@_JSON
def list_(where: str, as_json: bool) -> None:
    """List every committed step in WHERE."""
    _do("show_list", where, as_json)


@checkpoint.command()
@click.argument("where")
@_STEP
@_JSON
def show(where: str, step: int | None, as_json: bool) -> None:
    """Show the tensors and the plain data of a step in WHERE."""
    _do("show", where, step, as_json)


@checkpoint.command()
@click.argument("where")
@_STEP
def verify(where: str, step: int | None) -> None:
    """Read every byte of a step in WHERE, or of all. Exits with 1 if one is damaged."""
    _do("check", where, step, False)


@checkpoint.command()
@click.argument("where")
@_STEP
def repair(where: str, step: int | None) -> None:
    """Write damaged blocks anew, from other stores or parity. Exits with 1 if one is lost."""
    _do("check", where, step, True)


@checkpoint.command()
@click.argument("where")
@click.option("--keep", type=click.IntRange(1), required=True, help="How many steps stay.")
def prune(where: str, keep: int) -> None:
    """Remove all but the newest steps of WHERE."""
    _do("prune", where, keep)


@checkpoint.command()
@click.argument("where")
@click.argument("folder")
@_STEP
def export(where: str, folder: str, step: int | None) -> None:
    """Write a step of WHERE as FOLDER of torch.distributed.checkpoint."""
    _do("export_dcp", where, folder, step)


@checkpoint.command("import")
@click.argument("folder")
@click.argument("where")
@click.option("--step", type=click.IntRange(0), required=True, help="The step that it becomes.")
def import_(folder: str, where: str, step: int) -> None:
    """Commit FOLDER of torch.distributed.checkpoint as a step in WHERE."""
    _do("import_dcp", folder, where, step)
