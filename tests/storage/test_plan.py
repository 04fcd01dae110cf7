"""The plan against brute force: every byte, one at a time."""

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stack.storage import plan
from stack.storage.boxes import Box, FlatRange, rows_of
from stack.storage.errors import StorageError
from stack.storage.layout import TensorInfo, layout_of

SMALL = 64
"""Blocks of so many bytes show in small tensors what large ones do."""


def bytes_of(shape, itemsize, part):
    """Where each byte of a part lies in the whole, one index at a time."""
    index = np.arange(prod(shape) * itemsize).reshape(*shape, itemsize)
    if isinstance(part, FlatRange):
        return index.reshape(-1, itemsize)[part.start : part.stop].ravel()
    cut = tuple(slice(o, o + n) for o, n in zip(part.offsets, part.lengths, strict=True))
    return index[cut].ravel()


shapes = st.lists(st.integers(0, 7), max_size=4).map(tuple)


@st.composite
def parts(draw, shape):
    if draw(st.booleans()):
        cut = sorted(draw(st.tuples(*[st.integers(0, prod(shape))] * 2)))
        return FlatRange(*cut)
    cuts = [sorted(draw(st.tuples(*[st.integers(0, n)] * 2))) for n in shape]
    return Box(tuple(a for a, _ in cuts), tuple(b - a for a, b in cuts))


@st.composite
def wholes(draw):
    shape = draw(shapes)
    return shape, draw(st.sampled_from([1, 2, 4, 8])), draw(parts(shape))


def expanded(start, run, count, stride):
    return (start + np.arange(count)[:, None] * stride + np.arange(run)).ravel()


@given(wholes())
def test_runs_are_the_bytes_of_the_part_in_their_order(case):
    shape, itemsize, part = case
    want = bytes_of(shape, itemsize, part)
    got = np.full(len(want), -1)
    for start, run, count, stride, local in rows_of(shape, itemsize, part):
        got[local : local + run * count] = expanded(start, run, count, stride)
    assert (got == want).all()


@given(wholes(), st.integers(0, 200))
def test_pieces_lie_in_one_block_each_and_are_all_bytes(case, address):
    shape, itemsize, part = case
    want = bytes_of(shape, itemsize, part) + address
    got = np.full(len(want), -1)
    for piece in plan.split([rows_of(shape, itemsize, part)], [address], SMALL).tolist():
        block, at, run, count, stride, shard, local = piece
        where = expanded(at, run, count, stride)
        assert shard == 0
        assert where.min() >= 0
        assert where.max() < SMALL
        got[local : local + run * count] = where + block * SMALL
    assert (got == want).all()


@pytest.mark.parametrize(
    ("shape", "part"),
    [
        ((4,), Box((2,), (3,))),
        ((4,), Box((0, 0), (1, 1))),
        ((4,), FlatRange(0, 5)),
        ((4,), FlatRange(3, 2)),
    ],
)
def test_a_part_outside_of_its_tensor_is_refused(shape, part):
    with pytest.raises(StorageError, match=r"no (box|range) of a tensor of shape"):
        rows_of(shape, 4, part)


@given(
    st.integers(1, 9),
    st.integers(0, 60),
    st.integers(0, 2**32),
    st.sampled_from(["random", "one has all", "replicas"]),
)
def test_owners_are_balanced_and_near(ranks, blocks, seed, kind):
    rng = np.random.default_rng(seed)
    held = rng.integers(0, SMALL, (ranks, blocks))
    if kind == "one has all":
        held[1:] = 0
    if kind == "replicas":
        held[:] = SMALL
    wanted = rng.random(blocks) < 0.8
    owner = plan.owners(held, wanted)
    assert ((owner >= 0) == wanted).all()
    sizes = np.bincount(owner[wanted], minlength=ranks)
    assert sizes.max() - sizes.min() <= 1


def test_an_owner_has_its_block_where_ranks_have_equal_shares():
    held = np.kron(np.eye(4, dtype=int), np.full(5, SMALL))
    assert (plan.owners(held, np.ones(20, bool)) == np.arange(20) // 5).all()


def run_all(shards_of, infos, budget, once):
    """All ranks' plans, with what they would tell each other passed by hand."""
    layout, ranks = layout_of(infos, 400, SMALL), len(shards_of)
    mine = []
    for shards in shards_of:
        rows = [rows_of(infos[i].shape, infos[i].itemsize, part) for i, part in shards]
        mine.append(plan.split(rows, [layout.addresses[infos[i].key][1] for i, _ in shards], SMALL))
    held = np.array([plan.held(m, layout.blocks) for m in mine])
    wanted = np.ones(layout.blocks, bool) if once else held.sum(0) > 0
    turns = plan.Turns.of(plan.owners(held, wanted))
    mine = [turns.sorted(m) for m in mine]
    told = [[m[turns.owner[m[:, 0]] == o] for m in mine] for o in range(ranks)]
    if once:
        takes = [plan.chosen(told[o], o) for o in range(ranks)]
        told = [[t[k] for t, k in zip(told[o], takes[o], strict=True)] for o in range(ranks)]
        for o in range(ranks):
            plan.check_covered(np.concatenate(told[o]), layout, turns.owner == o)
        mine = [np.concatenate([told[o][q] for o in range(ranks)]) for q in range(ranks)]
    traffic = np.array([plan.held(m, layout.blocks) for m in mine])
    traffic[turns.owner.clip(0), np.arange(layout.blocks)] = 0
    plans = [
        plan.planned(layout, turns, r, mine[r], told[r], traffic, budget) for r in range(ranks)
    ]
    return layout, turns, plans


def cut(shape, ranks, way, rng):
    """A part for each rank that together are the whole."""
    n = prod(shape)
    if way == "whole":
        return [Box((0,) * len(shape), shape)] * ranks
    if way == "span" or not shape:
        ends = np.sort(rng.integers(0, n + 1, ranks - 1)).tolist()
        return [FlatRange(a, b) for a, b in zip([0, *ends], [*ends, n], strict=True)]
    d = 0 if way == "rows" else len(shape) - 1
    ends = np.sort(rng.integers(0, shape[d] + 1, ranks - 1)).tolist()
    made = []
    for a, b in zip([0, *ends], [*ends, shape[d]], strict=True):
        offsets, lengths = [0] * len(shape), list(shape)
        offsets[d], lengths[d] = a, b - a
        made.append(Box(tuple(offsets), tuple(lengths)))
    return made


WAYS = ["whole", "span", "rows", "columns"]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(shapes, st.sampled_from(WAYS)), min_size=1, max_size=4),
    st.integers(1, 5),
    st.integers(0, 2**32),
    st.sampled_from([1, 100, 10**9]),
)
def test_every_byte_travels_once_to_where_it_is_written(tensors, ranks, seed, budget):
    rng = np.random.default_rng(seed)
    infos = [TensorInfo("m", f"t{i}", "F32", shape) for i, (shape, _) in enumerate(tensors)]
    cuts = [cut(shape, ranks, way, rng) for shape, way in tensors]
    shards_of = [[(i, cuts[i][r]) for i in range(len(infos))] for r in range(ranks)]
    layout, turns, plans = run_all(shards_of, infos, budget, once=True)
    assert {len(p.windows) for p in plans} == {len(plans[0].windows)}
    written = np.zeros(layout.blocks * SMALL, int)
    for w in range(len(plans[0].windows)):
        views = [p.windows[w] for p in plans]
        sent = [
            buffer(v.away, shards, infos, layout)
            for v, shards in zip(views, shards_of, strict=True)
        ]
        for r, view in enumerate(views):
            counts = view.counts
            assert len(sent[r]) == sum(counts[r])
            got = np.concatenate(
                [sent[q][sum(counts[q][:r]) : sum(counts[q][: r + 1])] for q in range(ranks)]
            )
            if len(view.blocks) > 1:
                assert max(len(got), len(sent[r])) <= budget
            for block, pieces in view.home.items():
                assert block in view.blocks
                for _, at, run, count, stride, _, _, offset in pieces:
                    where = expanded(at, run, count, stride) + block * SMALL
                    assert (got[offset : offset + run * count] == where).all()
                    written[where] += 1
            for block, pieces in view.own.items():
                assert turns.owner[block] == r
                for _, at, run, count, stride, _, _ in pieces:
                    written[expanded(at, run, count, stride) + block * SMALL] += 1
    want = np.zeros_like(written)
    for info, address in layout.addresses.values():
        want[address : address + info.nbytes] = 1
    assert (written == want).all()


def buffer(away, shards, infos, layout):
    """What a rank sends: instead of its bytes, their addresses."""
    out = []
    for _, _, run, count, _, shard, local, offset in away:
        i, part = shards[shard]
        address = layout.addresses[infos[i].key][1]
        values = bytes_of(infos[i].shape, 4, part) + address
        assert offset == sum(map(len, out))
        out.append(values[local : local + run * count])
    return np.concatenate([*out, np.empty(0, int)])


def test_a_hole_is_named():
    infos = [TensorInfo("m", "w", "F32", (40,))]
    shards = [[(0, FlatRange(0, 10))], [(0, FlatRange(12, 40))]]
    with pytest.raises(StorageError, match=r"no rank has all of m\.safetensors.*m/w"):
        run_all(shards, infos, 100, once=True)


def test_parts_that_overlap_are_no_hole():
    infos = [TensorInfo("m", "w", "F32", (40,))]
    shards = [[(0, FlatRange(0, 30))], [(0, FlatRange(12, 40))]]
    run_all(shards, infos, 100, once=True)


def test_overlap_does_not_hide_a_hole_of_its_size():
    infos = [TensorInfo("m", "w", "F32", (40,))]
    shards = [[(0, FlatRange(0, 14))], [(0, FlatRange(12, 20))], [(0, FlatRange(22, 40))]]
    with pytest.raises(StorageError, match="no rank has all"):
        run_all(shards, infos, 100, once=True)


@pytest.mark.parametrize(("save", "load"), list(product(WAYS, WAYS)))
def test_a_load_reads_only_blocks_that_are_asked_for_each_once(save, load):
    infos = [TensorInfo("m", f"t{i}", "F32", (16, 8)) for i in range(4)]
    parts = cut((16, 8), 3, load, np.random.default_rng(0))
    shards_of = [[(i, parts[r]) for i in (0, 3)] for r in range(3)]
    layout, _, plans = run_all(shards_of, infos, 200, once=False)
    read = [b for p in plans for w in p.windows for b in w.blocks]
    touched = set()
    for i in (0, 3):
        info, address = layout.addresses[infos[i].key]
        touched |= set(range(address // SMALL, (address + info.nbytes - 1) // SMALL + 1))
    assert sorted(read) == sorted(touched)
