"""Programs in athread C, on an emulated core group that the tests of a file share."""

from importlib.util import find_spec

import pytest

# Without the plugin there is nothing to test; `make test` installs it.
collect_ignore_glob = [] if find_spec("hal_plugin_sunway") else ["test_*.py"]

HEAD = "#include <slave.h>\n"


@pytest.fixture(scope="session")
def chip():
    from hal_plugin_sunway.chip import published  # noqa: PLC0415  not there without the plugin

    return published()


@pytest.fixture(scope="session")
def bench(chip):
    from hal_plugin_sunway.bench import Bench  # noqa: PLC0415

    with Bench(chip, 1 << 30) as bench:
        yield bench


@pytest.fixture
def run(bench):
    """Runs the function `f` of a text with 64 x 64 numbers that it may write: gives them."""

    def go(text, *more):
        slab = bench.space(64 * 64 * 8)
        bench.run("f", [slab, *more], HEAD + text)
        found = bench.view(slab, "f8").reshape(64, 64).copy()
        bench.give(slab)
        return found

    return go


@pytest.fixture(scope="session")
def plugin():
    """A registry with this plugin alone added, and the plugin."""
    import hal_plugin_sunway.plugin  # noqa: PLC0415

    import hal  # noqa: PLC0415

    found = hal_plugin_sunway.plugin
    return hal.Registry(extra={"sunway": found}), found
