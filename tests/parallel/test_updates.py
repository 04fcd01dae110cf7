"""Updates in buckets: the same bits, and few gradients and new values at one time."""

from functools import partial
from itertools import count

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.node import Type, toposort
from stack import ops as g
from stack.compiler.graph.order import update_in_place
from stack.compiler.graph.prepare import prepare
from stack.compiler.graph.solve import fuse
from stack.compiler.program import GraphRequest
from stack.framework.reverse import gradients
from stack.ir.world import RankProgram, interpret_world
from stack.memory.plan import Lifetime, live_nbytes
from stack.parallel import convert
from stack.parallel.buckets import buckets
from stack.parallel.partition import Spread, partitioned, rank_input
from stack.parallel.placement import WHOLE, Packed, Row, Sharded, part_of
from stack.parallel.scatter import placed_value
from stack.parallel.updates import updated_in_buckets
from tests.draw import stream

RANKS, ROWS, WIDTH, LAYERS = 2, 4, 32, 12
SIZE = WIDTH * WIDTH
FLAT = Type((LAYERS * SIZE,), DType.F32)
PACKED = Packed((part_of(SIZE, SIZE, Row(SIZE), RANKS),) * LAYERS)


def step(clips):
    """A step of SGD with momentum on a chain of layers whose matrices lie one after the other: the
    inputs, and the outputs with what they are of."""
    x, flat, momentum = (
        g.input(0, Type((ROWS, WIDTH), DType.F32)),
        g.input(1, FLAT),
        g.input(2, FLAT),
    )
    matrices = [
        g.reshape(g.slice_axis(flat, 0, i * SIZE, (i + 1) * SIZE), (WIDTH, WIDTH))
        for i in range(LAYERS)
    ]
    y = x
    for w in matrices:
        y = g.tanh(g.matmul(y, w))
    loss = g.reduce("sum", g.mul(y, y))
    found = gradients([(loss, g.full_like(loss, 1))], lambda n: n in matrices)
    whole = g.concat([g.reshape(found[w], (SIZE,)) for w in matrices], 0)
    if clips:
        norm = g.reduce("sum", g.mul(whole, whole))
        whole = g.div(whole, g.expand(g.reshape(norm, (1,)), whole.shape))
    moved = g.add(g.mul(momentum, g.full_like(momentum, 0.9)), whole)
    return (x, flat, momentum), (g.sub(flat, g.mul(moved, g.full_like(moved, 0.1))), moved)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "clipped"])
def cut(request):
    """A rank's graph, its inputs' nodes, and the ranks' inputs."""
    (x, flat, momentum), outputs = step(request.param)
    rank = rank_input(3)
    spread = Spread(RANKS, "line", {momentum: PACKED}, {x: Sharded(0)}, [WHOLE, PACKED])
    numbers = count()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(convert, "buckets", partial(buckets, nbytes=SIZE * 4))
        found = partitioned(outputs, spread, rank, lambda what: f"{what}, {next(numbers)}")
    rng = np.random.default_rng(stream("updates").randrange(1000))
    values = {n: rng.standard_normal(n.shape, np.float32) for n in (x, flat, momentum)}
    values[momentum] *= 0.1

    def own(r):
        parts = values | {momentum: placed_value(values[momentum], PACKED, RANKS, r)}
        return {found.inputs.get(n, n): v for n, v in parts.items()} | {rank: np.array(r)}

    inputs = [found.inputs.get(n, n) for n in (x, flat, momentum)]
    return found.outputs, [*inputs, rank], [own(r) for r in range(RANKS)]


def test_updates_in_buckets_have_the_same_bits(cut):
    outputs, _, inputs = cut
    made = updated_in_buckets(outputs, "line")
    assert made != outputs
    worlds = (
        interpret_world([RankProgram(o, own) for own in inputs], {"line": [list(range(RANKS))]})
        for o in (outputs, made)
    )
    for one, other in zip(*worlds, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_step_has_few_gradients_and_new_values_at_one_time(cut):
    """Beside parameters and states some buckets: what is gathered is written at once. Where
    gradients are clipped the rows of all of them are there, too."""
    outputs, inputs, _ = cut
    clips = any(n.op == "div" for n in toposort(outputs))

    def needed(outputs):
        request = prepare(GraphRequest(outputs, tuple(inputs), ((0, 1), (1, 2))))
        fusion, temps = fuse(request)
        order, copies = update_in_place(request, fusion)
        assert not copies
        spans = {}
        for at, cluster in enumerate(order):
            for n in (*cluster.roots, *(n for r in cluster.roots for n in fusion.needs[r])):
                home = fusion.homes[n]
                if home.kind == "temp":
                    spans.setdefault(home.index, [at]).append(at)
        return live_nbytes(Lifetime(temps[i], min(s), max(s)) for i, s in spans.items())

    activations = LAYERS * ROWS // RANKS * WIDTH * 4
    rows = FLAT.nbytes // RANKS if clips else 0
    assert needed(outputs) > activations + FLAT.nbytes
    assert needed(updated_in_buckets(outputs, "line")) < activations + rows + 8 * SIZE * 4
