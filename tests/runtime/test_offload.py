"""Values that wait in the host's memory: the same results, within fewer bytes of the device."""

from dataclasses import replace

import numpy as np
import pytest

from stack.memory.plan import plan
from stack.runtime.offload import copied_nbytes, offloaded
from stack.runtime.placement import host_sizes, lifetimes
from stack.runtime.plan import Plan
from tests.draw import stream

CALLS = 40
WINDOW = 12
"""How many calls back a value is read."""


def temps_nbytes(graph):
    return plan(lifetimes(graph, graph.temps), 64).arena_nbytes


INPUT = np.float32(1) + np.float32(1e-3) * np.arange(100, dtype=np.float32)


def program(calls, draw):
    """Calls that read values of long ago and overwrite some, and the same on numbers of numpy. They
    compute no infinity from INPUT with any signs."""
    while True:
        graph, expected = drawn(calls, draw)
        with np.errstate(all="ignore"):
            expected([INPUT.max()] * 2, computed := [])
        if np.isfinite(computed).all():
            return graph, expected


def drawn(calls, draw):
    made, steps, temps = [], [], 0
    for i in range(CALLS):
        known = [("input", 0), ("input", 1), *(("temp", t) for t in range(temps))]
        a, b = (draw.choice(known[-draw.choice((2, WINDOW, CALLS)) :]) for _ in range(2))
        is_new = i == 0 or draw.random() < 0.8
        c = ("temp", temps if is_new else draw.randrange(temps))
        if i == CALLS - 1:
            c = ("output", 0)
        else:
            temps += is_new
        op = draw.choice(("add", "mul"))
        made.append(getattr(calls, op)(*(calls.ref(*x) for x in (a, b, c))))
        steps.append((op, a, b, c))

    def expected(inputs, computed=None):
        values = {("input", i): x for i, x in enumerate(inputs)}
        for op, a, b, c in steps:
            values[c] = values[a] + values[b] if op == "add" else values[a] * values[b]
            if computed is not None:
                computed.append(values[c])
        return values["output", 0]

    return calls.graph(2, 1, made, temps), expected


def least_of(graph):
    return temps_nbytes(offloaded(graph, 0, 1 << 40, temps_nbytes))


@pytest.mark.parametrize("number", range(3))
def test_values_come_back_as_they_went(engine, calls, number):
    draw = stream(f"offload {number} {engine.device.name}")
    graph, expected = program(calls, draw)
    whole, least = temps_nbytes(graph), least_of(graph)
    used = [{r.index for r in c.args if r.kind == "temp"} for c in graph.calls]
    assert max(map(len, used)) * 448 <= least < whole  # 400 bytes each, aligned
    inputs = [INPUT, INPUT]
    for budget in (least, draw.randrange(least, whole)):
        found = offloaded(graph, budget, 1 << 40, temps_nbytes)
        assert temps_nbytes(found) <= budget
        ready = Plan(engine.resources, found)
        for _ in range(2):  # the second run overwrites what the first one left with the host
            inputs = [x * draw.choice((-1, 1)) for x in inputs]
            (got,) = ready.run([engine.put(x, calls.type.dtype) for x in inputs])
            assert engine.get(got).tobytes() == expected(inputs).tobytes(), (budget, found)


def test_all_budgets_have_one_least(calls):
    """Though values of many sizes leave gaps, so that less in use may take more."""
    draw = stream("one least")
    for room in (4000, 20000, 1 << 40):
        graph, _ = program(calls, draw)
        graph = replace(graph, temps=tuple(draw.randrange(1, 4000) for _ in graph.temps))
        whole, least = temps_nbytes(graph), temps_nbytes(offloaded(graph, 0, room, temps_nbytes))
        budgets = [least - 1, least, *(draw.randrange(whole // 4, whole) for _ in range(40))]
        for budget in budgets:
            found = temps_nbytes(offloaded(graph, budget, room, temps_nbytes))
            assert found <= budget if budget >= least else found == least, (budget, room)


def test_the_host_keeps_no_more_than_it_may(engine, calls):
    draw = stream("host budget")
    graph, _ = program(calls, draw)
    whole, least = temps_nbytes(graph), least_of(graph)
    for room in (0, 400, 1200):
        found = offloaded(graph, 0, room, temps_nbytes)
        assert sum(host_sizes(found)) <= room
        assert least <= temps_nbytes(found) <= whole
        # Room for one value may be too little to save any.
        assert (copied_nbytes(found) > 0) is (temps_nbytes(found) < whole)
        assert room or not copied_nbytes(found)
    assert offloaded(graph, whole, 1 << 40, temps_nbytes) is graph


def test_what_is_with_the_host_already_is_not_copied_there_again(calls):
    """A value that is read three times with long pauses goes there once, and comes back twice."""
    x, y = calls.ref("input", 0), calls.ref("output", 0)
    keep, *others = [calls.ref("temp", i) for i in range(8)]
    made = [calls.mul(x, x, keep)]
    for i in (0, 3):
        a, b, c = others[i : i + 3]
        made += [calls.add(x, x, a), calls.add(x, a, b), calls.add(a, b, c)]
        made += [calls.add(keep, c, others[6] if i == 0 else y)]
    made.insert(5, calls.mul(others[6], x, others[6]))
    found = offloaded(calls.graph(1, 1, made, 8), 3 * 448, 1 << 40, temps_nbytes)
    assert copied_nbytes(found) == 3 * 400
