"""A folder in which a test writes scripts and runs them."""

import pytest

from tests.launch.running import Folder


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)
