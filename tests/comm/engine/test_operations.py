"""Every operation, element type and way through the engine, against numpy."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hal.core.errors import InvalidCall
from hal.core.values import ReduceKind
from stack.comm.engine.codes import BitReduce
from tests.comm.engine.crew import crews
from tests.comm.engine.model import DTYPES, HOWS, in_pairs, is_reduction, parts_of, reduced

SIZES = (1, 2, 3, 4)
F32 = np.dtype(np.float32)


@pytest.fixture(scope="module")
def crew_of():
    with crews(*SIZES) as made:
        yield dict(zip(SIZES, made, strict=True))


def numbers(seed, rank, n, dtype):
    """Random elements that every rank can compute; floats with some infinities and NaN."""
    random = np.random.default_rng([seed, rank])
    if dtype == np.bool_:
        return random.integers(0, 2, n).astype(bool)
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return random.integers(low, high, n, dtype=dtype, endpoint=True)
    found = random.standard_normal(n).astype(np.float32)
    found[random.random(n) < 0.01] = np.inf
    found[random.random(n) < 0.01] = np.nan
    return found.astype(dtype)


def same(given, wanted):
    """Equal bit for bit, where any NaN is as good as another."""
    given, wanted = given.ravel(), wanted.ravel()
    assert given.dtype == wanted.dtype
    assert given.shape == wanted.shape
    if given.dtype.kind not in "iub":
        given, wanted = given.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_array_equal(given, wanted)


sizes = st.sampled_from(SIZES)
dtypes = st.sampled_from(DTYPES)
hows = st.sampled_from(HOWS)
lengths = st.one_of(st.integers(0, 40), st.sampled_from([999, 4096, 5000, 33_000, 140_001]))
few = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def placed(group, array, shared):
    """The same elements, in memory that others map if `shared`."""
    if not shared:
        return array.copy()
    there = group.empty(array.shape, array.dtype)
    there[...] = array
    return there


@given(
    sizes,
    dtypes,
    hows,
    lengths,
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
    st.integers(0, 3),
)
@few
def test_reductions(crew_of, size, dtype, how, n, shared, in_place, seed, root):
    how = how if is_reduction(dtype, how) else ReduceKind.MAX
    root %= size
    given_ = [numbers(seed, r, n, dtype) for r in range(size)]
    wanted = reduced(given_, how, in_pairs)

    def run(group):
        own = placed(group, given_[group.rank], shared)
        out = own if in_place else placed(group, np.zeros_like(own), shared)
        group.all_reduce(own, how, out)
        kept = own.copy()
        at_root = placed(group, given_[group.rank], shared)
        group.reduce(at_root, root, how)
        return out.copy(), kept, at_root.copy()

    for rank, (everywhere, kept, at_root) in enumerate(crew_of[size].do(run)):
        same(everywhere, wanted)
        same(kept, wanted if in_place else given_[rank])
        same(at_root, wanted if rank == root else given_[rank])


@given(sizes, dtypes, hows, st.data(), st.booleans(), st.integers(0, 99))
@few
def test_parts(crew_of, size, dtype, how, data, shared, seed):
    """The operations whose parts may be uneven and empty."""
    how = how if is_reduction(dtype, how) else ReduceKind.MIN
    counts = [data.draw(lengths) for _ in range(size)]
    root = data.draw(st.integers(0, size - 1))
    wholes = [numbers(seed, r, sum(counts), dtype) for r in range(size)]
    own = [numbers(seed, r, counts[r], dtype) for r in range(size)]
    sums = parts_of(reduced(wholes, how, in_pairs), counts)

    def run(group):
        mine = placed(group, own[group.rank], shared)
        whole = placed(group, wholes[group.rank], shared)
        out = placed(group, np.empty(counts[group.rank], dtype), shared)
        every = placed(group, np.empty(sum(counts), dtype), shared)
        return (
            group.all_gather(mine, counts=counts),
            group.gather(mine, root, every if group.rank == root else None, counts).copy(),
            group.scatter(whole if group.rank == root else None, root, out, counts).copy(),
            group.reduce_scatter(whole, how, counts=counts),
        )

    for rank, (gathered, at_root, scattered, summed) in enumerate(crew_of[size].do(run)):
        same(gathered, np.concatenate(own))
        same(at_root, np.concatenate(own) if rank == root else np.empty(0, dtype))
        same(scattered, parts_of(wholes[root], counts)[rank])
        same(summed, sums[rank])


@given(sizes, dtypes, st.data(), st.booleans(), st.booleans(), st.integers(0, 99))
@few
def test_exchanges(crew_of, size, dtype, data, shared, in_place, seed):
    n, root = data.draw(lengths), data.draw(st.integers(0, size - 1))
    counts = [[data.draw(st.integers(0, 700)) for _ in range(size)] for _ in range(size)]
    equal = [numbers(seed, r, n * size, dtype) for r in range(size)]
    unequal = [numbers(seed, r, sum(counts[r]), dtype) for r in range(size)]

    def run(group):
        mine = placed(group, equal[group.rank], shared)
        out = mine if in_place else np.empty_like(mine)
        group.all_to_all(mine, out)
        told = placed(group, equal[group.rank], shared)
        group.broadcast(told, root)
        return out.copy(), told.copy(), group.all_to_all_v(unequal[group.rank], counts)

    for rank, (exchanged, told, mixed) in enumerate(crew_of[size].do(run)):
        same(exchanged, np.concatenate([parts_of(e, [n] * size)[rank] for e in equal]))
        same(told, equal[root])
        pieces = [parts_of(u, row)[rank] for u, row in zip(unequal, counts, strict=True)]
        same(mixed, np.concatenate(pieces))


STREAMED = 4 << 20
"""Parts of so many bytes and more go past the cache, those that all want by whoever has time."""


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("most", [STREAMED - 1, STREAMED, STREAMED + 65])
@pytest.mark.parametrize(("size", "shared"), [(2, True), (3, True), (2, False)])
def test_large_parts_wherever_they_lie(crew_of, size, shared, most):
    """Uneven parts, one of them empty where there are three, at all places of a line of the cache,
    in memory of its own and in place."""
    counts = [most, most - 64, 0][:size]
    exchanged = [[most, 5, 0][:size], [64, most - 1, 1][:size], [0, 7, most][:size]][:size]
    own = [numbers(3, r, counts[r], np.dtype(np.uint8)) for r in range(size)]
    sent = [numbers(4, r, sum(exchanged[r]), np.dtype(np.uint8)) for r in range(size)]

    def room(group, n, at):
        array = group.empty(n + 256, np.uint8) if shared else np.empty(n + 256, np.uint8)
        array[:] = 255
        return array, array[at : at + n]

    def run(group):
        rank = group.rank
        mine = room(group, counts[rank], 3 * rank)[1]
        mine[...] = own[rank]
        around, whole = room(group, sum(counts), 64 * rank + 31 * (rank == 2))
        group.all_gather(mine, whole, counts)
        in_place = room(group, sum(counts), 16 * rank)[1]
        begin = sum(counts[:rank])
        in_place[begin : begin + counts[rank]] = own[rank]
        group.all_gather(in_place[begin : begin + counts[rank]], in_place, counts)
        out = room(group, sum(row[rank] for row in exchanged), 5)[1]
        source = room(group, sent[rank].size, 69)[1]
        source[...] = sent[rank]
        group.all_to_all_v(source, exchanged, out)
        group.barrier()
        at = whole.ctypes.data - around.ctypes.data
        assert (around[:at] == 255).all()
        assert (around[at + whole.size :] == 255).all()
        return whole, in_place, out

    for rank, (whole, in_place, out) in enumerate(crew_of[size].do(run)):
        same(whole, np.concatenate(own))
        same(in_place, np.concatenate(own))
        parts = [parts_of(s, row)[rank] for s, row in zip(sent, exchanged, strict=True)]
        same(out, np.concatenate(parts))


def test_neighbours_are_added_first_then_pairs_of_pairs(crew_of):
    """As a compiled kernel adds the parts of a batch (stack/compiler/pairs.py)."""
    parts = [np.full(3, x, np.float32) for x in (1e8, 1, -1e8, 1)]
    for result in crew_of[4].do(lambda g: g.all_reduce(parts[g.rank].copy())):
        assert result.tolist() == [0, 0, 0], "in rank order it were 1"


def test_equal_calls_give_equal_bits(crew_of):
    given_ = [numbers(1, r, 70_000, F32) for r in range(4)]
    runs = [crew_of[4].do(lambda g: g.all_reduce(given_[g.rank].copy())) for _ in range(5)]
    assert len({result.tobytes() for run in runs for result in run}) == 1


def test_shapes_are_kept(crew_of):
    def run(group):
        own = np.full((2, 3), group.rank, np.int32)
        return group.all_gather(own), group.all_reduce(own)

    for gathered, summed in crew_of[3].do(run):
        assert gathered.shape == (3, 2, 3)
        assert gathered[:, 0, 0].tolist() == [0, 1, 2]
        assert summed.tolist() == [[3, 3, 3], [3, 3, 3]]


def test_operations_in_the_background_run_in_order(crew_of):
    def run(group):
        arrays = [np.full(n, group.rank + 1.0) for n in (1, 50_000, 3)]
        work = [group.later.all_reduce(a) for a in arrays]
        now = group.all_gather(np.array([group.rank]))
        return [w.wait(100)[0] for w in work], now.tolist(), [w.done for w in work]

    for sums, now, done in crew_of[3].do(run):
        assert sums == [6.0, 6.0, 6.0]
        assert now == [[0], [1], [2]]
        assert all(done)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda g: g.all_reduce(np.ones(3, np.complex64)), "no element type complex64"),
        (lambda g: g.all_reduce(np.ones(3, F32), out=np.ones(3)), "destination float64"),
        (lambda g: g.all_reduce(np.ones(3, F32), out=np.ones(4, F32)), "4 elements, not 3"),
        (lambda g: g.all_reduce(np.ones((4, 4), F32)[:, 1]), "not C-contiguous"),
        (lambda g: g.all_reduce(np.ones(3, bool), ReduceKind.AVG), "no average of bools"),
        (lambda g: g.all_reduce(np.ones(3, F32), BitReduce.BOR), "no or of bits of float32"),
        (lambda g: g.reduce(np.ones(3, ml_dtypes.bfloat16), 0, BitReduce.BXOR), "of bfloat16"),
        (lambda g: g.broadcast(np.ones(3), 2), "root 2 is no rank"),
        (lambda g: g.broadcast(np.frombuffer(b"abc", np.uint8), 0), "cannot be written"),
        (lambda g: g.reduce_scatter(np.ones(3)), "3 elements, not 2"),
        (lambda g: g.all_gather(np.ones(3), counts=[3]), r"\[3\] are not 2 sizes"),
        (lambda g: g.all_gather(np.ones(3), counts=[2, 2]), "3 elements, not 2"),
        (lambda g: g.all_to_all(np.ones(3)), "2 equal parts"),
        (lambda g: g.all_to_all_v(np.ones(3), [[1, 2]]), "not 2 rows of 2"),
        (lambda g: g.scatter(None, g.rank, np.ones(3)), "gives no array"),
    ],
)
def test_wrong_calls_are_refused_before_they_begin(crew_of, call, text):
    def run(group):
        with pytest.raises(InvalidCall, match=text):
            call(group)
        return group.all_reduce(np.array([1.0]))[0]

    assert crew_of[2].do(run) == [2.0, 2.0]


PIECE = 32 << 10
"""Private memory is told by so many bytes at a time, of which 16 may wait to be taken."""


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("n", [PIECE - 1, 16 * PIECE + 1, 61 * PIECE, (2 << 20) + 5])
@pytest.mark.parametrize("size", [2, 3])
def test_private_memory_is_told_from_each_root_wherever_it_lies(crew_of, size, n):
    given = [numbers(5, r, n, np.dtype(np.uint8)) for r in range(size)]

    def run(group):
        found = []
        for root in range(size):
            around = np.full(n + 192, 255, np.uint8)
            told = around[7 * group.rank + 1 :][:n]
            if group.rank == root:
                told[...] = given[root]
            group.broadcast(told, root)
            group.all_reduce(np.ones(70_000, np.float32))  # uses the same slots
            at = 7 * group.rank + 1
            assert (around[:at] == 255).all()
            assert (around[at + n :] == 255).all()
            found.append(told)
        return found

    for found in crew_of[size].do(run):
        for told, wanted in zip(found, given, strict=True):
            same(told, wanted)
