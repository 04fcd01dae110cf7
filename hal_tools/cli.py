"""The command `hal`: a list of commands, each of which is imported when it is used."""

from __future__ import annotations

import sys
from typing import Any

import click

import hal
from hal_tools.cli_plugins import Commands

COMMANDS = {
    **dict.fromkeys(
        ("devices", "info", "new-plugin", "doctor", "conform", "tune", "explain"),
        "hal_tools.cli_devices",
    ),
    "verify-certificate": "hal_tools.cli_devices",
    **dict.fromkeys(("run", "soak"), "hal_tools.cli_run"),
    "goodput": "hal_tools.cli_goodput",
    "bench": "hal_tools.cli_bench",
    "checkpoint": "hal_tools.cli_checkpoint",
    **dict.fromkeys(
        ("cluster", "submit", "jobs", "why", "logs", "cancel", "hold", "release", "resize"),
        "hal_tools.cli_cluster",
    ),
    **dict.fromkeys(("hosts", "simulate", "speed"), "hal_tools.cli_cluster"),
}
"""Where each command is, as an object of its own name."""


class _Commands(Commands):
    """Shows an error of the contract on one screen, with the next step, and exits with status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except hal.HalError as error:
            from rich.console import Console  # noqa: PLC0415  who has no error loads none

            console = Console(stderr=True, highlight=False, soft_wrap=True)
            console.print("error:", style="bold red", end=" ")
            console.print(str(error), markup=False)
            console.print(f"what to do: {error.next_step}", markup=False)
            sys.exit(1)


@click.group(
    cls=_Commands, homes=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(hal.__version__)
def main() -> None:
    """Look at the accelerators of this machine, and run programs on them."""
