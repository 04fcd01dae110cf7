"""What every test needs of its process."""

import gc
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.draw import SEED, in_turn  # before workers start, which inherit it

# A shell lets its background jobs ignore Ctrl-C, and children inherit that. Tests that interrupt
# themselves or a child need Python's own handler.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A test's first example compiles kernels, which takes as long as it takes; and how long it takes to
# draw one says how busy the machine is. The next commit draws others: 60 are enough for each.
settings.register_profile(
    "patient",
    settings(),
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("patient")

# Hypothesis draws some numbers from the constants in the modules that are loaded at that time: so
# what a test draws would follow from those before it, and each worker reads every module for it.
# It promises these names to nobody.
providers: Any = sys.modules.get("hypothesis.internal.conjecture.providers")
if hasattr(providers, "_get_local_constants") and hasattr(providers, "_local_constants"):
    providers._get_local_constants = lambda: providers._local_constants


@pytest.hookimpl(tryfirst=True)  # before hypothesis's own plugin reads the option
def pytest_configure(config: pytest.Config) -> None:
    """Let hypothesis draw by the same seed, where none was asked for."""
    if config.getoption("hypothesis_seed") is None:
        config.option.hypothesis_seed = str(SEED)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    """Look for no garbage among what is collected: it is millions of objects that stay, and tests
    that look for garbage themselves would go through all of them each time. What comes later is
    searched seldom: up to a twelfth of a folder's time went there.

    Each of several workers begins with other folders than the rest: where nothing is compiled to
    bytecode yet, each finds what others have compiled meanwhile.
    """
    gc.disable()
    config = session.config
    worker = getattr(config, "workerinput", {"workerid": "gw0", "workercount": 1})
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        folders = [str(p) for a in config.args for p in sorted(Path(a).iterdir()) if p.is_dir()]
        first = int(worker["workerid"][2:]) * len(folders) // worker["workercount"]
        config.args = folders[first:] + folders[:first]
    result = yield
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
    return result


@pytest.hookimpl(tryfirst=True)  # before those that bring tests of one fixture together
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Bring the tests of all folders into the order that every worker has, and leave those to other
    commits whose turn it is not."""
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    items.sort(key=lambda item: item.path)
    units: dict[str, list[pytest.Item]] = {}
    for item in items:
        for mark in item.iter_markers("turns"):
            unit = mark.args[0] if mark.args else item.nodeid
            units.setdefault(unit, []).append(item)
            break
    waiting = {item for unit in {*units} - in_turn([*units]) for item in units[unit]}
    config.hook.pytest_deselected(items=[item for item in items if item in waiting])
    items[:] = [item for item in items if item not in waiting]


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
