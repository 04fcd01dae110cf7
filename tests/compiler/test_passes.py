"""Each pass of the compiler gives a valid graph of the same meaning."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given

from hal.core.dtypes import DType
from hal.tile.node import Node, Type, toposort
from hal.tile.numeric import NUMPY
from stack import ops as g
from stack.compiler.graph.attention import fold
from stack.compiler.graph.prepare import PASSES
from stack.compiler.program import GraphRequest
from stack.ir.interpret import interpret
from stack.ir.text import parse_graph, print_graph
from stack.ir.verify import verify
from stack.ops.error import GraphError
from tests.compiler.graphs import requests
from tests.compiler.growing import Growing
from tests.compiler.mesh.attention import attention, attention_of
from tests.compiler.test_random_graphs import budget, small_thresholds, tolerance


def keeps_meaning(
    outputs: tuple[Node, ...],
    inputs: Mapping[Node, np.ndarray],
    expected: Sequence[np.ndarray],
    near: Sequence[float],
) -> tuple[Node, ...]:
    """The graph after all passes; it was valid and of the same meaning after each one."""
    for run in (*PASSES, fold):
        outputs = run(outputs)
        verify(outputs)
        for found, wanted, most in zip(interpret(outputs, inputs), expected, near, strict=True):
            assert found.dtype == wanted.dtype
            exact, other = wanted.astype(np.float64), found.astype(np.float64)
            np.testing.assert_allclose(other, exact, most, most, err_msg=str(run))
    return outputs


@pytest.mark.slow
@pytest.mark.turns
@budget(60)
@given(requests())
def test_random_graphs_stay_valid_and_mean_the_same(made: tuple[GraphRequest, Growing]) -> None:
    request, d = made
    with small_thresholds():
        keeps_meaning(
            request.outputs,
            {n: d.values[n] for n in request.inputs},
            [d.values[n] for n in request.outputs],
            [tolerance(n) if d.rough(n) else 0 for n in request.outputs],
        )


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_one_valid_node_of_the_same_meaning(causal: bool, dtype: DType) -> None:
    out, inputs = attention((2, 9, 4), 9, causal, dtype)
    rng = np.random.default_rng(0)
    arrays = {n: rng.standard_normal(n.shape).astype(NUMPY[dtype]) for n in inputs}
    near = 1e-5 if dtype is DType.F32 else 2e-2
    folded = keeps_meaning((out,), arrays, interpret([out], arrays), [near])
    assert [n.op for n in toposort(folded)].count("attention") == 1
    assert parse_graph(print_graph(folded)) == folded
    if dtype is DType.F32:
        expected = attention_of(*arrays.values(), causal)
        np.testing.assert_allclose(interpret(folded, arrays)[0], expected, rtol=1e-5, atol=1e-6)


Q, K, V = (g.input(i, Type(s, DType.F32)) for i, s in enumerate([(5, 4), (4, 6), (6, 3)]))
SCORES = g.scores(Type((5, 6), DType.F32))


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ((Q, K, K, SCORES), "inner sizes of q and k, or of the weights and v, differ"),
        ((Q, K, V, Q), "exponents are of the shape of q @ k"),
        ((Q, g.cast(K, DType.F64), V, SCORES), "different element types"),
        ((Q, K, g.cast(V, DType.I32), SCORES), "v and the exponents are floats"),
    ],
)
def test_attention_has_a_type_rule(operands: tuple[Node, ...], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        g.attention(*operands, DType.F32)


def test_scores_alone_have_no_value() -> None:
    with pytest.raises(GraphError, match=re.escape("scores has no value of its own")):
        interpret([SCORES], {})


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 3, 1), (3, 1, 0, 2)])
def test_parts_that_are_padded_and_added_in_any_order_are_joined(order: tuple[int, ...]) -> None:
    whole = g.input(0, Type((3, 8), DType.F32))
    parts = [g.exp(g.slice_axis(whole, 1, 2 * i, 2 * i + 2)) for i in range(4)]
    total = whole
    for i in order:
        total = g.add(total, g.pad(parts[i], (0, 2 * i), (0, 6 - 2 * i)))
    x = np.random.default_rng(3).normal(size=(3, 8)).astype(np.float32)
    (found,) = keeps_meaning((total,), {whole: x}, [x + np.exp(x)], [1e-6])
    assert [n.op for n in toposort((found,))].count("concat") == 1
    assert all(n.op != "pad" for n in toposort((found,)))


def _cut(x: Node, axis: int, start: int, stop: int, step: int, turned: bool) -> Node:
    begins, ends, steps = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
    begins[axis], ends[axis], steps[axis] = start, stop, step
    piece = g.slice(x, begins, ends, steps)
    return g.flip(piece, (axis,)) if turned else piece


def _around(x: Node, axis: int) -> Node:
    """Pieces of x in both directions, with gaps, and one element again and again."""
    one = _cut(x, axis, 3, 4, 1, False)
    many = g.expand(one, [2 if i == axis else n for i, n in enumerate(x.shape)])
    turned = _cut(x, axis, 1, 6, 2, True)
    return g.concat([many, turned, x, _cut(turned, axis, 1, 3, 1, True)], axis)


def test_slices_that_are_put_together_along_several_axes_are_written_once() -> None:
    x = g.input(0, Type((6, 7, 6), DType.F32))
    inner = _around(g.mul(x, x), 0)
    outer = _around(_around(inner, 1), 2)
    values = {x: np.random.default_rng(0).normal(size=x.shape).astype(np.float32)}
    for outputs, count in (((outer,), 1), ((outer, inner), 2)):
        done = keeps_meaning(outputs, values, interpret(outputs, values), [0] * len(outputs))
        assert sum(n.op == "concat" for n in toposort(done)) == count


def test_what_is_put_together_of_several_values_stays() -> None:
    x, y = (g.input(i, Type((6, 7), DType.F32)) for i in range(2))
    outer = _around(g.concat([x, y], 0), 1)
    rng = np.random.default_rng(0)
    values = {n: rng.normal(size=n.shape).astype(np.float32) for n in (x, y)}
    done = keeps_meaning((outer,), values, interpret((outer,), values), [0])
    assert sum(n.op == "concat" for n in toposort(done)) == 2
