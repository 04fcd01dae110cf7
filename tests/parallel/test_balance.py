"""Chunks of a pipeline by measured times, against all cuts."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hal.core.errors import InvalidCall
from stack.parallel.balance import even_chunks


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
