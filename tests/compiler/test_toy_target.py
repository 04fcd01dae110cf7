"""What a new text format and target take: one folder and one row. The toy's is Python."""

import sys
from pathlib import Path

import numpy as np
import pytest

import hal
from hal.core.dtypes import DType
from hal.tile.node import Type
from hal_conformance.judge import Outcome, judge
from hal_conformance.plan import Choice, chosen
from hal_conformance.rig import Setting
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.compiler.targets import table
from stack.runtime import engine_of
from tests.compiler.toy.target import TOY
from tests.conformance.plugins import Site
from tests.draw import sample

PLUGIN = "from tests.compiler.toy.machine import enumerate_devices, open_device\n"
MOST_LINES = 350
CASES = 40
"""Of nearly 500, drawn anew for each commit; $HAL_TEST_ALL=1 takes all."""


@pytest.fixture(scope="module", autouse=True)
def toy(tmp_path_factory):
    """The device and the target are installed."""
    path = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path))
        patch.setattr(table, "TARGETS", (TOY, *table.TARGETS))
        Site(path).install("toy", PLUGIN)
        yield
        sys.modules.pop("hal_plugin_toy.plugin", None)


def test_it_is_small():
    files = Path(__file__).with_name("toy").glob("*.py")
    assert sum(len(file.read_text().splitlines()) for file in files) <= MOST_LINES


@pytest.mark.slow
@pytest.mark.turns
def test_it_passes_the_kernels_of_the_suite():
    setting = Setting("toy:0", ("toy:0",), registry=hal.Registry)
    cases = sample("toy", chosen(Choice(groups=("E",))), CASES)
    results = [judge(case, setting) for case in cases]
    fine = (Outcome.PASS, Outcome.UNSUPPORTED)  # a large grid is left to faster machines
    assert {r.id: r.detail for r in results if r.outcome not in fine} == {}
    assert sum(r.outcome is Outcome.PASS for r in results) > 0.9 * len(cases)


def test_it_computes_a_graph():
    a, b = (g.input(i, Type((9, 9), DType.F32)) for i in range(2))
    row = g.reduce("sum", g.exp(g.matmul(a, b)), (1,))
    x, y = np.random.default_rng(0).standard_normal((2, 9, 9), np.float32) / 4
    with hal.Registry().open("toy:0") as device, engine_of(device) as engine:
        given = [engine.put(array, DType.F32) for array in (x, y)]
        (found,) = engine.plan(GraphRequest((row,), (a, b))).run(given)
        expected = np.exp(x @ y).sum(1, keepdims=True)
        np.testing.assert_allclose(engine.get(found), expected, 1e-5)
