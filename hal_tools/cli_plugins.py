"""Commands of `hal` that are imported when they are used: its own, and those that plugins add.

A distribution names them as entry points of the group `hal.commands`, "NAME = MODULE:OBJECT", where
the object is a click command. Its module is imported when the command is used or help is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from hal.core.discovery.installed import entry_points
from hal.core.errors import PluginError

GROUP = "hal.commands"


class Commands(click.Group):
    """A group whose own commands are objects of their names in the modules of `homes`, and the
    plugins' commands after these; none of them replaces one of its own."""

    def __init__(self, *args: Any, homes: Mapping[str, str], **more: Any) -> None:
        super().__init__(*args, **more)
        self._homes = homes

    def list_commands(self, ctx: click.Context) -> list[str]:
        own = sorted(self._homes)
        return own + sorted({point.name for point in entry_points(GROUP)} - set(own))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._homes:
            for point in entry_points(GROUP):
                if point.name == cmd_name:
                    try:
                        module, _, attribute = point.module.partition(":")
                        found: object = getattr(import_module(module), attribute)
                    except Exception as error:  # noqa: BLE001  foreign code: its error is the command's
                        return _broken(
                            cmd_name, f"{point.distribution}: {type(error).__name__}: {error}"
                        )
                    if isinstance(found, click.Command):
                        return found
                    return _broken(
                        cmd_name, f"{point.distribution}: {point.module} is no click command"
                    )
            return None
        found = getattr(import_module(self._homes[cmd_name]), cmd_name.replace("-", "_"))
        assert isinstance(found, click.Command), "that is what its module has under this name"
        return found


def _broken(name: str, cause: str) -> click.Command:
    def fail() -> None:
        raise PluginError(f"hal {name} cannot be used: {cause}")

    return click.Command(name, callback=fail, short_help=f"Cannot be used: {cause}")
