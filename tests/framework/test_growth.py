"""What a process holds after many functions and shapes: plans, programs and mappings, counted."""

import gc
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

import hal
import stack.framework as ht
from stack.framework import devices as device
from stack.runtime import Holdings
from stack.runtime.opening import engine_of

JIT = sys.modules["stack.framework.jit"]
MAPPINGS_EACH = 3
"""No more mappings of memory than these for each program of cpu:0, and SPARE for the process."""
SPARE = 64


@pytest.fixture
def held(monkeypatch):
    """What an engine of cpu:0 holds now, which is the default one."""
    # The other tests of this folder run on an interpreter.
    with engine_of(hal.open("cpu:0")) as found, device.default_engine("grown:0", found):
        yield lambda: (gc.collect(), found.sync(), found.held())[-1]


def mappings():
    return len(Path("/proc/self/maps").read_text().splitlines())


def scaled(factor):
    @ht.jit
    def function(x):
        return x * factor

    return function


def test_a_functions_plans_go_with_it_at_once(held):
    function, x = scaled(2.5), ht.ones(16)
    assert function(x).tolist() == [2.5] * 16
    before = held()
    (captured,) = next(iter(function._captured.values()))
    plan = weakref.ref(captured.plan)
    del captured, function
    assert plan() is None, "without a collection"
    assert held().plans == before.plans - 1
    assert held().programs == before.programs - 1


def check(double, size):
    assert double(np.ones(size, np.float32)).tolist() == [2] * size


@pytest.mark.slow
def test_functions_that_are_gone_hold_nothing(held):
    x = ht.ones(16)
    assert scaled(0.25)(x).sum().item() == 4
    before, mapped = held(), mappings()
    for number in range(120):
        assert scaled(number + 0.5)(x).sum().item() == 16 * (number + 0.5)
    assert held() == before
    assert mappings() - mapped <= SPARE


def test_functions_of_equal_graphs_share_a_plan(held):
    x = ht.ones(16)
    first, second = scaled(3), scaled(3)
    assert first(x).tolist() == second(x).tolist()
    ((one,),), ((other,),) = first._captured.values(), second._captured.values()
    assert one.plan is other.plan


@pytest.mark.slow
def test_shapes_of_one_function_are_bounded(held, monkeypatch):
    """The least recently used ones are traced anew, and give the same."""
    monkeypatch.setattr(JIT, "PLANS", 20)
    function, before, mapped = scaled(2), held(), mappings()
    for size in range(1, 121):
        check(function, size)
        check(function, 7)  # used again and again
    # Traced for 1, for 7, which was first of the others, and for all others.
    assert (function.traced, function.plans) == (3, 20)
    found = held()
    # One program for the size that was first, and one for all others, whose first plan is held.
    assert found == Holdings(before.plans + 21, before.kept, before.programs + 2)
    assert mappings() - mapped <= MAPPINGS_EACH * 2 + SPARE
    check(function, 120)
    check(function, 7)
    check(function, 2)
    assert (function.traced, function.plans) == (3, 20)
    del function
    assert held() == before


def test_plans_for_many_flags_of_one_kind_of_arguments_are_bounded(held, monkeypatch):
    monkeypatch.setattr(JIT, "PLANS", 2)
    weights = [ht.ones(3) for _ in range(3)]

    @ht.jit
    def total(x):
        return sum((w * x).sum() for w in weights if w.requires_grad) + x.sum()

    for turn in range(12):
        for number, weight in enumerate(weights):
            weight.requires_grad_(bool(turn >> number & 1))
        expected = 3 * (1 + sum(w.requires_grad for w in weights))
        assert total(ht.ones(3)).item() == expected
        assert total.plans == sum(map(len, total._captured.values())) <= 2


def test_a_function_that_raises_leaves_nothing(held):
    @ht.jit
    def function(x, number):
        raise KeyError(number)

    for number in range(5):
        with pytest.raises(KeyError):
            function(ht.ones(3), number)
    assert (function.plans, len(function._captured)) == (0, 0)
