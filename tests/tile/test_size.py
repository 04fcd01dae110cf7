import random

import pytest

from hal.core.dtypes import DType
from hal.tile.build import const
from hal.tile.node import Type, node
from hal.tile.size import (
    Facts,
    Size,
    bounds,
    divides,
    equal,
    expected,
    hint,
    is_fixed,
    is_one,
    known_divisor,
    may_be_positive,
    periods,
)


def pool_of(rng):
    """Facts with sizes made by random arithmetic, each with the integer that it should be."""
    facts = Facts()
    a, b = facts.symbol("a", rng.randint(2, 40), 2), facts.symbol("b", rng.randint(0, 40))
    pool = [(a, hint(a)), (b, hint(b)), *((k, k) for k in (1, 2, 3, 8, 64))]
    for _ in range(8):
        (x, i), (y, j) = rng.choice(pool), rng.choice(pool)
        match rng.choice("+-*/%"):
            case "+":
                pool.append((x + y, i + j))
            case "-":
                pool.append((x - y, i - j))
            case "*":
                pool.append((x * y, i * j))
            case "/" if j:
                pool.append((x // y, i // j))
            case "%" if j:
                pool.append((x % y, i % j))
    return facts, pool


def test_sums_of_products_are_expected_to_be_larger():
    facts = Facts()
    a = facts.symbol("a", 12)
    assert expected(a, 128) == 128
    assert expected(8 * a + 1, 128) == 1025
    assert expected(7, 128) == 7
    assert expected(128 // (100 - a), 100) == 1, "a quotient by what would be 0"


@pytest.mark.parametrize("seed", range(60))
def test_arithmetic_and_questions_are_those_of_integers(seed):
    rng = random.Random(seed)
    facts, pool = pool_of(rng)
    for x, i in pool:
        assert hint(x) == i
        assert facts.values([x])(facts.hints) == (i,)
        assert expected(x, 0) == i <= expected(x, 128)
        low, high = bounds(x)
        assert low is None or low <= i
        assert high is None or i <= high
    for _ in range(20):
        (x, i), (y, j) = rng.choice(pool), rng.choice(pool)
        assert [x < y, x <= y, x == y, x != y, x >= y, x > y] == [
            *(i < j, i <= j, i == j, i != j, i >= j, i > j)
        ]
    assert facts.holding()(facts.hints)


@pytest.mark.parametrize("seed", range(60))
def test_where_the_conditions_hold_all_answers_are_the_same(seed):
    """The promise on which compiling with sizes stands: what was decided once is right for every
    value that meets the conditions."""
    rng = random.Random(seed)
    facts, pool = pool_of(rng)
    asked = [(rng.choice(pool)[0], rng.choice(pool)[0]) for _ in range(6)]
    answers = [(x < y, x == y, x <= y) for x, y in asked]
    holding = facts.holding()
    for _ in range(300):
        values = {"a": rng.randint(0, 60), "b": rng.randint(0, 60)}
        if not holding(values):
            continue
        assert values["a"] >= 2
        try:
            plain = facts.values([s for pair in asked for s in pair])(values)
        except ZeroDivisionError:
            continue  # a quotient that the values do not have
        pairs = zip(plain[::2], plain[1::2], strict=True)
        assert [(x < y, x == y, x <= y) for x, y in pairs] == answers


def test_what_is_known_is_not_asked():
    facts = Facts()
    a, b = facts.symbol("a", 17, 2), facts.symbol("b", 30, 2)
    assert a * b > b
    assert 64 * a // 64 == a
    assert a * b // a == b
    assert (64 * a + 3) % 64 == 3
    assert divides(32, 64 * a)
    assert not divides(17, a)
    assert known_divisor(48 * a + 32) == 16
    assert not equal(a, 17)
    assert not is_one(a - 16)
    assert may_be_positive(a - 17)
    assert not is_fixed(a)
    assert is_fixed(a - a)
    assert not facts.conditions


def test_whoever_needs_a_number_gets_a_condition():
    facts = Facts()
    a = facts.symbol("a", 3, 2)
    assert list(range(a)) == [0, 1, 2]
    assert [str(c) for c in facts.conditions] == ["(-3 + 1*a == 0) is True"]
    holding = facts.holding()
    assert holding({"a": 3})
    assert not holding({"a": 4})


def test_sizes_of_one_hint_are_different_types():
    facts = Facts()
    a, b = facts.symbol("a", 8, 2), facts.symbol("b", 8, 2)
    types = {Type((a, 4), DType.F32), Type((b, 4), DType.F32), Type((8, 4), DType.F32)}
    assert len(types) == 3
    assert Type((a + 0, 4), DType.F32) in types
    assert not facts.conditions


def test_in_a_kernel_a_size_is_a_scalar_parameter():
    facts = Facts()
    a = facts.symbol("a", 8, 2)
    first, second = const(a * 4, DType.I64), const(a, DType.I64)
    assert first is node("scalar", Type((), DType.I64), name="n0")
    assert second is node("scalar", Type((), DType.I64), name="n1")
    assert const(4 * a, DType.I64) is first
    size = facts.size("n0")
    assert type(size) is Size
    assert size == 4 * a


def test_periods_tell_after_how_many_a_size_goes_on_as_before():
    facts = Facts()
    a, b = facts.symbol("a", 17, 2), facts.symbol("b", 8, 2)
    quarter = ((a + 1) // 2 + 1) // 2
    assert periods([a * b + 3, 7]) == {}
    assert periods([quarter * b, a % 3]) == {"a": 12}
    assert periods([a // b]) == {}


def test_a_size_by_one_that_is_known_to_be_larger_is_nothing():
    facts = Facts()
    a = facts.symbol("a", 3, 2)
    assert divmod(a, 2 * a) == (0, a)
    assert divmod(3 * a + 1, 2 * a)[0].hint == 10 // 6
    assert not facts.conditions
