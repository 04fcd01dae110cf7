"""Who is wrong, told from the checksums of all ranks."""

import numpy as np

from stack.fault.compare import Holder, compared, first_of

NAMES = ("weight", "bias")


def compare(step, rows, before=None, gone=()):
    """Ranks 0, 1, ... hold these rows, but those of the processes that are `gone`."""
    holders = [Holder(f"{i}.0", None if i in gone else i) for i in range(len(rows))]
    return compared(step, NAMES, holders, np.array(rows, np.int64), before)


def wrong(found):
    return [(holder.member, why) for holder, why in found.wrong]


def test_the_majority_says_who_is_wrong():
    found = compare(32, ((1, 2), (1, 2), (9, 2), (1, 2)))
    assert not found.is_equal
    assert found.majority == (0, 1, 3)
    assert wrong(found) == [("2.0", "its weight differs from rank 0, rank 1, rank 3")]
    assert found.teller == 0
    first = compare(32, ((9, 9), (1, 2), (1, 2)))
    assert (first.wrong[0][0].rank, first.teller) == (0, 1)
    assert "weight (and 1 more)" in first.wrong[0][1]


def test_what_processes_that_have_ended_hold_counts_too():
    found = compare(7, ((1, 2), (1, 2), (9, 2)), gone=(0, 2))
    assert wrong(found) == [("2.0", "its weight differs from process 0.0, rank 1")]
    assert found.teller == 1


def test_without_a_majority_it_is_computed_again():
    before = compare(16, ((1, 2), (1, 3)))
    assert before.majority is None
    assert before.wrong == ()
    assert "bias of rank 0 and rank 1 differs" in before.why
    now = compare(16, ((1, 3), (1, 3)), before)
    assert now.is_equal
    assert wrong(now) == [("0.0", "it held another bias than was computed again")]
    both = compare(16, ((5, 5), (5, 5)), before)
    assert [member for member, _ in wrong(both)] == ["0.0", "1.0"]
    assert "one of the ranks that did has passed it on" in both.wrong[0][1]
    assert compare(32, ((5, 5), (5, 5)), before).wrong == ()


def test_who_was_first():
    assert first_of(np.array([-1, 12, 11, 12])) == (2,)
    assert first_of(np.array([11, 12, 11, 12])) == (0, 2)
    assert first_of(np.array([12, 12])) == ()


def test_equal_ones():
    found = compare(16, ((1, 2), (1, 2)))
    assert found.is_equal
    assert (found.majority, found.wrong) == ((0, 1), ())
