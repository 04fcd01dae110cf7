"""No operator escapes the tests."""

import pytest

from stack.ops import OPS
from stack.ops.operator import OpKind
from tests.ops.cases import SAMPLED
from tests.ops.torch_truth import truth_of

ELSEWHERE = {r.name for r in OPS.values() if r.kind is OpKind.EXCHANGE} | {
    *("attention", "attention_saved", "attention_gradients"),
    *("scores", "score_gradients"),
}
"""Operators that take several ranks (tests/parallel has their cases), and those that only the
compiler makes (tests/compiler/test_passes.py)."""


def test_every_operator_is_sampled():
    assert set(SAMPLED) == set(OPS) - ELSEWHERE


def test_every_operator_has_a_truth_of_another_library():
    assert [op for op in SAMPLED if truth_of(op) is None] == ["input", "const", "philox"]


@pytest.mark.parametrize("row", OPS.values(), ids=list(OPS))
def test_rows_say_what_they_are(row):
    assert OPS[row.name] is row
    assert row.dtypes
    assert row.meaning
    if row.kind is OpKind.ELEMENTWISE:
        assert (row.lower is None) != (row.decompose is None)
