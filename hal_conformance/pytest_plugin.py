"""The suite under pytest: `pytest --pyargs hal_conformance --hal-device mychip:0`.

Every case is an item. Each pytest run of an environment loads this module, so it brings in nothing
of the suite until the suite's own folder is collected.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parent
_FILE = _FOLDER / "catalog.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the suite."""
    group = parser.getgroup("hal", "conformance of accelerator plugins")
    group.addoption(
        "--hal-device", help='the device that `--pyargs hal_conformance` tests: "cpu:0"'
    )
    group.addoption("--hal-level", default="L4", help="the cases up to this level (L4)")
    group.addoption(
        "--hal-no-timed", action="store_true", help="leave out what a loaded machine can turn"
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """The catalog of the cases stands for all of them. Raises UsageError without a device."""
    if file_path != _FILE:
        return None
    if not parent.config.getoption("--hal-device"):
        raise pytest.UsageError("the conformance suite tests a device: add --hal-device mychip:0")
    return _Catalog.from_parent(parent, path=file_path)


class _Catalog(pytest.File):
    """The chosen cases."""

    def collect(self) -> Iterable[pytest.Item]:
        """One item for each case."""
        items: Iterable[pytest.Item] = import_module("hal_conformance.pytest_items").items(self)
        return items
