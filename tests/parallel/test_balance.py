"""Chunks of a pipeline and shares of a batch by measured times, against all there are."""

from itertools import combinations, pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hal.core.errors import InvalidCall
from stack.parallel.balance import even_chunks, even_shares


def longest(times, ends, speeds):
    return max(
        sum(times[a:b]) / s
        for (a, b), s in zip(pairwise((0, *ends, len(times))), speeds, strict=True)
    )


@given(st.data())
def test_no_cut_of_the_model_is_better(data):
    times = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=7))
    speeds = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=len(times)))
    found = even_chunks({str(i): t for i, t in enumerate(times)}, speeds)
    chunks = list(found.values())
    assert [int(name) for name in found] == list(range(len(times)))
    assert chunks == sorted(chunks)
    assert set(chunks) == set(range(len(speeds)))
    ends = [chunks.index(chunk) for chunk in range(1, len(speeds))]
    cuts = combinations(range(1, len(times)), len(speeds) - 1)
    best = min(longest(times, cut, speeds) for cut in cuts)
    assert longest(times, ends, speeds) == pytest.approx(best)


@given(st.data())
def test_no_shares_of_a_batch_are_better(data):
    speeds = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    pieces = data.draw(st.integers(len(speeds), 9))

    def longest(counts):
        return max(n / s for n, s in zip(counts, speeds, strict=True))

    found = even_shares(speeds, pieces)
    every = product(range(1, pieces + 1), repeat=len(speeds))
    assert min(found) >= 1
    assert sum(found) == pieces
    assert longest(found) == min(longest(counts) for counts in every if sum(counts) == pieces)


def test_shares_that_cannot_be_are_refused():
    for speeds, pieces, said in (
        ([1.0, 1.0], 1, "1 pieces of a batch cannot be shared by 2 ranks"),
        ([], 3, "by 0 ranks"),
        ([1.0, float("inf")], 3, "speeds are"),
    ):
        with pytest.raises(InvalidCall, match=said):
            even_shares(speeds, pieces)


@pytest.mark.parametrize(
    ("times", "speeds", "said"),
    [
        ([1.0], [1.0, 1.0], "1 parts of a model cannot be 2 chunks"),
        ([1.0], [], "cannot be 0 chunks"),
        ([float("nan")], [1.0], "times are"),
        ([1.0], [0.0], "speeds are"),
    ],
)
def test_what_cannot_be_cut_is_refused(times, speeds, said):
    with pytest.raises(InvalidCall, match=said):
        even_chunks({str(i): t for i, t in enumerate(times)}, speeds)
