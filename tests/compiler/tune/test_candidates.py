"""What holds for every candidate, and that each computes what the rules' own schedule computes."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.compiler.templates.blocking import (
    Blocks,
    MatmulShape,
    choose_blocks,
    scratch_budget,
    scratch_of,
)
from stack.compiler.templates.group_matmul import LANE_SUMS, choose_block
from stack.compiler.templates.schedule import (
    Choices,
    LoopProblem,
    LoopSizes,
)
from stack.compiler.tune import candidates, tunables
from stack.compiler.tune.candidates import MOST
from stack.ir.interpret import interpret
from tests.compiler.lowered import SIMD, run_lowered
from tests.compiler.test_blocking import DEVICES, SHAPES

F32 = DType.F32
SMALL = replace(SIMD, limits=replace(SIMD.limits, vector_nbytes=16, caches=(512, 4096)))
GROUPS = replace(SIMD, limits=replace(SIMD.limits, vector_nbytes=0, lanes=32))
"""A device on which groups of lanes run instances."""


@pytest.mark.slow
@pytest.mark.turns
@settings(max_examples=25, deadline=None)
@given(SHAPES, DEVICES)
def test_candidates_of_a_product_nest_and_fit(shape, info):
    first, *others = candidates(shape, info)
    assert (first.schedule, first.predicted) == (choose_blocks(shape, info), 1)
    assert len(others) < MOST
    assert [c.predicted for c in others] == sorted(c.predicted for c in others)
    for t in (c.schedule for c in others):
        assert t.kt % t.unroll == t.kc % t.kt == 0
        assert t.mc % t.mr == t.mp % t.mr == t.np % t.nr == 0
        assert t.mr <= t.mc <= t.mp < shape.m + t.mr
        assert t.np < shape.n + t.nr
        assert scratch_of(shape, t)(t.mp, t.np) <= scratch_budget(info)


@pytest.mark.parametrize("shape", [(1, 512, 512), (512, 512, 512), (3, 5, 7)])
def test_a_product_has_different_candidates(shape):
    m, n, k = shape
    listed = candidates(MatmulShape(1, m, n, k, "k", "n", F32, F32), SIMD)
    tiles = {(c.schedule.mr, c.schedule.nr) for c in listed}
    assert len(listed) == len({c.schedule for c in listed})
    assert len(tiles) >= 3


def test_blocks_of_groups_begin_with_the_rules_and_fit():
    shape = MatmulShape(1, 100, 60, 40, "k", "n", F32, F32)
    listed = candidates(shape, GROUPS)
    blocks = [c.schedule for c in listed]
    assert (blocks[0], listed[0].predicted) == (choose_block(shape, GROUPS), 1)
    assert len(set(blocks)) == len(blocks) > 8
    assert all(b.rows * b.columns <= LANE_SUMS * 32 for b in blocks)


def test_candidates_of_loops_begin_with_the_rules():
    listed = candidates(LoopProblem("add_9", "", 9 << 20, 9, 1 << 20), SIMD)
    assert (listed[0].schedule, listed[0].predicted) == (LoopSizes(), 1)
    assert len({c.schedule for c in listed}) == len(listed) == MOST


def test_a_schedule_of_another_family_is_refused():
    with pytest.raises(TypeError, match="no schedule for"):
        Choices({LoopProblem("add_9", "", 9, 9, 9): Blocks(1, 8, 1, 1, 1, 1, 1, 8)})


# every candidate computes the same


def mlp(x: Node, w: Node) -> Node:
    """A product with both operands' edges, an epilogue and a reduction after it."""
    y = g.matmul(x, g.permute(w, (1, 0)))
    return g.reduce("sum", g.mul(y, g.tanh(y)), (0,))


def softmax(x: Node, w: Node) -> Node:
    """Reductions over rows, and elements that wait for them."""
    top = g.expand(g.reduce("max", x, (1,)), x.shape)
    e = g.exp(g.sub(x, top))
    return g.div(e, g.expand(g.reduce("sum", e, (1,)), x.shape))


def long_elementwise(x: Node, w: Node) -> Node:
    """Elements along one axis, in several chunks."""
    flat = g.reshape(x, (x.type.size,))
    return g.add(flat, g.mul(flat, flat))


def batched(x: Node, w: Node) -> Node:
    """Products that have the contraction in front."""
    a = g.reshape(x, (2, 33, 19))
    return g.matmul(g.permute(a, (0, 2, 1)), a)


GRAPHS = [mlp, softmax, long_elementwise, batched]
SHAPES_OF = {mlp: ((13, 130), (11, 130)), softmax: ((40, 37), (1,)), batched: ((33, 38), (1,))}


@cache
def case(make):
    """The request, its inputs' values and the outputs that the graph interpreter gives."""
    shapes = SHAPES_OF.get(make, ((61, 67), (1,)))
    inputs = [g.input(i, Type(shape, F32)) for i, shape in enumerate(shapes)]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    output = make(*inputs)
    expected = interpret([output], dict(zip(inputs, arrays, strict=True)))
    return GraphRequest((output,), tuple(inputs)), arrays, expected


def small(schedule):
    """A loop schedule at sizes that small tensors pass."""
    if not isinstance(schedule, LoopSizes):
        return schedule
    return LoopSizes(schedule.unroll, schedule.rows_on_grid >> 4, schedule.chunk >> 4)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("info", [SMALL, GROUPS], ids=["cores", "groups"])
@pytest.mark.parametrize("make", GRAPHS, ids=lambda f: f.__name__)
@settings(max_examples=4, deadline=None)
@given(st.data())
def test_any_candidate_computes_the_graph(make, info, data):
    request, arrays, expected = case(make)
    chosen = {
        t.problem: small(data.draw(st.sampled_from(candidates(t.problem, info))).schedule)
        for t in tunables(request, info)
    }
    found, _ = run_lowered(request.outputs, request.inputs, arrays, (), info, Choices(chosen))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-4)


def test_problems_are_told_apart_and_counted():
    x = g.input(0, Type((24, 24), F32))
    one = g.matmul(x, x)
    two = g.matmul(g.permute(one, (1, 0)), one)
    request = GraphRequest((g.matmul(two, two),), (x,))
    found = {t.problem: t.count for t in tunables(request, SIMD)}
    plain = MatmulShape(1, 24, 24, 24, "k", "n", F32, F32)
    assert found == {plain: 2, replace(plain, a_contiguous="m"): 1}


def test_a_schedule_leaves_the_call_as_it_is_but_for_the_kernel():
    request, _, _ = case(mlp)
    for tunable in tunables(request, SMALL):
        calls = [tunable.kernel(c.schedule) for c in candidates(tunable.problem, SMALL)[:12]]
        assert len({call.buffers for call in calls}) == 1
        assert len({call.kernel for call in calls}) > 1 or isinstance(tunable.problem, LoopProblem)
