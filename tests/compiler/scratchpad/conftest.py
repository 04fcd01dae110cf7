"""A core group that the tests of a session share."""

from __future__ import annotations

import pytest

from tests.compiler.scratchpad.machine import opened


@pytest.fixture(scope="session")
def device():
    with opened() as device:
        yield device
