"""Without wrappers nothing stands between the stack and the plugin, and no process between a kernel
and its code."""

import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pluggy
import pytest
from hal_plugin_cpu.jit import is_known

import hal
from hal.core.dtypes import DType
from hal.core.spec import NOTICES, OPTIONAL, DeviceSpec, hooks
from hal.tile.node import Type
from stack import ops as g
from stack.compiler.compile import compile_graph
from stack.compiler.program import GraphRequest
from stack.runtime import engine_of
from tests.compiler import models

PLUGGY = str(Path(pluggy.__file__).parent)


@contextmanager
def calls_into_pluggy():
    """Gives a list, which gets the names of pluggy's functions that run."""
    seen = []

    def watch(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(PLUGGY):
            seen.append(frame.f_code.co_name)

    sys.setprofile(watch)
    try:
        yield seen
    finally:
        sys.setprofile(None)


def run_plan(engine):
    x = g.input(0, Type((8,), DType.F32))
    plan = engine.plan(GraphRequest((g.add(x, x),), (x,)))
    given = engine.put(np.arange(8), DType.F32)
    engine.get(plan.run([given])[0])
    with calls_into_pluggy() as seen:
        (doubled,) = plan.run([given])
        values = engine.get(doubled)
    np.testing.assert_array_equal(values, 2 * np.arange(8))
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(("wrappers", "through"), [((), False), (("validate",), True)])
def test_a_run_goes_through_pluggy_only_where_a_wrapper_is(wrappers, through):
    with engine_of(hal.open("cpu:0", wrappers)) as engine:
        assert bool(run_plan(engine)) == through


def test_each_hook_of_the_cpu_is_a_method_of_the_plugins_own_object():
    with hal.open("cpu:0", ()) as device:
        absent = {hook for hook, need in OPTIONAL.items() if need not in device.info.features}
        for hook in set(hooks(DeviceSpec)) - absent - {"close", *NOTICES}:
            owner = getattr(device, hook).__self__
            assert type(owner).__module__.partition(".")[0] == "hal_plugin_cpu", hook


def test_the_plugin_compiles_what_the_compiler_writes_in_its_own_process():
    x, w, bias = models.source(0, 64, 48), models.source(1, 48, 96), models.source(2, 96)
    table, at = models.source(3, 64, 48), g.input(4, Type((32,), DType.I64))
    gelu = models.gelu_of_product(x, w, bias)
    outputs = (gelu, models.softmax(x), g.reduce("sum", gelu, (0,)), g.gather(table, at, 0))
    with hal.open("cpu:0", ()) as device:
        graph = compile_graph(GraphRequest(outputs, (x, w, bias, table, at)), device.info)
    assert all(is_known(call.source.text) for call in graph.calls)
