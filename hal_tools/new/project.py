"""`hal new-plugin`: writes the project of a plugin."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from hal.core.errors import InvalidCall

_NAME = re.compile(r"[a-z][a-z0-9]{1,19}")
_TEMPLATES = Path(__file__).parent / "templates"
_SUFFIX = ".txt"
PLACES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "ci.yml": ".github/workflows/ci.yml",
    "gitignore": ".gitignore",
    "init.py": "src/{package}/__init__.py",
    "plugin.py": "src/{package}/plugin.py",
    "describe.py": "src/{package}/describe.py",
    "machine.py": "src/{package}/machine.py",
    "hal-plugin.toml": "src/{package}/hal-plugin.toml",
    "hal-conformance.toml": "src/{package}/hal-conformance.toml",
    "test_device.py": "tests/test_device.py",
}
"""Where each template goes."""


def write_project(name: str, parent: Path, taken: Collection[str]) -> Path:
    """Write the project hal-plugin-NAME into the folder `parent`; gives its folder.

    Raises InvalidCall for a name that no plugin can have or that is among the `taken` ones, for a
    parent that does not exist and for a project folder that does.
    """
    if not _NAME.fullmatch(name):
        raise InvalidCall(
            f"{name!r} cannot be a plugin's name; it is 2 to 20 lower-case letters and digits, "
            f"a letter first, such as 'mychip'"
        )
    if name in taken:
        raise InvalidCall(f"a plugin {name!r} is installed already; choose another name")
    folder = parent / f"hal-plugin-{name}"
    if not parent.is_dir():
        raise InvalidCall(f"there is no folder {parent} for the project; make it first")
    if folder.exists():
        raise InvalidCall(f"{folder} exists already; choose another name or remove it")
    for place, text in _files(name):
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def _files(name: str) -> Iterator[tuple[str, str]]:
    package = f"hal_plugin_{name}"
    for template, place in PLACES.items():
        text = (_TEMPLATES / f"{template}{_SUFFIX}").read_text(encoding="utf-8")
        for word, own in {
            "HAL_MYCHIP": f"HAL_{name.upper()}",
            "MYCLASS": name.capitalize(),
            "MYCHIP": name,
        }.items():
            text = text.replace(word, own)
        yield place.format(package=package), text
    yield f"src/{package}/py.typed", ""
