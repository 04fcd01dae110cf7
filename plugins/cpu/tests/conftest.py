"""Opened devices and small programs for the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hal.core.values import OpenOptions
from hal_plugin_cpu.device import CpuDevice
from hal_plugin_cpu.plugin import open_device


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    """A device with three workers, whatever the machine has."""
    opened = open_device(0, OpenOptions(settings={"threads": "3"}))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))
