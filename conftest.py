"""What every test needs of its process."""

import signal

import pytest
from hypothesis import settings

from tests.draw import SEED  # before workers start, which inherit it

# A shell lets its background jobs ignore Ctrl-C, and children inherit that. Tests that interrupt
# themselves or a child need Python's own handler.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A test's first example compiles kernels, which takes as long as it takes.
settings.register_profile("patient", settings(), deadline=None)
settings.load_profile("patient")


@pytest.hookimpl(tryfirst=True)  # before hypothesis's own plugin reads the option
def pytest_configure(config: pytest.Config) -> None:
    """Let hypothesis draw by the same seed, where none was asked for."""
    if config.getoption("hypothesis_seed") is None:
        config.option.hypothesis_seed = str(SEED)


def pytest_report_header() -> str:
    """Say how to draw the same again."""
    return f"HAL_TEST_SEED={SEED}"
