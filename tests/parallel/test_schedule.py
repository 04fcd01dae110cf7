"""Tables of pipelines: their lengths against the formulas of their authors, and planted faults."""

import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.core.errors import InvalidCall
from stack.parallel.schedule import (
    Durations,
    Schedule,
    check,
    dualpipe_v,
    gpipe,
    interleaved,
    one_f_one_b,
    walk,
    zb_h1,
    zb_v,
)
from tests.parallel.bubbles import OfChunks

RANKS = st.integers(2, 6)


@given(ranks=RANKS, times=st.integers(1, 4))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_bubbles_are_those_of_the_formulas(ranks, times):
    """In unit time: idle time over working time, exactly; and the activations that are held."""
    batches, first = ranks * times, ranks - 1
    assert check(gpipe(ranks, batches)).bubble == Fraction(first, batches)
    one = check(one_f_one_b(ranks, batches))
    assert one.bubble == Fraction(first, batches)
    assert one.held == tuple(ranks - r for r in range(ranks))
    for chunks in (2, 3):
        found = check(interleaved(ranks, batches, chunks))
        assert found.bubble == Fraction(first, chunks * batches)
        assert found.held[0] == min(ranks * chunks + first, batches * chunks)
    zero = check(zb_h1(ranks, batches))
    assert zero.bubble == Fraction(first, 3 * batches)
    assert max(zero.held) == ranks


@given(
    ranks=RANKS,
    durations=st.tuples(*[st.integers(1, 9)] * 3).filter(lambda d: d[0] >= d[2] <= d[1]),
)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_the_bubble_of_zb_h1_for_other_durations(ranks, durations):
    """(p - 1)(F + B - W) / (m (F + B + W)), where W fits into the gaps."""
    f, b, w = map(Fraction, durations)
    batches = 2 * ranks
    found = walk(zb_h1(ranks, batches), Durations(f, b, w)).bubble
    assert found >= (ranks - 1) * (f + b - w) / (batches * (f + b + w))
    if f == b == w:
        assert found == Fraction(ranks - 1, 3 * batches)


@given(ranks=RANKS)
@settings(max_examples=5, deadline=None, derandomize=True)
def test_zb_v_holds_no_more_than_1f1b_and_idles_less(ranks):
    """Chunks are half as large as the stages of 1F1B."""
    batches = 4 * ranks
    found, other = check(zb_v(ranks, batches)), check(one_f_one_b(ranks, batches))
    assert max(found.held) <= 2 * max(other.held)
    assert found.bubble < check(zb_h1(ranks, batches)).bubble


@given(ranks=RANKS, more=st.integers(0, 8))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_the_bubble_of_dualpipe(ranks, more):
    """Its authors', (p - 1)(F&B + B - 3W), in unit time with F and B one after the other."""
    found = check(dualpipe_v(ranks, 2 * ranks + more))
    assert found.bubble == Fraction(ranks - 1, 6 * (2 * ranks + more))
    assert found.held == (2 * ranks + 1,) * ranks


TABLES = {
    "gpipe": gpipe(4, 4),
    "1f1b": one_f_one_b(4, 8),
    "interleaved": interleaved(2, 4, 2),
    "zb-h1": zb_h1(3, 6),
    "zb-v": zb_v(2, 4),
    "dualpipe-v": dualpipe_v(2, 4),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_schedule_is_its_text(name):
    assert Schedule.parse(str(TABLES[name])) == TABLES[name]


def lose(table, rank, place):
    row = table.rows[rank]
    return changed(table, rank, row[:place] + row[place + 1 :])


def swap(table, rank, place):
    row = list(table.rows[rank])
    row[place], row[place + 1] = row[place + 1], row[place]
    return changed(table, rank, row)


def double(table, rank, place):
    row = table.rows[rank]
    return changed(table, rank, (*row[: place + 1], *row[place:]))


def changed(table, rank, row):
    rows = list(table.rows)
    rows[rank] = tuple(row)
    return Schedule(table.chunks, tuple(rows))


def elsewhere(table, rank, place):
    row = list(table.rows[rank])
    row[place] = row[place]._replace(chunk=table.depth)
    return changed(table, rank, row)


def named(table, what, rank):
    """Where a rank computes a pass first."""
    return next(i for i, e in enumerate(table.rows[rank]) if str(e) == what)


def faults():
    """Tables with one fault each, and why each is refused."""
    rng = random.Random(7)
    for name, table in TABLES.items():
        rank = rng.randrange(table.ranks)
        place = rng.randrange(len(table.rows[rank]))
        entry = table.rows[rank][place]
        yield f"{name} lost", lose(table, rank, place), None, f"rank {rank} lacks {entry}"
        yield f"{name} twice", double(table, rank, place), None, f"rank {rank} computes {entry} tw"
        yield f"{name} elsewhere", elsewhere(table, rank, place), None, "but has no chunk"
    table = TABLES["1f1b"]
    # On the last rank B0 comes right after F0.
    yield "before", swap(table, 3, 0), None, "rank 3 computes B3.0 before F3.0, which it needs"
    last = named(table, "F1.1", 1) - 1
    yield "order", swap(table, 1, last), None, "rank 0 sends F0.0 where rank 1 asks for F0.1"
    yield "held", TABLES["gpipe"], (4, 3, 3, 3), "rank 1 holds the activations of 4 passes"
    rows = "rank 0: F0.0 B0.0 F0.1 B0.1\nrank 1: F1.0 F1.1 B1.0 B1.1"
    cross = Schedule.parse(f"chunks 0 | 1\n{rows}")
    yield "deadlock", cross, None, "never ends: rank 0 waits at B0.0 for B1.0, rank 1 waits at F1.1"
    yield "chunks", Schedule(((0,), (0,)), table.rows[:2]), None, "each of 0, 1, ... is there once"


FAULTS = list(faults())


@pytest.mark.parametrize(
    ("table", "held", "said"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS]
)
def test_a_table_with_a_fault_is_refused_with_the_reason(table, held, said):
    with pytest.raises(InvalidCall) as refused:
        check(table, held)
    assert said in str(refused.value)


def test_there_are_twenty_faults_and_more():
    assert len(FAULTS) == 23


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: one_f_one_b(4, 3), "at least 4 micro-batches, not 3"),
        (lambda: interleaved(4, 6, 2), "a multiple of 4 micro-batches, not 6; take 8"),
        (lambda: dualpipe_v(4, 7), "DualPipe on 4 ranks takes at least 8 micro-batches, not 7"),
        (lambda: zb_v(4, 7), "at least 8 micro-batches, not 7"),
        (lambda: Schedule.parse("chunks 0\nrank 0: F0"), "line 2 of the schedule"),
        (lambda: Schedule.parse("rank 0: F0.0"), "chunks of 0 ranks and 1 rows"),
        (lambda: Schedule.parse("chunks 0 | x"), "line 1 of the schedule"),
    ],
)
def test_what_is_no_schedule_is_refused(make, said):
    with pytest.raises(InvalidCall, match=said):
        make()


def test_passes_of_chunks_that_are_equally_long_take_what_a_chunk_does():
    """What `bubbles` walks tables by; the command ended in a TypeError when nothing imported it."""
    table, (f, b, w) = zb_v(2, 4), map(Fraction, (3, 5, 2))
    found = walk(
        table, OfChunks(forwards=(f,) * 4, backwards=(b,) * 4, of_rank=(w, w), table=table)
    )
    assert found.times == walk(table, Durations(f, b, w)).times
