"""What wrappers see of the engine: no race, and each fallback."""

from hal_plugin_bytes.device import BytesDevice

import hal
from hal.core.description import Feature
from hal.core.device import Device
from hal.core.wrappers.fallbacks import Fallbacks
from stack.runtime.engine import Engine
from stack.runtime.plan import Plan


def no_compiler(request):
    raise AssertionError("these tests bring compiled graphs")


def branches(calls):
    """Two branches that may run at once, joined at the end; temporaries are reused."""
    r = calls.ref
    steps = [
        calls.mul(r("input", 0), r("input", 0), r("temp", 0)),
        calls.mul(r("input", 1), r("input", 1), r("temp", 1)),
        calls.add(r("temp", 0), r("temp", 1), r("temp", 2)),
        calls.scale(r("temp", 2), 0.5, r("temp", 3)),
        calls.add(r("temp", 3), r("input", 0), r("output", 0)),
    ]
    return calls.graph(2, 1, steps, temps=4)


def test_a_plan_runs_without_a_race(calls_for, random_arrays):
    with Engine(hal.open("cpu:0", wrappers=["races"]), no_compiler, timeout_s=20) as engine:
        plan = Plan(engine.resources, branches(calls_for(engine.device, 100)))
        _, arrays = random_arrays(engine, 2)
        for _ in range(3):
            engine.get(plan.run(arrays)[0])


def test_each_run_without_graphs_is_a_notice(calls_for, random_arrays):
    fallbacks = Fallbacks()
    device = Device(BytesDevice(features=()), "bytes:0", [fallbacks])
    with Engine(device, no_compiler, timeout_s=20) as engine:
        plan = Plan(engine.resources, branches(calls_for(device, 100)))
        _, arrays = random_arrays(engine, 2)
        plan.run(arrays)
        plan.run(arrays)
        assert engine.fallbacks == {"launches one by one: the device has no graph": 2}
    assert fallbacks.counts == {("bytes:0", Feature.GRAPH, "launches one by one"): 2}
