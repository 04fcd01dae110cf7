"""What every test needs of its process."""

import gc
import random
import signal
import sys
from collections.abc import Iterator

import numpy as np
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


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Look for no garbage among what is collected: it is millions of objects that stay, and tests
    that look for garbage themselves would go through all of them each time."""
    gc.disable()
    result = yield
    gc.collect()
    gc.freeze()
    gc.enable()
    return result


@pytest.hookimpl(tryfirst=True)  # before its fixtures, which may draw, too
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin the streams that belong to the process anew, whatever ran before in it."""
    own = random.Random(f"{SEED} {item.nodeid}").randrange(1 << 32)
    random.seed(own)
    np.random.seed(own)
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(own)  # no device


def pytest_report_header() -> str:
    """Say how to draw the same again."""
    return f"HAL_TEST_SEED={SEED}"
