"""Graphs that were once compiled wrongly, and the corners next to them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from ml_dtypes import bfloat16

from hal.core.dtypes import DType
from hal.tile.kernel import Store
from hal.tile.node import Node, Type, toposort
from hal.tile.walk import map_nodes
from stack import ops as g
from stack.compiler.program import GraphRequest
from tests.compiler.lowered import check, lowered, run_lowered

F, I64 = DType.F32, DType.I64


def source(slot: int, *shape: int, dtype: DType = F) -> Node:
    return g.input(slot, Type(shape, dtype))


def count(n: Node) -> np.ndarray:
    return np.arange(1, 1 + n.type.size, dtype=np.float32).reshape(n.shape)


def test_a_kernel_does_not_read_a_concatenation_that_it_fills() -> None:
    x = source(0, 1)
    joined = g.add(g.pad(x, (0,), (1,)), g.pad(x, (1,), (0,)))
    below = g.add(g.abs(g.slice(joined, (0,), (1,))), g.full((1,), 1, F))
    check([g.div(x, below)], [x], [count(x)])


def test_an_empty_update_writes_nothing() -> None:
    x, empty = source(0, 1, 2, 1), source(1, 0, 2)
    nothing = g.expand(g.slice(g.reshape(x, (2, 1)), (0, 0), (0, 1)), (0, 2))
    check([nothing, g.neg(x)], [x, empty], [count(x), count(empty)], updates=((0, 1),))


@pytest.mark.parametrize("axis", [0, 1])
def test_ordered_kernels_store_views_that_they_cannot_index(axis: int) -> None:
    x, index = source(0, 2, 3), source(1, dtype=I64)
    odd = g.reshape(g.permute(x, (1, 0)), (6,))
    updates = g.slice(odd, (1,), (1 + x.shape[1 - axis],))
    outputs = [
        g.scatter("sum", x, index, updates, axis),
        g.scan("sum", g.reshape(odd, (2, 3)), axis),
    ]
    check(outputs, [x, index], [count(x), np.int64(1)])


def test_a_slice_that_is_all_padding_reads_nothing() -> None:
    x, y = source(0, 4, 2), source(1, 4, 17)
    sums = g.add(g.pad(x, (0, 0), (0, 15), 7), y)
    check([g.slice(g.reshape(sums, (68,)), (9,), (10,))], [x, y], [count(x), count(y)])


def test_an_index_that_its_own_kernel_computes() -> None:
    x = source(0, 5)
    at = g.cast(g.reshape(g.argmax(x, 0), ()), DType.I32)
    check([g.gather(x, at, 0)], [x], [np.array([1, 4, 2, 9, 3], np.float32)])


def test_a_product_is_not_written_over_its_operands() -> None:
    x = source(0, 12, 12)
    product = g.minimum(g.matmul(x, x), g.full((12, 12), 900, F))
    program = check([product], [x], [count(x)], updates=((0, 0),))
    assert len(program.copies) == 1


def test_operand_and_epilogue_that_split_the_batch_at_different_places() -> None:
    x, y, z = source(0, 3, 2, 2, 4), source(1, 6, 4, 5), source(2, 3, 2, 2, 5)
    left = g.reshape(g.permute(x, (1, 0, 2, 3)), (6, 2, 4))  # 6 is 2 x 3 here
    product = g.matmul(left, y)
    other = g.reshape(g.permute(g.reshape(z, (3, 2, 2, 5)), (0, 1, 2, 3)), (6, 2, 5))
    turned = g.reshape(g.permute(g.reshape(other, (3, 2, 2, 5)), (1, 0, 2, 3)), (6, 2, 5))
    three = g.reshape(g.permute(g.reshape(z, (2, 3, 2, 5)), (1, 0, 2, 3)), (6, 2, 5))
    outputs = [g.add(product, turned), g.add(product, three)]
    check(outputs, [x, y, z], [count(x), count(y), count(z)])


def test_a_transposed_root_is_not_read_before_all_of_it_is_there() -> None:
    x, y = source(0, 4, 4), source(1, 4, 4)
    turned = g.contiguous(g.permute(g.add(x, y), (1, 0)))
    outputs = [g.mul(turned, g.add(x, y)), turned, g.permute(g.permute(turned, (1, 0)), (1, 0))]
    check(outputs, [x, y], [count(x), count(y)])


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_positions_of_a_narrow_type_are_rounded(dtype: DType) -> None:
    size = 4100
    ramp = g.cast(g.arange(size, dtype), F)
    check([ramp], [], [], rtol=0)


def test_an_output_that_is_the_old_value_of_an_updated_input() -> None:
    x, y = source(0, 6), source(1, 6)
    outputs = [g.mul(x, y), x, g.flip(x, 0), g.sub(y, x)]
    check(outputs, [x, y], [count(x), -count(y)], updates=((0, 0), (3, 1)))


def test_updates_that_pass_values_around() -> None:
    a, b, c = source(0, 5), source(1, 5), source(2, 5)
    arrays = [count(a), 10 * count(b), 100 * count(c)]
    program = check([b, c, a], [a, b, c], arrays, updates=((0, 0), (1, 1), (2, 2)))
    assert len(program.copies) == 1


def test_an_update_in_pieces_keeps_the_old_value_until_the_end() -> None:
    x, y = source(0, 6), source(1, 6)
    late, early = g.slice(x, (3,), (6,)), g.slice(x, (0,), (3,))
    rolled = g.concat([g.neg(late), g.mul(early, g.slice(y, (0,), (3,)))], 0)
    program = check([rolled], [x, y], [count(x), count(y)], updates=((0, 0),))
    assert len(program.copies) == 1


def test_an_update_in_pieces_that_read_nothing_of_others_is_in_place() -> None:
    """As ranks put parameters together of what they gathered; other readers come first."""
    x, y = source(0, 2, 6), source(1, 2, 6)
    of_x, of_y = ([g.slice_axis(n, 1, i, i + 3) for i in (0, 3)] for n in (x, y))
    arrays = [count(x), 10 * count(y)]
    for pieces in (of_y[::-1], [g.neg(of_x[0]), of_y[0]], [g.neg(of_x[0]), g.exp(of_x[1])]):
        outputs = [g.concat(pieces, 1), g.reduce("sum", x, (0, 1))]
        program = check(outputs, [x, y], arrays, updates=((0, 0),))
        assert not program.copies, pieces


def test_an_update_of_a_reversed_view_needs_a_copy() -> None:
    x = source(0, 6)
    program = check([g.flip(x, 0)], [x], [count(x)], updates=((0, 0),))
    assert len(program.copies) == 1


@pytest.mark.parametrize("of", [g.contiguous, g.exp, lambda n: g.reduce("sum", n, (2,))])
def test_a_piece_whose_place_and_views_want_other_loops(of: Callable[[Node], Node]) -> None:
    x, y = source(0, 3, 2, 2), source(1, 3, 2, 1)
    turned = g.reshape(g.permute(x, (1, 0, 2)), (3, 2, 2))  # two loops of 2 and 3 steps
    check([g.concat([of(turned), of(g.expand(y, (3, 2, 2)))], 1)], [x, y], [count(x), count(y)])


def test_a_concatenation_of_concatenations_whose_pieces_are_used_elsewhere() -> None:
    x, y = source(0, 2, 3), source(1, 2, 3)
    inner = g.concat([g.neg(x), g.mul(x, y)], 1)
    outer = g.concat([inner, g.exp(g.neg(x)), inner, x], 1)
    outputs = [outer, inner, g.reduce("sum", inner, (0,)), g.slice(outer, (0, 3), (2, 9))]
    check(outputs, [x, y], [count(x), count(y)])


def test_unused_inputs_and_constant_outputs() -> None:
    x = source(0, 3)
    outputs = [g.full((2, 2), 3, F), g.arange(4), g.reduce("sum", g.full((40,), 1, F))]
    found, _ = run_lowered(outputs, [x], [count(x)])
    np.testing.assert_array_equal(found[0], np.full((2, 2), 3, np.float32))
    np.testing.assert_array_equal(found[1], np.arange(4))
    assert found[2].item() == 40


@pytest.mark.parametrize(
    "step",
    [
        lambda n: g.flip(g.neg(n), 0),
        lambda n: g.slice(g.pad(g.flip(n, 0), (1,), (0,), 3), (0,), (6,)),
        lambda n: g.sub(n, g.flip(n, 0)),
    ],
)
def test_deep_graphs_need_no_deep_recursion(step: Callable[[Node], Node]) -> None:
    x = source(0, 6)
    n = x
    for _ in range(300):
        n = step(n)
    check([n], [x], [np.zeros(6, np.float32)])


@pytest.mark.parametrize("dtype", [I64, DType.I32, DType.U8])
def test_a_sum_of_one_element_reads_it_alone(dtype: DType) -> None:
    """As a loss takes the class that is meant: of a row less its greatest, next to the sum of its
    exponentials. What else a row has does not count, be it no number, and indices beyond the row
    choose nothing."""
    rows, classes = 24, 200
    x, at = source(0, rows, classes), source(1, rows, dtype=dtype)
    most = g.reduce("max", x, 1)
    apart = g.sub(x, g.expand(most, x.shape))
    hit = g.eq(
        g.expand(g.reshape(at, (rows, 1)), x.shape),
        g.expand(g.reshape(g.arange(classes, dtype), (1, classes)), x.shape),
    )
    picked = [
        g.reduce("sum", g.where(hit, value, g.full_like(value, 0)), 1) for value in (apart, x)
    ]
    outputs = [*picked, g.reduce("sum", g.exp(apart), 1)]
    values = np.random.default_rng(3).standard_normal((rows, classes)).astype(np.float32)
    values[1, 7], values[2, 9] = -0.0, np.nan
    index = np.arange(rows) * 8
    index[:6] = 3, 7, 8, 5, 199, 0
    index[-2:] = (250, 200) if dtype is DType.U8 else (-1, 2**31 - 1)
    given = [values, index.astype(np.uint8 if dtype is DType.U8 else f"i{dtype.nbytes}")]
    found, program = run_lowered(outputs, [x, at], given)
    inside = (index >= 0) & (index < classes)
    wanted = np.where(inside, values[np.arange(rows), np.clip(index, 0, classes - 1)], 0)
    np.testing.assert_array_equal(found[1].reshape(-1), wanted)
    assert not np.signbit(found[1].reshape(-1)[1])
    least = np.where(inside, wanted - values.max(1), 0)
    np.testing.assert_array_equal(found[0].reshape(-1), least)
    (call,) = program.calls
    used: dict[Node, None] = {}
    map_nodes(call.kernel, lambda n: used.setdefault(n) or n)
    assert any(n.op == "eq" and n.shape for n in toposort(used)) is (dtype is DType.U8)


def test_what_is_chosen_of_bfloat16_is_stored_as_it_is() -> None:
    """Special values, too; what is computed is rounded."""
    given = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-40, 3e38, -2.5, 7], bfloat16)
    x, nothing = source(0, 11, dtype=DType.BF16), g.full((11,), 0, DType.BF16)

    def casts(output: Node) -> int:
        check([output], [x], [given])
        (call,) = lowered(GraphRequest((output,), (x,))).calls
        stored = [s.value for s in call.kernel.body if isinstance(s, Store)]
        return sum(n.op == "cast" and n.dtype is DType.BF16 for n in toposort(stored))

    assert casts(g.where(g.lt(x, nothing), g.neg(x), g.abs(x))) == 0
    assert casts(g.maximum(x, g.full((11,), 0.3, DType.BF16))) == 0
    assert casts(g.add(x, x)) == 1
