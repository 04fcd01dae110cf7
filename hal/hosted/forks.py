"""Drivers start threads, which a fork leaves behind: a child has no use of its parent's driver."""

from __future__ import annotations

import os

from hal.core.errors import PluginError

_FIRST: dict[str, int] = {}
"""By driver: the process that started it, this one or one before a fork."""


def starts(driver: str, device: str) -> None:
    """This process starts a driver for a device. Raises PluginError in one that was forked from
    another that did."""
    if _FIRST.setdefault(driver, os.getpid()) != os.getpid():
        raise PluginError(
            f"{device} cannot be opened in this forked process, as the {driver} driver does not "
            "survive the fork of one that used it: start processes by "
            "multiprocessing.get_context('spawn'), or open devices after the fork alone"
        )
