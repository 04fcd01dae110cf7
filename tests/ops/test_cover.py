"""No operation escapes the tests: each type rule has a record, each record a way to draw cases."""

import pytest

from stack.ir.record import OpKind
from stack.ir.types import RULES
from stack.ops import OPS
from tests.ops.cases import CASES
from tests.ops.torch_truth import TORCH

STOPS = frozenset(
    [
        "input",
        "const",
        "arange",
        "not",
        "floor",
        "ceil",
        "round",
        "floordiv",
        "and",
        "or",
        "xor",
        "shl",
        "shr",
        "eq",
        "ne",
        "lt",
        "le",
        "bitcast",
        "philox",
        "argmax",
        "argmin",
    ]
)
"""Operations through which no derivative flows."""


EXCHANGES = frozenset({"all_reduce"})
"""Operations that take several ranks: tests/parallel has their cases."""


def test_every_rule_has_a_record_and_every_record_a_case():
    assert set(OPS) == set(RULES) == set(CASES) | EXCHANGES


def test_every_record_has_a_truth_of_another_library():
    assert set(OPS) - set(TORCH) - EXCHANGES == {"input", "const", "philox"}


def test_exactly_the_differentiable_operations_have_gradients():
    assert {name for name, r in OPS.items() if r.gradient is None} == STOPS


@pytest.mark.parametrize("record", OPS.values(), ids=list(OPS))
def test_records_are_named_and_lower_by_kind(record):
    assert OPS[record.name] is record
    assert (record.lower is not None) == (record.kind is OpKind.ELEMENTWISE)
    assert record.dtypes
    assert record.meaning
