"""Every operator of several ranks: devices against the interpreter over a world of ranks, the
interpreter against numpy, and gradients against derivatives of the ranks' summed losses."""

from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hal
from hal.core.dtypes import DType
from hal.core.errors import OperationFailed
from hal.tile.node import Type
from hal.tile.numeric import NUMPY
from stack import ops as g
from stack.comm.device.group import DeviceGroup
from stack.compiler.program import GraphRequest
from stack.framework.reverse import gradients
from stack.ir.world import RankProgram, interpret_world
from stack.ops import OPS
from stack.ops.error import GraphError
from stack.ops.operator import OpKind
from stack.runtime import engine_of
from tests.comm.device.devices import HIDDEN, open_device
from tests.comm.engine.crew import crews

DEVICES = ("cpu:0", "reference:0", HIDDEN)
SIZE = len(DEVICES)
LINES = {"all": [range(SIZE)]}
SHAPE = (SIZE, 2, 5)
PAIRS = ((0, 1), (1, 2))

GRAPHS = {
    "all_reduce": lambda x, counts, kind: g.all_reduce(kind, x, "all"),
    "reduce_to": lambda x, counts, kind: g.reduce_to(kind, x, 1, "all"),
    "broadcast_from": lambda x, counts, kind: g.broadcast_from(x, 2, "all"),
    "all_gather": lambda x, counts, kind: g.all_gather(x, SIZE, "all"),
    "reduce_scatter": lambda x, counts, kind: g.reduce_scatter(kind, x, "all"),
    "all_to_all": lambda x, counts, kind: g.all_to_all(x, "all"),
    "all_to_all_v": lambda x, counts, kind: g.all_to_all_v(x, counts, "all"),
    "send_receive": lambda x, counts, kind: g.send_receive(x, PAIRS, "all"),
}
KINDS = {"all_reduce": "sum prod min max avg", "reduce_to": "sum prod min max"}
KINDS["reduce_scatter"] = KINDS["all_reduce"]


def truth(op, xs, counts, kind):
    """What numpy says for the ranks' values."""
    fold = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max, "avg": np.mean}[kind]
    total = fold(xs, axis=0).astype(xs.dtype)
    kept = np.where(np.arange(10).reshape(2, 5) < counts[..., None, None], xs, 0)
    zero = np.zeros_like(xs[0])
    return {
        "all_reduce": [total] * SIZE,
        "reduce_to": [zero, total, zero],
        "broadcast_from": [xs[2]] * SIZE,
        "all_gather": [xs] * SIZE,
        "reduce_scatter": list(total),
        "all_to_all": list(xs.swapaxes(0, 1)),
        "all_to_all_v": list(kept.swapaxes(0, 1)),
        "send_receive": [zero, xs[0], xs[1]],
    }[op]


def leaves(dtype):
    return g.input(0, Type(SHAPE, dtype)), g.input(1, Type((SIZE,), DType.I64))


def drawn(dtype, seed):
    """Small whole values, whose sums and products are exact, and how many of each part travel."""
    rng = np.random.default_rng(seed)
    low = 0 if dtype.kind in "ub" else -4
    xs = rng.integers(low, 2 if dtype is DType.BOOL else 5, (SIZE, *SHAPE)).astype(NUMPY[dtype])
    return xs, rng.integers(0, 11, (SIZE, SIZE))


def cases():
    return [(op, k) for op in GRAPHS for k in KINDS.get(op, "sum").split()]


class Ranks:
    """Engines of a crew's ranks, of three plugins: memory that the host sees, and one that it does
    not."""

    def __init__(self, crew, stack):
        self.crew = crew
        self.engines = [stack.enter_context(engine_of(open_device(name))) for name in DEVICES]
        self.groups = crew.do(lambda group: DeviceGroup(group, self.engines[group.rank].device))
        for engine, group in zip(self.engines, self.groups, strict=True):
            stack.callback(group.close)
            engine.groups["all"] = group

    def run(self, outputs, values, times=2):
        """What each rank's plan gives for outputs and values of its own, the last time."""

        def one(group):
            engine, given = self.engines[group.rank], values[group.rank]
            arrays = [engine.put(v, n.dtype) for n, v in given.items()]
            plan = engine.plan(GraphRequest(tuple(outputs[group.rank]), tuple(given)))
            for _ in range(times):
                found = plan.run(arrays)
            return [engine.get(a) for a in found]

        return self.crew.do(one)


@pytest.fixture(scope="module")
def ranks():
    with crews(SIZE) as (crew,), ExitStack() as stack:
        yield Ranks(crew, stack)


def worlds(outputs, values):
    """The interpreter's answer."""
    return interpret_world([RankProgram(o, v) for o, v in zip(outputs, values, strict=True)], LINES)


def same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_every_operator_of_several_ranks_is_here():
    assert set(GRAPHS) == {row.name for row in OPS.values() if row.kind is OpKind.EXCHANGE}


def test_what_travels_by_counts_is_counted_by_them(ranks):
    x, counts = leaves(DType.F64)
    xs, numbers = drawn(DType.F64, 7)
    values = [{x: v, counts: n} for v, n in zip(xs, numbers, strict=True)]
    before = [group.sent["all_to_all_v"] for group in ranks.groups]
    ranks.run([(g.all_to_all_v(x, counts, "all"),)] * SIZE, values, times=1)
    for rank, (group, n) in enumerate(zip(ranks.groups, numbers, strict=True)):
        sent = group.sent["all_to_all_v"] - before[rank]
        assert sent == 8 * (n.sum() - n[rank]), rank


@pytest.mark.parametrize(("op", "kind"), cases())
@pytest.mark.parametrize("dtype", [DType.F64, DType.BF16, DType.I32], ids=repr)
def test_ranks_compute_what_the_interpreter_and_numpy_say(ranks, op, kind, dtype):
    """Where the result is used, and where the operand is."""
    x, counts = leaves(dtype)
    xs, numbers = drawn(dtype, 7)
    y = GRAPHS[op](g.add(x, x), counts, kind)
    outputs = [(y, g.neg(y) if dtype is not DType.BOOL else y, g.add(x, x))] * SIZE
    values = [{x: v, counts: n} for v, n in zip(xs, numbers, strict=True)]
    wanted = worlds(outputs, values)
    if not (kind == "avg" and dtype is DType.BF16):  # rounded on the way in numpy
        with np.errstate(all="ignore"):
            expected = truth(op, xs + xs, numbers, kind)
        same([row[:1] for row in wanted], [[e] for e in expected])
    same(ranks.run(outputs, values), wanted)


STEPS = st.lists(
    st.tuples(st.sampled_from(sorted(GRAPHS)), st.integers(0, 4)), min_size=1, max_size=5
)


@pytest.mark.slow
@pytest.mark.turns
@settings(max_examples=15, deadline=None)
@given(STEPS, st.integers(0, 2**32 - 1))
def test_any_graph_of_exchanges_computes_what_the_interpreter_says(ranks, steps, seed):
    x, counts = leaves(DType.F64)
    xs, numbers = drawn(DType.F64, seed)
    nodes = [x]
    for number, (op, back) in enumerate(steps):
        y = GRAPHS[op](nodes[-1 - back % len(nodes)], counts, "max" if number % 2 else "sum")
        if y.shape[:1] == (SIZE,) and y.shape != SHAPE:
            y = g.reshape(g.slice_axis(y, 0, 1, 2), SHAPE)
        nodes.append(g.expand(g.reshape(y, (1, *y.shape)), SHAPE) if y.shape != SHAPE else y)
    outputs = [tuple(nodes[-3:])] * SIZE
    values = [{x: v, counts: n} for v, n in zip(xs, numbers, strict=True)]
    same(ranks.run(outputs, values), worlds(outputs, values))


@pytest.mark.parametrize(("op", "kind"), [(op, k) for op, k in cases() if k in ("sum", "avg")])
def test_a_gradient_is_the_derivative_of_the_sum_of_the_ranks_losses(ranks, op, kind):
    """The loss of a rank is the sum of w * y**2, y being the exchange's; on devices and in the
    interpreter, against differences of the interpreter's losses, which are exact but for
    rounding."""
    x, counts = leaves(DType.F64)
    rng = np.random.default_rng(3)
    y = GRAPHS[op](x, counts, kind)
    w = g.input(2, y.type)
    loss = g.mul(w, g.mul(y, y))
    found = gradients([(loss, g.full_like(loss, 1))], lambda n: n is x)[x]
    values = [
        {x: v, counts: n, w: rng.integers(1, 4, y.shape).astype(np.float64)}
        for v, n in zip(*drawn(DType.F64, 5), strict=True)
    ]
    wanted = worlds([(found,)] * SIZE, values)
    same(ranks.run([(found,)] * SIZE, values), wanted)
    step = 1.0
    for rank in range(SIZE):
        for at in [(0, 0, 0), (1, 1, 2), (2, 0, 4), (1, 0, 3)]:
            losses = []
            for sign in (1, -1):
                moved = [dict(v) for v in values]
                moved[rank][x] = values[rank][x].copy()
                moved[rank][x][at] += sign * step
                losses.append(sum(row[0].sum() for row in worlds([(loss,)] * SIZE, moved)))
            slope = (losses[0] - losses[1]) / (2 * step)  # exact: the loss is quadratic
            np.testing.assert_allclose(wanted[rank][0][at], slope, rtol=1e-12)


def test_two_stages_send_values_on_and_their_gradients_back(ranks):
    """Ranks 0 and 1 have graphs of their own; rank 2 has no part in it and computes something
    else."""
    x, w = g.input(0, Type((4,), DType.F64)), g.input(1, Type((4,), DType.F64))
    sent = g.send_receive(g.mul(x, x), [(0, 1)], "all", "on")
    came = g.send_receive(x, [(0, 1)], "all", "on")
    loss = g.mul(w, g.mul(came, came))
    ones = [(n, g.full_like(n, 1)) for n in (sent, loss)]
    first = gradients(ones[:1], lambda n: n is x)[x]
    second = gradients(ones[1:], lambda n: n is x)[x]
    outputs = [(sent, first), (loss, second), (g.neg(x),)]
    rng = np.random.default_rng(4)
    values = [{x: rng.integers(-4, 5, 4) * 1.0, w: rng.integers(-4, 5, 4) * 1.0} for _ in DEVICES]
    wanted = worlds(outputs, values)
    on, weight = values[0][x], values[1][w]
    np.testing.assert_array_equal(wanted[1][0], weight * on**4)
    np.testing.assert_array_equal(wanted[0][1], 2 * weight * on**2 * 2 * on)
    assert not wanted[0][0].any()
    assert not wanted[1][1].any()
    same(ranks.run(outputs, values), wanted)


def test_messages_do_not_wait_for_collectives():
    """Rank 0 begins a collective in the plan in which it sends; rank 1 receives before that."""
    with crews(2) as (crew,), ExitStack() as stack:
        engines = [stack.enter_context(engine_of(hal.open("cpu:0"))) for _ in range(2)]
        groups = crew.do(lambda group: DeviceGroup(group, engines[group.rank].device))
        for engine, group in zip(engines, groups, strict=True):
            stack.callback(group.close)
            engine.groups["all"] = group
        x = g.input(0, Type((4,), DType.F64))
        total, message = g.all_reduce("sum", x, "all"), g.send_receive(x, [(0, 1)], "all")

        def run(group):
            engine = engines[group.rank]
            given = engine.put(np.full(4, 1.0 + group.rank), DType.F64)
            if group.rank == 0:
                found = engine.plan(GraphRequest((total, message), (x,))).run([given])
                return [engine.get(a).tolist() for a in found]
            found = []
            for n in (message, total):
                found += engine.plan(GraphRequest((n,), (x,))).run([given])
                engine.get(found[-1])
            return [engine.get(a).tolist() for a in found]

        assert crew.do(run) == [[[3.0] * 4, [0.0] * 4], [[1.0] * 4, [3.0] * 4]]


def test_a_message_that_is_waited_for_fails_with_what_ends_the_group():
    with crews(2) as (crew,), ExitStack() as stack:
        engine = stack.enter_context(engine_of(hal.open("cpu:0")))
        other = stack.enter_context(engine_of(hal.open("reference:0")))
        engines = (engine, other)
        groups = crew.do(lambda group: DeviceGroup(group, engines[group.rank].device))
        for one in groups:
            stack.callback(one.close)
        engine.groups["all"] = groups[0]
        x = g.input(0, Type((4,), DType.F32))
        plan = engine.plan(GraphRequest((g.send_receive(x, [(1, 0)], "all", "late"),), (x,)))
        (found,) = plan.run([engine.put(np.ones(4), DType.F32)])
        assert groups[0].failure is None
        crew.groups[1].abort()
        with pytest.raises(OperationFailed, match="rank 1 has aborted the group") as raised:
            engine.get(found)
        assert "(late)" in str(raised.value)
        assert groups[0].failure == raised.value.failure
        (total,) = engine.plan(GraphRequest((g.neg(x),), (x,))).run(
            [engine.put(np.ones(4), DType.F32)]
        )
        np.testing.assert_array_equal(engine.get(total), -np.ones(4))


@pytest.mark.parametrize("wrong", [-1, 11])
def test_numbers_of_elements_that_cannot_be_fail_the_call_on_all_ranks(wrong):
    with crews(2) as (crew,), ExitStack() as stack:
        names = ("cpu:0", HIDDEN)
        engines = [stack.enter_context(engine_of(open_device(name))) for name in names]
        groups = crew.do(lambda group: DeviceGroup(group, engines[group.rank].device))
        for engine, group in zip(engines, groups, strict=True):
            stack.callback(group.close)
            engine.groups["all"] = group
        x, counts = g.input(0, Type((2, 10), DType.F32)), g.input(1, Type((2,), DType.I64))
        request = GraphRequest((g.all_to_all_v(x, counts, "all"),), (x, counts))

        def run(group):
            engine = engines[group.rank]
            given = [engine.put(np.ones((2, 10)), DType.F32)]
            given.append(engine.put(np.array([1, wrong if group.rank else 1]), DType.I64))
            with pytest.raises(OperationFailed) as raised:
                engine.get(engine.plan(request).run(given)[0])
            return str(raised.value)

        said = crew.do(run)
        assert "has no parts of [1, " in said[1]
        assert "0 to 10 fit" in said[1]
        assert "rank 1" in said[0]


def test_an_exchange_that_a_rank_does_not_come_to_is_said():
    x, _ = leaves(DType.F64)
    outputs = [(g.all_reduce("sum", x, "all"),), (g.all_reduce("max", x, "all"),), (g.neg(x),)]
    with pytest.raises(GraphError, match=r"to which not all ranks come: \{0: .*kind='sum'"):
        worlds(outputs, [{x: np.zeros(SHAPE)}] * SIZE)
