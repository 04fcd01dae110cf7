"""Commands that plugins add to `hal`.

A distribution names them as entry points of the group `hal.commands`, "NAME = MODULE:OBJECT", where
the object is a click command. A module is imported when its command is used or the help is shown.
"""

from __future__ import annotations

from importlib import import_module

import click

from hal.core.discovery.installed import entry_points
from hal.core.errors import PluginError

GROUP = "hal.commands"


class PluginCommands(click.Group):
    """A group with the plugins' commands after its own; none of them replaces one of its own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        own = super().list_commands(ctx)
        return own + sorted({point.name for point in entry_points(GROUP)} - set(own))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or _added(cmd_name)


def _added(name: str) -> click.Command | None:
    """The command that a plugin gives under this name. One that cannot be loaded says so when it is
    used, and leaves the others alone."""
    for point in entry_points(GROUP):
        if point.name == name:
            try:
                module, _, attribute = point.module.partition(":")
                found: object = getattr(import_module(module), attribute)
            except Exception as error:  # noqa: BLE001  foreign code: its error is the command's
                return _broken(name, f"{point.distribution}: {type(error).__name__}: {error}")
            if isinstance(found, click.Command):
                return found
            return _broken(name, f"{point.distribution}: {point.module} is no click command")
    return None


def _broken(name: str, cause: str) -> click.Command:
    def fail() -> None:
        raise PluginError(f"hal {name} cannot be used: {cause}")

    return click.Command(name, callback=fail, short_help=f"Cannot be used: {cause}")
