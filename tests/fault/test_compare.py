"""Who is wrong, told from the checksums of all ranks."""

import numpy as np

from stack.fault.compare import compared, first_of

NAMES = ("weight", "bias")


def held(*rows):
    return np.array(rows, np.int64)


def test_the_majority_says_who_is_wrong():
    found = compared(32, NAMES, held((1, 2), (1, 2), (9, 2), (1, 2)))
    assert not found.is_equal
    assert found.majority == (0, 1, 3)
    assert found.wrong == ((2, "its weight differs from that of ranks 0, 1, 3"),)
    assert found.teller == 0
    first = compared(32, NAMES, held((9, 9), (1, 2), (1, 2)))
    assert (first.wrong[0][0], first.teller) == (0, 1)
    assert "weight (and 1 more)" in first.wrong[0][1]


def test_without_a_majority_it_is_computed_again():
    before = compared(16, NAMES, held((1, 2), (1, 3)))
    assert before.majority is None
    assert before.wrong == ()
    assert "bias of ranks 0 and 1 differs" in before.why
    now = compared(16, NAMES, held((1, 3), (1, 3)), before)
    assert now.is_equal
    assert now.wrong == ((0, "it held another bias than was computed again"),)
    both = compared(16, NAMES, held((5, 5), (5, 5)), before)
    assert [rank for rank, _ in both.wrong] == [0, 1]
    assert "one of the ranks that did has passed it on" in both.wrong[0][1]
    assert compared(32, NAMES, held((5, 5), (5, 5)), before).wrong == ()


def test_who_was_first():
    assert first_of(np.array([-1, 12, 11, 12])) == (2,)
    assert first_of(np.array([11, 12, 11, 12])) == (0, 2)
    assert first_of(np.array([12, 12])) == ()


def test_equal_ones():
    found = compared(16, NAMES, held((1, 2), (1, 2)))
    assert found.is_equal
    assert (found.majority, found.wrong) == ((0, 1), ())
