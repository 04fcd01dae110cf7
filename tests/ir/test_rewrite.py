"""The rewriting engine: meaning is kept, a fixpoint is reached, rows without an end are named."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.tile import build
from hal.tile.build import const
from hal.tile.evaluate import evaluate
from hal.tile.node import Node, Type, node, substitute, toposort
from stack.ir.pattern import capture, constant, match, number_of, op
from stack.ir.rewrite import RewriteError, rewrite

I32, F32, I64 = DType.I32, DType.F32, DType.I64
X, Y, Z = (node("var", Type((4,), F32), id=i) for i in range(3))


def folded(x: Node, y: Node) -> Node:
    a, b = number_of(x), number_of(y)
    return const((a + b + 2**31) % 2**32 - 2**31, I32, x.shape)


SIMPLIFY = (
    (op("add", capture("x"), constant(0), commutative=True), lambda x: x),
    (op("mul", capture("x"), constant(1), commutative=True), lambda x: x),
    (op("mul", capture(), constant(0, "zero"), commutative=True), lambda zero: zero),
    (op("add", constant(name="x"), constant(name="y")), folded),
)
DISTRIBUTE = (
    (op("neg", op("neg", capture("x"))), lambda x: x),
    (op("sub", capture("x"), capture("y")), lambda x, y: build.add(x, build.unary("neg", y))),
    (
        op("neg", op("add", capture("x"), capture("y"))),
        lambda x, y: build.add(build.unary("neg", x), build.unary("neg", y)),
    ),
    (
        op("mul", capture("a"), op("add", capture("x"), capture("y")), commutative=True),
        lambda a, x, y: build.add(build.mul(a, x), build.mul(a, y)),
    ),
    (op(("min", "max"), capture("x"), capture("x")), lambda x: x),
)
LEAVES = st.sampled_from([0, 0, 1, 1, 2, -5, 2**31 - 1]).map(lambda v: const(v, I32, (2,)))
BIG = st.builds(lambda k: build.add(build.mul(build.arange(2, I32), k), 3), st.integers(-9, 9))
INTEGERS = st.recursive(
    LEAVES | BIG,
    lambda inner: (
        st.builds(build.binary, st.sampled_from(["add", "sub", "mul", "min", "max"]), inner, inner)
        | st.builds(build.unary, st.just("neg"), inner)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(INTEGERS)
@settings(deadline=None, max_examples=150)
def test_identities_keep_the_meaning_and_reach_a_fixpoint(root: Node) -> None:
    rows = SIMPLIFY + DISTRIBUTE
    (found,) = rewrite([root], rows)
    np.testing.assert_array_equal(evaluate(found), evaluate(root))
    assert rewrite([found], rows) == (found,)
    for n in toposort([found]):
        for pattern, function in rows:
            captures = match(pattern, n)
            assert captures is None or function(**captures) in (None, n)


def test_sharing_is_kept() -> None:
    shared = build.add(X, 0.0)
    (found,) = rewrite([build.mul(shared, shared)], SIMPLIFY_FLOAT)
    assert found is build.mul(X, X)


SIMPLIFY_FLOAT = ((op("add", capture("x"), constant(0.0), commutative=True), lambda x: x),)


def test_several_roots_come_back_in_order() -> None:
    roots = (X, build.add(Y, 0.0), Y)
    assert rewrite(roots, SIMPLIFY_FLOAT) == (X, Y, Y)


def test_the_earlier_row_wins() -> None:
    first = ((op("neg", capture("x")), lambda x: X),)
    second = ((op("neg", capture("x")), lambda x: Y),)
    assert rewrite([build.unary("neg", Z)], first + second) == (X,)
    assert rewrite([build.unary("neg", Z)], second + first) == (Y,)


def test_a_row_may_decline() -> None:
    rows = ((op("neg", capture("x")), lambda x: None), (op("neg", capture("x")), lambda x: x))
    assert rewrite([build.unary("neg", Z)], rows) == (Z,)


def test_results_are_rewritten_again() -> None:
    rows = (
        (op("exp", capture("x")), lambda x: build.unary("neg", build.unary("log", x))),
        (op("log", capture("x")), lambda x: build.unary("abs", x)),
        (op("neg", op("abs", capture("x"))), lambda x: x),
    )
    assert rewrite([build.unary("sqrt", build.unary("exp", X))], rows) == (build.unary("sqrt", X),)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (((op("add", capture("x"), capture("y")), lambda x, y: build.add(y, x)),), "add(x, y)"),
        (
            ((op("add", capture("x"), capture("y")), lambda x, y: build.add(build.add(x, y), y)),),
            "add",
        ),
        (
            ((op("exp", capture("x")), lambda x: build.unary("exp", build.unary("neg", x))),),
            "exp(x)",
        ),
        (
            (
                (op("exp", capture("x")), lambda x: build.unary("log", x)),
                (op("neg", capture("x")), lambda x: x),
                (op("log", capture("x")), lambda x: build.unary("exp", x)),
            ),
            "log(x)",
        ),
    ],
)
def test_rows_without_an_end_are_named(rows, named: str) -> None:
    root = build.unary("exp", build.unary("neg", build.add(X, Y)))
    with pytest.raises(RewriteError, match="does not come to an end") as e:
        rewrite([root], rows)
    lines = str(e.value).splitlines()
    assert named in "".join(lines[1:])
    assert "neg(x)" not in "".join(lines[1:])
    assert "test_rewrite.py:" in lines[1]


def test_the_limit_is_how_many_replacements_wait() -> None:
    count = op("const", name="n", dtype=I64)
    rows = ((count, lambda n: const(n["value"] + 1, I64) if n["value"] < 50 else None),)
    assert rewrite([const(0, I64)], rows, limit=50) == (const(50, I64),)
    with pytest.raises(RewriteError, match="const"):
        rewrite([const(0, I64)], rows, limit=49)


def test_a_row_must_keep_the_type() -> None:
    rows = ((op("neg", capture("x")), lambda x: build.cast(x, DType.F64)),)
    with pytest.raises(RewriteError, match="types differ"):
        rewrite([build.unary("neg", X)], rows)


@pytest.mark.parametrize("depth", [5_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_depth_does_not_matter(depth: int) -> None:
    deep = X
    for _ in range(depth):
        deep = build.unary("neg", deep)
    rows = ((op("neg", op("neg", capture("x"))), lambda x: x),)
    assert rewrite([deep], rows) == (X,)
    (other,) = substitute([deep], {X: Y})
    assert rewrite([other], rows) == (Y,)


# patterns


def found(pattern, n: Node) -> bool:
    return match(pattern, n) is not None


def test_patterns_see_operation_type_attributes_and_sources() -> None:
    n = build.reduce("sum", X, 0)
    assert match(op("reduce", capture("x"), kind="sum", name="r"), n) == {"x": X, "r": n}
    assert found(op(("scan", "reduce"), kind="sum", axis=0), n)
    assert not found(op("reduce", kind="max"), n)
    assert not found(op("scan"), n)
    assert found(op("reduce", dtype=F32, shape=(), kinds="f"), n)
    assert not found(op("reduce", dtype=(I32, I64)), n)
    assert not found(op("reduce", kinds="iu"), n)
    assert not found(op("reduce", capture(shape=(3,))), n)
    assert not found(op("reduce", capture("x"), capture("y")), n)
    assert found(op("reduce", capture(when=lambda x: x["id"] == 0)), n)
    assert not found(op("reduce", when=lambda x: x["axis"] == 1), n)


def test_one_name_is_one_node() -> None:
    pattern = op("mul", capture("x"), op("neg", capture("x")))
    assert found(pattern, build.mul(X, build.unary("neg", X)))
    assert not found(pattern, build.mul(X, build.unary("neg", Y)))


def test_commutative_tries_both_orders_with_captures_from_one() -> None:
    negated = op("neg", capture("x"))
    pattern = op(
        "add", op("mul", negated, capture("y"), commutative=True), capture("x"), commutative=True
    )
    for product in (build.mul(build.unary("neg", X), Y), build.mul(Y, build.unary("neg", X))):
        for n in (build.add(product, X), build.add(X, product)):
            assert match(pattern, n) == {"x": X, "y": Y}
        assert match(pattern, build.add(product, Y)) is None
    ordered = op("sub", capture("x"), constant())
    assert not found(ordered, build.sub(1.0, X))
    with pytest.raises(ValueError, match="needs two sources"):
        op("neg", capture(), commutative=True)


@pytest.mark.parametrize(
    ("pattern", "value", "matches"),
    [
        (0.0, 0.0, True),
        (0.0, -0.0, False),
        (-0.0, -0.0, True),
        (0, 0.0, True),
        (math.nan, math.nan, True),
        (1.0, math.nan, False),
        (math.inf, math.inf, True),
        (None, 7.5, True),
    ],
)
def test_constants_match_by_value(pattern, value: float, matches: bool) -> None:
    assert found(constant(pattern), const(value, F32)) == matches
    assert found(constant(pattern), const(value, F32, (2, 3))) == matches
    assert not found(constant(pattern), X)
    assert not found(constant(pattern, when=lambda n: False), const(value, F32))


def test_substitute_leaves_the_values_alone() -> None:
    inner = build.unary("neg", X)
    mapping = {X: Y, Y: Z, inner: build.add(X, Y)}
    root = build.mul(inner, build.add(X, Y))
    assert substitute([root, X], mapping) == (build.mul(build.add(X, Y), build.add(Y, Z)), Y)
