"""An emulated core group that the tests of a session share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hal
from hal.core.values import OpenOptions
from stack.runtime import engine_of
from stack.runtime.engine import Engine


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A core group with little memory."""
    pytest.importorskip("hal_plugin_sunway", reason="the tests of athread-c need its emulator")
    options = OpenOptions(settings={"memory_nbytes": str(64 << 20)})
    with engine_of(hal.open("sunway:0", options=options)) as engine:
        yield engine
