"""Stored values that are gathered for their uses: the same values, and few of them at one time."""

from itertools import count

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.node import Type, substitute, toposort
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.framework.reverse import gradients
from stack.ir.world import RankProgram, interpret_world
from stack.parallel.gathers import gathered_for_uses
from stack.parallel.partition import Spread, partitioned, rank_input
from stack.parallel.placement import Replicated, Row
from stack.parallel.scatter import placed_value
from stack.runtime import engine_for
from tests.draw import stream

RANKS, ROWS, WIDTH, LAYERS = 2, 3, 4, 4
MATRIX = Type((WIDTH, WIDTH), DType.F32)
NBYTES = MATRIX.nbytes


def network():
    """Inputs, and outputs: the derivatives by the matrices of a chain of layers."""
    x = g.input(0, Type((ROWS, WIDTH), DType.F32))
    matrices = [g.input(1 + i, MATRIX) for i in range(LAYERS)]
    y = x
    for w in matrices:
        y = g.tanh(g.matmul(y, w))
    loss = g.reduce("sum", g.mul(y, y))
    found = gradients([(loss, g.full_like(loss, 1))], lambda n: n in matrices)
    return x, matrices, [found[w] for w in matrices]


@pytest.fixture(scope="module")
def cut():
    """A rank's graph whose matrices are stored in rows, and the ranks' inputs."""
    x, matrices, outputs = network()
    row = Row(MATRIX.size)
    rank = rank_input(1 + LAYERS)
    spread = Spread(RANKS, "line", dict.fromkeys(matrices, row), {}, [row] * LAYERS)
    numbers = count()
    found = partitioned(outputs, spread, rank, lambda what: f"{what}, {next(numbers)}")
    seed = stream("gathers").randrange(1000)
    rng = np.random.default_rng(seed)
    values = {n: rng.standard_normal(n.shape, np.float32) for n in (x, *matrices)}

    def own(r):
        parts = {n: placed_value(v, row, RANKS, r) for n, v in values.items() if n is not x}
        inputs = {found.inputs[n]: v for n, v in {x: values[x], **parts}.items()}
        return {**inputs, rank: np.array(r)}

    return found.outputs, [own(r) for r in range(RANKS)]


def values_of(outputs, inputs):
    programs = [RankProgram(outputs, own) for own in inputs]
    return interpret_world(programs, {"line": [list(range(RANKS))]})


def gathers(outputs):
    return [n for n in toposort(outputs) if n.op == "all_gather"]


@pytest.mark.parametrize("matrices", [1, 2, 100])
def test_what_is_gathered_in_buckets_for_its_uses_gives_the_same_bits(cut, matrices):
    outputs, inputs = cut
    found = gathered_for_uses(outputs, "line", matrices * NBYTES)
    for one, other in zip(values_of(outputs, inputs), values_of(found, inputs), strict=True):
        for a, b in zip(one, other, strict=True):
            assert a.tobytes() == b.tobytes()


def test_a_matrix_is_gathered_again_backward_and_waits_for_the_use_before(cut):
    outputs, _ = cut
    assert len(gathers(outputs)) == LAYERS
    found = gathers(gathered_for_uses(outputs, "line", NBYTES))
    # The first layer's matrix has no use backward, and the last one's is still there
    assert len(found) == LAYERS + LAYERS - 2
    assert len({n["name"] for n in found}) == len(found)
    depth = {n: sum(m in found for m in toposort([n])) for n in found}
    order = sorted(found, key=depth.__getitem__)
    # Of a gather those before the one before it are used up: it depends on all of them
    for number, n in enumerate(order):
        below = set(toposort([n]))
        assert all(m in below for m in order[: max(number - 1, 0)]), number


def test_other_groups_and_results_that_are_whole_stay(cut):
    outputs, _ = cut
    assert gathered_for_uses(outputs, "other") == tuple(outputs)
    first = gathers(outputs)[0]
    assert first in gathered_for_uses([*outputs, first], "line")


def test_sums_along_vectors_have_the_bits_of_vectors_that_are_whole():
    """On a device, whose sums along an axis that is in pieces are made in another order."""
    ranks, x = 4, g.input(0, Type((8, 32), DType.F32))
    vectors = [g.input(i, Type((32,), DType.F32)) for i in (1, 2)]
    weight, bias = (g.expand(g.reshape(v, (1, 32)), x.shape) for v in vectors)
    total = g.reduce("sum", g.add(g.mul(x, weight), bias), (1,))
    spread = Spread(ranks, "line", dict.fromkeys(vectors, Row(32)), {}, [Replicated()])
    (found,) = gathered_for_uses(partitioned([total], spread, rank_input(3)).outputs, "line")
    (gather,) = gathers([found])
    every = g.input(1, gather.type)
    (found,) = substitute([found], {gather: every})
    rng = np.random.default_rng(3)
    values = {n: rng.standard_normal(n.shape, np.float32) for n in (x, *vectors)}
    parts = [values[v].reshape(ranks, -1) for v in vectors]
    engine = engine_for("cpu:0")

    def bits(output, inputs):
        arrays = [engine.put(v, DType.F32) for v in inputs.values()]
        (given,) = engine.plan(GraphRequest((output,), tuple(inputs))).run(arrays)
        return engine.get(given).tobytes()

    assert bits(found, {x: values[x], every: np.concatenate(parts, 1)}) == bits(total, values)
