"""The entry points of the installed distributions, as files.

This reads what the packaging specifications put into every environment: a directory
`NAME-VERSION.dist-info` on the import path, with a file `entry_points.txt`. `importlib.metadata`
reads the same files, but to import it takes longer than all of `import hal` may take, because it
brings a mail parser and a zip reader along.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from hal.core.facts import dataclass

PLUGINS = "hal.plugins"
"""The group in which a distribution names the modules of its plugins."""
SUFFIX = ".dist-info"
FILE = "entry_points.txt"


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """`name = module` of one group, and the distribution that installed it."""

    name: str
    module: str
    distribution: str
    version: str


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group; a distribution hides later ones of its name on the path."""
    seen: set[str] = set()
    real = dict.fromkeys(os.path.realpath(path) for path in sys.path)
    paths = [path for path in real if os.path.isdir(path)]
    return tuple(point for path in paths for point in _of_directory(path, group, seen))


def parse_entry_points(text: str, group: str) -> dict[str, str]:
    """The `name = value` lines of one section of an `entry_points.txt`."""
    pairs: dict[str, str] = {}
    section = ""
    for line in (raw.strip() for raw in text.splitlines()):
        if line.startswith("["):
            section = line.strip("[] ")
        elif section == group and "=" in line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            pairs[name.strip()] = value.strip()
    return pairs


def _of_directory(path: str, group: str, seen: set[str]) -> Iterator[EntryPoint]:
    for folder in sorted(name for name in os.listdir(path) if name.endswith(SUFFIX)):
        distribution, _, version = folder.removesuffix(SUFFIX).partition("-")
        if distribution.lower() in seen:
            continue
        seen.add(distribution.lower())
        file = os.path.join(path, folder, FILE)
        if os.path.isfile(file):
            with open(file, encoding="utf-8", errors="replace") as stream:
                modules = parse_entry_points(stream.read(), group)
            for name, module in modules.items():
                yield EntryPoint(name, module, distribution.replace("_", "-"), version)
