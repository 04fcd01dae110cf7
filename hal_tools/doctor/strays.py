"""Plugins that are on disk but not installed: a manifest that no entry point leads to."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator

from hal.core.discovery.installed import PLUGINS
from hal.core.discovery.manifest import FILE
from hal_tools.doctor.finding import BAD, Finding


def strays(known: Collection[str]) -> Iterator[Finding]:
    """A finding for each package with a manifest that is not among the known ones, by its folder.

    Looks in the import path, and in the current folder and its `src` as a vendor's project has it.
    """
    for folder in _folders():
        if os.path.join(folder, FILE) not in known:
            package = os.path.basename(folder)
            yield Finding(
                package,
                "entry point",
                BAD,
                f"{os.path.join(folder, FILE)} is there, but no installed distribution has an "
                f"entry point of the group {PLUGINS!r} for it",
                "install its project: pip install --editable . in the folder of its "
                "pyproject.toml; that file needs "
                f'[project.entry-points."{PLUGINS}"] with NAME = "{package}.plugin"',
            )


def _folders() -> Iterator[str]:
    places = [*sys.path, os.curdir, "src"]
    real = dict.fromkeys(os.path.realpath(place) for place in places)
    for place in (place for place in real if os.path.isdir(place)):
        names = sorted(os.listdir(place))
        yield from (
            os.path.join(place, name)
            for name in names
            if os.path.isfile(os.path.join(place, name, FILE))
        )
