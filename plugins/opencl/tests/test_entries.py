"""The kernel by which an entry is launched: what is written around a text."""

from __future__ import annotations

import numpy as np
import pytest
from hal_plugin_opencl import entries

from hal.core.dtypes import DType
from plugins.opencl.tests.conftest import Bench, buffer, source

PARAMS = (buffer("x", DType.I32, True),)
WRITES = (
    "__kernel __attribute__((reqd_work_group_size(1, 1, 1)))\n"
    "void f(__global uchar *x_base,\n       ulong x_offset)\n"
    "{\n    __local int y[1];\n    y[0] = 7;\n"
    "    ((__global int *)(x_base + x_offset))[get_group_id(0)] = y[0];\n}\n"
)


def test_an_entry_of_work_groups_of_one_runs_where_it_is_told_to(bench: Bench) -> None:
    program = source(WRITES, *PARAMS, lanes="1")
    assert entries.guarded(program.text, "f") is not None
    x = bench.put(np.zeros(2, np.int32))
    loaded = bench.device.load(program)
    assert bench.get(x, np.int32).tolist() == [0, 0]
    bench.done(bench.device.launch(bench.device.bind(loaded, (x,)), (2, 1, 1), bench.timeline, ()))
    assert bench.get(x, np.int32).tolist() == [7, 7]


@pytest.mark.parametrize(
    "changed",
    [
        WRITES + "// void f(int a) {",
        WRITES + "void g() { f(0, 0); }",
        WRITES.replace("void f(", "void f(int (*g)(int), "),
        WRITES.replace("\n{", "\n__attribute__((noinline)) {"),
        WRITES.replace("y[", "hal_run["),
        WRITES.replace("void f", "int f"),
    ],
)
def test_a_text_whose_entry_is_not_certain_stays_as_it_is(changed: str) -> None:
    assert entries.guarded(changed, "f") is None


@pytest.mark.parametrize("params", ["", "void", " void "])
def test_an_entry_without_arguments_gets_one(params: str) -> None:
    text = entries.guarded(f"kernel void f({params}) {{ g(); }}", "f")
    assert text == "kernel void f(uchar hal_run) { if (!hal_run) return; g(); }"
