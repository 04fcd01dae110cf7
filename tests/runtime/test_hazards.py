from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from stack.runtime.hazards import Access, ByteRange, dependencies

SPANS = st.builds(
    lambda memory, begin, size: ByteRange(memory, begin, begin + size),
    st.sampled_from(["arena", "weights"]),
    st.integers(0, 12),
    st.integers(0, 6),
)
ACCESSES = st.builds(
    lambda r, w: Access(tuple(r), tuple(w)),
    st.lists(SPANS, max_size=3),
    st.lists(SPANS, max_size=2),
)


def touches(first, second):
    return any(
        a.memory == b.memory and max(a.begin, b.begin) < min(a.end, b.end)
        for a in first
        for b in second
    )


def conflict(first, second):
    return (
        touches(first.writes, second.reads)
        or touches(first.reads, second.writes)
        or touches(first.writes, second.writes)
    )


def closure(after):
    reach = []
    for direct in after:
        reach.append(set(direct).union(*(reach[d] for d in direct)))
    return reach


@given(st.lists(ACCESSES, max_size=14))
def test_every_conflict_is_ordered_and_nothing_else(calls):
    after = dependencies(calls)
    reach = closure(after)
    for i, j in combinations(range(len(calls)), 2):
        if conflict(calls[i], calls[j]):
            assert i in reach[j]
        if i in after[j]:
            assert conflict(calls[i], calls[j])


@given(st.lists(ACCESSES, max_size=14))
def test_no_dependency_follows_from_the_others(calls):
    after = dependencies(calls)
    reach = closure(after)
    for direct in after:
        for d in direct:
            assert all(d not in reach[other] for other in direct if other != d)


def test_readers_of_one_value_run_at_once():
    value = ByteRange("arena", 0, 64)
    results = [ByteRange("arena", 64 * i, 64 * i + 64) for i in (1, 2)]
    calls = [
        Access((), (value,)),
        Access((value,), (results[0],)),
        Access((value,), (results[1],)),
        Access(tuple(results), (value,)),
    ]
    assert dependencies(calls) == [(), (0,), (0,), (1, 2)]
