"""Attention around a ring and by heads, by the interpreter: all ranks' graphs against one's."""

import numpy as np
import pytest

import stack.framework as ht
from hal.core.errors import InvalidCall
from hal.tile.node import Type, toposort
from stack import ops as g
from stack.framework import nn
from stack.framework.cell import Cell
from stack.framework.functional import scaled_dot_product_attention
from stack.framework.spread import divisions
from stack.ir.interpret import interpret
from stack.ir.simplify import simplify
from stack.ir.verify import verify
from stack.ir.world import RankProgram, interpret_world
from stack.parallel.convert import Line, converted
from stack.parallel.heads import by_heads
from stack.parallel.partition import Spread, calls, rank_input, traffic
from stack.parallel.placement import SUM, WHOLE, Row, Sharded, fits
from stack.parallel.ring import repeated, ringed
from stack.parallel.scatter import placed_value, whole_value
from stack.parallel.strategy import Strategy, ring, ulysses
from tests.draw import sample, stream
from tests.parallel.test_partition import Recorded

BATCH, HEADS, DEPTH = 2, 4, 8
MASKS = ("none", "causal", "columns", "causal, dropout")


def attention(mask, length, depth=0, sharing=1):
    """A function's graph: an attention's result and the gradients by q, k and v; its inputs, and
    values of them. Queries are made of q in so many steps; so many heads share keys and values."""
    rng = np.random.default_rng(stream("attention").getrandbits(64))
    shape = (BATCH, HEADS, length, DEPTH)
    arrays = [rng.standard_normal(shape, np.float32) for _ in range(4)]
    shared = [x[:, : HEADS // sharing] for x in arrays[1:3]]
    q, k, v = (nn.Parameter(ht.tensor(x)) for x in (arrays[0], *shared))
    open_ = rng.random((BATCH, 1, 1, length)) < 0.8
    open_[..., 0] = True

    @ht.jit
    def step(given, columns):
        masked = columns if mask == "columns" else None
        dropped = 0.3 if "dropout" in mask else 0.0
        query = q
        for _ in range(depth):
            query = query / 2 + given
        keys, values = k, v
        if sharing == 2:
            keys, values = (x.repeat_interleave(sharing, 1) for x in (k, v))
        y = scaled_dot_product_attention(
            query, keys, values, masked, dropped, "causal" in mask, enable_gqa=sharing == HEADS
        )
        (y * given).sum().backward()
        found = [y, q.grad, k.grad, v.grad]
        q.grad = k.grad = v.grad = None
        return found

    recorded = Recorded()
    divisions[q.serial] = recorded
    step(arrays[3], open_)
    del divisions[q.serial]
    given = [arrays[3], open_]
    values = [given[s] if isinstance(s, int) else np.asarray(value(s)) for s in recorded.sources]
    inputs = dict(zip(recorded.request.inputs, values, strict=True))
    return recorded.request.outputs, inputs


def value(source):
    return source.numpy() if isinstance(source, Cell) else source


ROWS = Sharded(2, zigzag=True)


def on_ranks(way, outputs, inputs, ranks, placement):
    """The cut graph, and the values of the outputs that belong to rows of q, k or v."""
    rank, names = rank_input(1 << 20), iter(range(1000))

    def is_of_rows(n):  # and not a mask, which has one row for all
        return n.shape[-1:] == (DEPTH,) and n.shape[2] > 1

    long = {n for n in inputs if is_of_rows(n)}
    ends = [placement if is_of_rows(n) else WHOLE for n in outputs]
    spread = Spread(ranks, "ring", dict.fromkeys(long, placement), {}, ends)
    whole = simplify(tuple(outputs))
    cut = way(whole, spread, rank, lambda what: f"{what} {next(names)}", {}, "sequence")
    verify(cut.outputs)
    programs = []
    for r in range(ranks):
        own = {
            cut.inputs[n]: placed_value(x, placement if n in long else WHOLE, ranks, r)
            for n, x in inputs.items()
            if n in cut.inputs
        }
        programs.append(RankProgram(cut.outputs, {**own, rank: np.array(r)}))
    got = interpret_world(programs, {"ring": [list(range(ranks))]})
    values = [
        whole_value([own[i] for own in got], p, n.type)
        for i, (n, p) in enumerate(zip(outputs, ends, strict=True))
    ]
    return cut, values


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("mask", sample("masks", MASKS, 2))
def test_attention_on_ranks_is_that_of_one(mask):
    ranks = stream(f"ranks of {mask}").choice((2, 4))
    length = 2 * ranks * stream(f"length of {mask}").choice((1, 2, 3))
    outputs, inputs = attention(mask, length)
    whole = interpret(outputs, inputs)
    sent = ranks * BATCH * HEADS * (length // ranks) * DEPTH * 4 // ranks
    for way, placement in ((ringed, ROWS), (by_heads, Sharded(2))):
        cut, found = on_ranks(way, outputs, inputs, ranks, placement)
        for n, a, b in zip(outputs, found, whole, strict=True):
            error = np.linalg.norm(a.astype(np.float64) - b)
            assert error <= 1e-6 * max(1e-3, np.linalg.norm(b)), (mask, ranks, way, n.type)
        places = {"ring": (0, ranks)}
        nbytes, made = traffic(cut.outputs, places), calls(cut.outputs)
        if way is by_heads:  # q, k, v and the result, and their derivatives
            assert made["ring", "all_to_all"] == 8
            assert nbytes["ring", "all_to_all"] == 8 * sent * (ranks - 1) // ranks
        else:  # keys and values there, and again, with their gradients home
            assert made["ring", "message"] == 2 * (ranks - 1) + ranks
            assert nbytes["ring", "message"] == (3 * ranks - 2) * 2 * sent
            assert all(n.shape[-2:] != (length, length) for n in toposort(cut.outputs))
            assert ("ring", "all_gather") not in made


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("sharing", [2, HEADS])
def test_keys_and_values_that_heads_share_go_around_once(sharing):
    """Repeated by the program, or by the attention."""
    ranks = stream(f"ranks of {sharing}").choice((2, 4))
    length = 4 * ranks
    outputs, inputs = attention("causal", length, sharing=sharing)
    cut, found = on_ranks(ringed, outputs, inputs, ranks, ROWS)
    for n, a, b in zip(outputs, found, interpret(outputs, inputs), strict=True):
        assert np.linalg.norm(a.astype(np.float64) - b) <= 1e-6 * np.linalg.norm(b), n.type
    sent = BATCH * HEADS // sharing * (length // ranks) * DEPTH * 4
    assert (
        traffic(cut.outputs, {"ring": (0, ranks)})["ring", "message"] == (3 * ranks - 2) * 2 * sent
    )


@pytest.mark.parametrize(
    ("make", "axis", "count"),
    [
        (lambda x: x, 0, 1),
        (lambda x: g.expand(g.reshape(x, (1, 2, 6)), (3, 2, 6)), 0, 3),
        (lambda x: g.reshape(g.expand(g.reshape(x, (2, 1, 6)), (2, 3, 6)), (6, 6)), 0, 3),
        (lambda x: g.reshape(g.expand(g.reshape(x, (1, 2, 6)), (3, 2, 6)), (6, 6)), 0, 1),
        (lambda x: g.reshape(g.expand(g.reshape(x, (2, 6, 1)), (2, 6, 4)), (2, 24)), 1, 4),
        (lambda x: g.reshape(g.expand(g.reshape(x, (2, 6, 1)), (2, 6, 4)), (48,)), 0, 4),
        (lambda x: g.permute(g.expand(g.reshape(x, (2, 6, 1)), (2, 6, 4)), (2, 0, 1)), 0, 4),
        (lambda x: g.expand(g.reshape(g.add(x, x), (2, 6, 1)), (2, 6, 4)), 1, 1),
    ],
)
def test_values_that_are_repeated_are_equal_and_known(make, axis, count):
    x = g.input(0, Type((2, 6), ht.float32))
    made = make(x)
    assert repeated(made, axis) == count
    (found,) = interpret((made,), {x: np.arange(12, dtype=np.float32).reshape(2, 6)})
    each = np.moveaxis(found, axis, 0)
    each = each.reshape(-1, count, *each.shape[1:])
    assert (each == each[:, :1]).all()


@pytest.mark.slow
@pytest.mark.turns
def test_a_causal_ring_computes_nothing_that_no_row_sees():
    """Without gradients. Of 2 n chunks a rank has 2; 2 n + 1 products of one chunk by one are
    computed for them, of which 2 are masked in half."""
    ranks, length = 4, 16
    scores = {}
    for mask in ("none", "causal"):
        outputs, inputs = attention(mask, length, depth=30)
        cut, (found,) = on_ranks(ringed, outputs[:1], inputs, ranks, ROWS)
        (whole,) = interpret(outputs[:1], inputs)
        assert np.linalg.norm(found - whole) <= 1e-6 * np.linalg.norm(whole)
        chunk = length // (2 * ranks)
        products = [n for n in toposort(cut.outputs) if n.op == "matmul"]
        scores[mask] = sum(n.shape[-2:] == (chunk, chunk) for n in products)
    assert scores == {"none": 4 * ranks, "causal": 2 * ranks + 1}


PLACED = [WHOLE, SUM, Sharded(0), Sharded(1, 2), Sharded(1), Row(64)]
PLACED += [Sharded(0, zigzag=True), Sharded(1, 1, True), Sharded(1, 2, True)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_placement_becomes_each_other_one(ranks):
    type = Type((8, 8 * ranks), ht.float32)
    rng = np.random.default_rng(stream("placed").getrandbits(64))
    x = rng.standard_normal(type.shape, np.float32)
    placed = [p for p in PLACED if p != Row(64)] + [Row(x.size)]
    rank, fitting = rank_input(1), [p for p in placed if fits(type, p, ranks)]
    pairs = [(a, b) for a in fitting for b in fitting]
    assert len(pairs) >= 49
    for a, b in pairs:
        parts = [placed_value(x, a, ranks, r) for r in range(ranks)]
        n = g.input(0, Type(parts[0].shape, type.dtype))
        line = Line(ranks, "line", rank, lambda what: what)
        made = converted(n, type, a, b, line)
        own = [RankProgram((made,), {n: v, rank: np.array(r)}) for r, v in enumerate(parts)]
        got = [found[0] for found in interpret_world(own, {"line": [list(range(ranks))]})]
        np.testing.assert_array_equal(whole_value(got, b, type), x, err_msg=f"{a} to {b}")
        if isinstance(b, Sharded):
            for r, v in enumerate(got):
                np.testing.assert_array_equal(v, placed_value(x, b, ranks, r))


def test_what_cannot_be_divided_is_refused():
    outputs, inputs = attention("causal", 12)
    with pytest.raises(InvalidCall, match=r"sequences of 12 cannot go .* take a multiple of 8"):
        on_ranks(ringed, outputs, inputs, 4, Sharded(2))
    with pytest.raises(InvalidCall, match="4 heads cannot be divided among the 3 ranks along 'seq"):
        on_ranks(by_heads, outputs, inputs, 3, Sharded(2))
    kept = (*outputs, next(n for n in toposort(simplify(outputs)) if n.op == "exp"))
    with pytest.raises(InvalidCall, match=r"product.* \[2, 4, 12, 12\] cannot go around the ring"):
        on_ranks(ringed, kept, inputs, 3, Sharded(2))


def test_a_strategy_says_how_attention_is_computed():
    assert str(ring(2)) == "axis context 2\n  batch 1\n  attention ring\n"
    assert Strategy.parse(str(ulysses(2))) == ulysses(2)
    for text in ("axis a 2\n  attention ring\n", "axis a 2\n  batch 0\n  attention heads\n"):
        with pytest.raises(InvalidCall, match="takes sequences that its ranks divide"):
            Strategy.parse(text)
