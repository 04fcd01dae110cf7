"""`hal explain` counts what kernels do, times each as the device says, and puts the limits beside
them."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import hal
from hal.core.dtypes import DType
from hal.core.values import KernelSource
from hal.tile.parser import parse_kernel
from hal_tools.cli import main
from stack import ops as g
from stack.bench import roof
from stack.bench.cases import cases
from stack.bench.explain import explained, operations_of
from stack.bench.roof import Roof
from stack.bench.watch import KernelWatch, LaunchedKernel, Ran
from stack.compiler.program import GraphRequest
from stack.compiler.work import operations
from stack.runtime import engine_of, opening

GOLDEN = Path(__file__).parents[1] / "golden" / "tile"
TRIANGLE = """hal-tile/1
kernel triangle(x: buffer f64 reads, y: buffer f64 reads writes) {
  %1 = program_id axis=0 : i64
  %2 = broadcast 0.0:f64 : f64[4]
  for %3 in range(0, %1, 1) carry(%4 = %2) {
    %5 = lt %3, 2 : bool
    %6 = load x[%3] strides(1) : f64[4]
    if %5 {
      %7 = exp %6 : f64[4]
      store %7 to y[%3] strides(1)
    }
    %8 = fma %6, %6, %4 : f64[4]
    next %8
  } -> %9
  store %9 to y[%1] strides(1)
}
"""
SCRIPT = """
import sys
import stack.framework as ht

x = ht.ones((64, 64))
step = ht.jit(lambda a: (a @ a).exp())
for _ in range(3):
    print("the script says", step(x).sum().item(), sys.argv[1:])
sys.exit(int(sys.argv[-1]))
"""


@pytest.fixture(scope="module")
def info():
    with hal.open("cpu:0") as device:
        return device.info


def test_a_product_makes_two_operations_for_each_pair():
    kernel = parse_kernel((GOLDEN / "matmul.tile").read_text())
    assert operations(kernel, (3, 1, 1), (16,)) == {DType.F32: 3 * 2 * 4 * 16 * 16}
    assert operations(kernel, (50, 1, 1), (8,)) == {DType.F32: 50 * 2 * 4 * 16 * 8}


def test_loops_and_branches_are_counted_as_their_instance_runs_them():
    kernel = parse_kernel(TRIANGLE)
    for grid in (1, 3, 5):
        steps = [min(i, 2) * 4 + i * 8 for i in range(grid)]
        assert operations(kernel, (grid, 1, 1))[DType.F64] == sum(steps)
    (most,) = operations(kernel, (400, 1, 1)).values()
    assert most == pytest.approx(8 * 400 * 399 / 2, rel=0.02)


@pytest.mark.slow
def test_the_compilers_kernels_make_the_operations_of_their_definition(info):
    few = {c.name: c for c in cases(256, 256) if c.size in ("256x256", "128", "8x256x64")}
    for name, most in (("add", 1), ("gelu", 1), ("matmul f32", 1.05), ("attention", 1.05)):
        done = operations_of([few[name].request], info, "").values()
        assert few[name].flops <= sum(w.total() for w in done) <= most * few[name].flops, name


@pytest.mark.slow
def test_what_runs_is_counted_with_its_bytes():
    x = g.input(0, g.const(0, DType.F32).type.with_shape((64, 100)))
    request = GraphRequest((g.reduce("sum", g.matmul(x, g.transpose(x)), 1),), (x,))
    watch = KernelWatch()
    with hal.open("cpu:0", wrappers=[watch]) as device, engine_of(device) as engine:
        plan = engine.plan(request)
        array = engine.put(np.ones((64, 100)), DType.F32)
        for _ in range(3):
            plan.run([array])
        engine.sync()
        assert sum(r.calls for r in watch.ran.values()) == 3 * plan.launches
        assert len(watch.longest) == plan.launches
    calls = Counter({launched.name: r.calls for launched, r in watch.ran.items()})
    assert set(calls.values()) == {3}
    assert all(r.seconds > 0 for r in watch.ran.values())
    assert sum(r.nbytes for r in watch.ran.values()) >= 3 * (64 * 100 + 64) * 4


def test_the_limit_is_what_takes_longer(info):
    rates = Roof({DType.F32: 100.0}, 10.0, "as declared")
    slow, quick, unknown = (LaunchedKernel(KernelSource("f", "", name, ())) for name in "sqx")
    ran = {quick: Ran(2, 4.0, 50), slow: Ran(2, 40.0, 50), unknown: Ran(1, 9.0, 50)}
    work = {slow: Counter({DType.F32: 500}), quick: Counter({DType.F32: 5})}
    plain = explained(ran, work, rates, replace(info, matrix_units=()))
    assert [r.name for r in plain] == ["s", "x", "q"]
    assert [r.by for r in plain] == ["compute", "memory", "memory"]
    assert [r.share for r in plain] == [0.25, 5 / 9, 1.25]
    assert [r.shortfall_s for r in plain] == [30, 4, 0]
    assert [r.flops for r in plain] == [1000, None, 10]


@pytest.mark.slow
def test_the_command_runs_the_script_and_shows_its_kernels(monkeypatch, tmp_path):
    monkeypatch.setattr(opening, "_engines", {})
    monkeypatch.setattr(roof, "MOVED_NBYTES", 1 << 16)
    monkeypatch.setenv("HAL_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "script.py").write_text(SCRIPT)
    picture = tmp_path / "step.svg"
    given = ["explain", "--picture", str(picture), str(tmp_path / "script.py"), "--rate", "3"]
    done = CliRunner(env={"COLUMNS": "120"}).invoke(main, given)
    assert done.exit_code == 3, done.output
    assert done.output.count("the script says") == 3
    (row,) = [line for line in done.output.splitlines() if "matmul_exp" in line]
    assert row.split()[1] == "3"
    assert "a graph that was not seen before" in done.output
    assert "<svg" in picture.read_text()


def test_a_missing_script_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(opening, "_engines", {})
    done = CliRunner().invoke(main, ["explain", str(tmp_path / "nothing.py")])
    assert done.exit_code == 1
    opening.close_all()
