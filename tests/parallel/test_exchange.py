"""Graphs that combine values between ranks, compiled and run on devices in threads, against numpy
over the values of all ranks at once."""

from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hal
from hal.core.dtypes import DType
from hal.core.errors import DeadlineExceeded, InvalidCall, OperationFailed
from hal.core.values import ReduceKind
from hal.tile.node import Type
from stack import ops as g
from stack.comm.device.group import DeviceGroup
from stack.compiler.compile import compile_graph
from stack.compiler.program import ExchangeCall, GraphRequest, KernelCall
from stack.compiler.tune.tunable import tunables
from stack.framework.reverse import gradients
from stack.ir.world import RankProgram, interpret_world
from stack.runtime import engine_of
from stack.runtime.exchange import Exchange, needs
from stack.runtime.hazards import Access, ByteRange
from tests.comm.engine.crew import crews

N = 12
X, Y = (g.input(i, Type((N,), DType.F64)) for i in range(2))
DEVICES = ("cpu:0", "reference:0")


class Ranks:
    """A crew whose ranks have devices."""

    def __init__(self, crew, stack, devices=DEVICES):
        self.crew = crew
        self.engines = [stack.enter_context(engine_of(hal.open(name))) for name in devices]
        self.groups = crew.do(lambda group: DeviceGroup(group, self.engines[group.rank].device))
        for engine, group in zip(self.engines, self.groups, strict=True):
            stack.callback(group.close)
            engine.groups["data"] = group

    def run(self, request, values, times=1):
        """What every rank's plan gives for its rows of values, the last time."""

        def one(group):
            engine = self.engines[group.rank]
            inputs = [engine.put(v, DType.F64) for v in values[group.rank]]
            plan = engine.plan(request)
            for _ in range(times):
                outputs = plan.run(inputs)
            return [engine.get(a) for a in outputs]

        return self.crew.do(one)


@pytest.fixture(scope="module")
def ranks():
    with crews(len(DEVICES)) as (crew,), ExitStack() as stack:
        yield Ranks(crew, stack)


def together(outputs, values):
    """The outputs of every rank, by the interpreter."""
    programs = [RankProgram(outputs, dict(zip((X, Y), row, strict=True))) for row in values]
    return interpret_world(programs, {"data": [range(len(values))]})


def total(x):
    return g.expand(g.reduce("sum", x), (N,))


def turned(x, y):
    return g.concat([g.slice_axis(x, 0, 5, N), g.slice_axis(y, 0, 0, 5)], 0)


STEPS = {
    "add": lambda x, y: g.add(x, y),
    "sub": lambda x, y: g.sub(x, y),
    "total": lambda x, y: total(x),
    "turned": turned,
    "flip": lambda x, y: g.flip(x, 0),
    "scan": lambda x, y: g.scan("sum", x, 0),
    "scatter": lambda x, y: g.scatter("sum", x, g.flip(g.arange(N), 0), y, 0),
    "joined": lambda x, y: g.slice_axis(
        g.concat([g.all_reduce("sum", x, "data"), g.all_reduce("max", y, "data")], 0), 0, 4, N + 4
    ),
    **{
        kind: lambda x, y, kind=kind: g.all_reduce(kind, x, "data")
        for kind in ("sum", "max", "avg")
    },
}
NUMBER = st.integers(0, 5)


@pytest.mark.slow
@pytest.mark.turns
@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), NUMBER, NUMBER), min_size=1, max_size=7),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_any_graph_with_exchanges_computes_what_all_ranks_together_do(ranks, steps, update, seed):
    nodes = [X, Y]
    for step, i, j in steps:
        nodes.append(STEPS[step](nodes[-1 - i % len(nodes)], nodes[-1 - j % len(nodes)]))
    outputs = tuple(nodes[-3:])
    updates = ((len(outputs) - 1, 0),) if update else ()
    values = np.random.default_rng(seed).integers(-4, 5, (len(DEVICES), 2, N)).astype(np.float64)
    found = ranks.run(GraphRequest(outputs, (X, Y), updates), values)
    np.testing.assert_array_equal(found, together(outputs, values))


def test_a_plan_runs_again_and_again_on_what_it_has_updated(ranks):
    request = GraphRequest((g.add(g.all_reduce("avg", X, "data"), Y),), (X, Y), ((0, 0),))
    values = np.arange(4.0 * N).reshape(2, 2, N)
    found = ranks.run(request, values, times=20)
    for _ in range(20):
        values[:, 0] = values[:, 0].mean(0) + values[:, 1]
    np.testing.assert_allclose([row[0] for row in found], values[:, 0], rtol=1e-12)


@pytest.mark.parametrize("kind", ["sum", "avg"])
def test_a_gradient_goes_through_an_exchange_to_all_ranks(ranks, kind):
    """Of the sum over ranks of y * combined(x)**2, by x; the ranks' y differ."""
    combined = g.all_reduce(kind, X, "data", "x")
    loss = g.mul(Y, g.mul(combined, combined))
    found = gradients([(loss, g.full_like(loss, 1))], lambda n: n is X)[X]
    x, y = np.random.default_rng(3).integers(-4, 5, (2, 2, N)).astype(np.float64)
    values = np.stack([x, y], 1)
    share = 1 if kind == "sum" else 1 / 2
    wanted = 2 * share * y.sum(0) * share * x.sum(0)
    for (got,) in ranks.run(GraphRequest((found,), (X, Y)), values):
        np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_an_exchange_without_a_gradient_says_so():
    """Where one is wanted below it alone."""
    for kind in ("max", "min", "prod"):
        y = g.add(g.all_reduce(kind, X, "data"), Y)
        ones = g.full_like(y, 1)
        assert gradients([(y, ones)], lambda n: n is Y)[Y] is ones
        with pytest.raises(InvalidCall, match=f"by {kind} among group 'data' has no gradient"):
            gradients([(y, ones)], lambda n: n is X)


def test_what_is_needed_first_is_combined_first_in_place_and_beside_the_rest(ranks):
    w = g.input(0, Type((16, 16), DType.F32))
    powers = [w]
    for _ in range(4):
        powers.append(g.matmul(powers[-1], w))
    pieces = [g.all_reduce("avg", g.neg(p), "data") for p in powers[:0:-1]]
    request = GraphRequest((g.concat(pieces, 0),), (w,))
    calls = compile_graph(request, ranks.engines[0].device.info).calls
    assert [type(c) for c in calls] == [KernelCall, ExchangeCall] * 4
    exchanges = [c for c in calls if isinstance(c, ExchangeCall)]
    assert {(c.group, c.call.reduce, c.dst.kind) for c in exchanges} == {
        ("data", ReduceKind.AVG, "output")
    }
    assert [c.dst == c.src for c in exchanges] == [True] * 4
    assert [c.dst.offset_nbytes // 1024 for c in exchanges] == [3, 2, 1, 0]


def test_what_others_read_too_is_combined_into_a_place_of_its_own_without_a_copy(ranks):
    summed = g.neg(X)
    outputs = (g.all_reduce("sum", summed, "data"), g.all_reduce("max", summed, "data"), summed)
    calls = compile_graph(GraphRequest(outputs, (X,)), ranks.engines[0].device.info).calls
    assert [type(c) for c in calls] == [KernelCall, ExchangeCall, ExchangeCall]
    assert [(c.dst.index, c.src.index) for c in calls[1:]] == [(0, 2), (1, 2)]


def test_each_exchange_is_waited_for_once_and_only_by_what_touches_its_bytes():
    def touches(*parts):
        return Access((), tuple(ByteRange("memory", 10 * p, 10 * p + 10) for p in parts))

    accesses = [touches(0), touches(0), touches(1), touches(1), touches(0, 2), touches(0, 1)]
    is_exchange = [False, True, False, True, False, False]
    assert needs(accesses, is_exchange) == [(), (), (), (), (0,), (1,)]


def test_kernels_that_need_nothing_of_an_exchange_are_submitted_before_those_that_wait(ranks):
    w = g.input(0, Type((16, 16), DType.F32))
    summed = g.all_reduce("sum", g.neg(w), "data")
    request = GraphRequest((g.add(summed, g.matmul(g.matmul(w, w), w)),), (w,))
    launched, _ = ranks.engines[0].plan(request)._place()
    waits = [step.needs for step in launched.steps if not isinstance(step.part, Exchange)]
    assert waits == [(), (), (0,)]


def test_a_group_that_was_not_joined_is_an_error_with_its_name(ranks):
    engine = ranks.engines[0]
    plan = engine.plan(GraphRequest((g.all_reduce("sum", X, "model"),), (X,)))
    with pytest.raises(InvalidCall, match="'model', a group that this engine has not joined"):
        plan.run([engine.put(np.zeros(N), DType.F64)])


def test_after_a_run_that_broke_off_what_comes_next_waits_for_the_exchange_that_it_began(ranks):
    first, second = ranks.engines
    value = np.ones(N)
    pieces = (g.all_reduce("sum", X, "data"), g.all_reduce("sum", g.neg(g.exp(X)), "model"))
    with pytest.raises(InvalidCall, match="'model'"):
        first.plan(GraphRequest(pieces, (X,))).run([first.put(value, DType.F64)])
    with pytest.raises(DeadlineExceeded):  # the other rank is still to come
        first.sync(0.01)
    second.plan(GraphRequest(pieces[:1], (X,))).run([second.put(value, DType.F64)])
    first.sync()


def test_what_ends_the_group_fails_what_needs_it_and_the_engine_goes_on():
    with crews(2) as (crew,), ExitStack() as stack:
        ranks = Ranks(crew, stack)
        crew.groups[1].abort()
        engine = ranks.engines[0]
        given = engine.put(np.ones(N), DType.F64)
        (failed,) = engine.plan(GraphRequest((g.all_reduce("sum", X, "data"),), (X,))).run([given])
        with pytest.raises(OperationFailed, match="rank 1 has aborted the group"):
            engine.get(failed)
        (whole,) = engine.plan(GraphRequest((g.neg(X),), (X,))).run([given])
        np.testing.assert_array_equal(engine.get(whole), -np.ones(N))


@pytest.mark.parametrize("devices", [DEVICES, ("reference:0", "reference:1")])
def test_ranks_whose_plans_begin_equal_exchanges_in_two_orders_are_told_both_names(devices):
    """The deeper one comes later; in the second case the plugin's own group is there for them."""
    with crews(2) as (crew,), ExitStack() as stack:
        ranks = Ranks(crew, stack, devices)

        def run(group):
            engine = ranks.engines[group.rank]
            deep = g.neg(g.exp(g.exp(X)))
            values = (deep, Y) if group.rank else (Y, deep)
            names = ("weights", "biases")
            outputs = tuple(
                g.all_reduce("sum", v, "data", name) for v, name in zip(values, names, strict=True)
            )
            inputs = [engine.put(np.ones(N), DType.F64) for _ in range(2)]
            found = engine.plan(GraphRequest(outputs, (X, Y))).run(inputs)
            with pytest.raises(OperationFailed) as raised:
                engine.get(found[0])
            return str(raised.value)

        for said in crew.do(run):
            assert "rank 0 makes call" in said
            assert "rank 1 makes call" in said
            assert said.count("of 12 f64 (weights)") >= 1 <= said.count("of 12 f64 (biases)")


def test_exchanges_have_no_schedule_to_measure(ranks):
    w = g.input(0, Type((64, 64), DType.F32))
    info = ranks.engines[0].device.info
    products = [g.matmul(w, w), g.all_reduce("sum", g.matmul(w, w), "data")]
    plain, shared = (tunables(GraphRequest((p,), (w,)), info) for p in products)
    assert [t.problem for t in plain] == [t.problem for t in shared] != []
