"""What the fusing compiler computes (against the graph's meaning) and how many kernels it takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile import evaluate
from hal.tile.kernel import Store
from hal.tile.node import Type, toposort
from hal.tile.walk import statements
from stack import ops as g
from stack.framework.reverse import gradients
from tests.compiler.lowered import SIMD, check, run_lowered
from tests.compiler.models import arrays, attention, grown, layer_norm, softmax, source

F = DType.F32


def test_elementwise_chain_is_one_kernel() -> None:
    x, b = source(0, 16, 24), source(1, 24)
    program = check([g.exp(g.add(x, grown(b, (16, 24))))], [x, b], arrays(x, b))
    assert len(program.calls) == 1
    assert not program.temps


def test_softmax_is_one_kernel_that_keeps_the_row_in_scratch() -> None:
    x = source(0, 16, 24)
    program = check([softmax(x)], [x], arrays(x))
    assert len(program.calls) == 1
    assert not program.temps


def test_residual_and_layer_norm_share_a_kernel() -> None:
    x, y, gain = source(0, 32, 48), source(1, 32, 48), source(2, 48)
    total = g.add(x, y)
    normal, _ = layer_norm(total)
    out = g.mul(normal, grown(gain, normal.shape))
    program = check([out, total], [x, y, gain], arrays(x, y, gain))
    assert len(program.calls) == 1


def test_layer_norm_gradient_takes_a_row_kernel_and_a_column_kernel() -> None:
    x, gain, d = source(0, 32, 48), source(1, 48), source(2, 32, 48)
    normal, deviation = layer_norm(x)
    dn = g.mul(d, grown(gain, d.shape))
    inverse = g.full((32, 1), 1 / 48, F)
    mean = g.mul(g.reduce("sum", dn, (1,)), inverse)
    slope = g.mul(g.reduce("sum", g.mul(dn, normal), (1,)), inverse)
    inner = g.sub(g.sub(dn, g.expand(mean, d.shape)), g.mul(normal, g.expand(slope, d.shape)))
    dx = g.mul(g.expand(deviation, d.shape), inner)
    dgain, dbias = g.reduce("sum", g.mul(d, normal), (0,)), g.reduce("sum", d, (0,))
    program = check([dx, dgain, dbias], [x, gain, d], arrays(x, gain, d))
    assert len(program.calls) == 2


def test_a_layers_gradient_is_added_to_one_that_is_there_as_it_is_computed() -> None:
    x, w, d, before = source(0, 64, 24), source(1, 40, 24), source(2, 64, 40), source(3, 40, 24)
    y = g.matmul(x, g.permute(w, (1, 0)))
    by_w = gradients([(y, d)], lambda n: n is w)[w]
    program = check([g.add(before, by_w)], [x, d, before], arrays(x, d, before))
    assert len(program.calls) == 1
    assert not program.temps


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("shape", [(130, 150), (1, 4099), (16384,), (20000,)])
def test_long_reductions_go_in_steps(shape: tuple[int, ...]) -> None:
    x = source(0, *shape)
    check([g.reduce("sum", x, tuple(range(len(shape)))), g.reduce("max", x, (0,))], [x], arrays(x))


@pytest.mark.parametrize(("rows", "cores", "kernels"), [(64, 2, 1), (8, 2, 3), (64, 64, 3)])
def test_rows_enough_for_all_cores_are_reduced_in_one_step(rows: int, cores: int, kernels: int):
    """What is computed of a row is then computed where it is read, as of a group's norm."""
    x = source(0, rows, 2048)
    apart = g.sub(x, g.expand(g.reduce("sum", x, (1,)), x.shape))
    info = replace(SIMD, limits=replace(SIMD.limits, instances=cores))
    (found,), program = run_lowered([apart], [x], arrays(x), info=info)
    (values,) = arrays(x)
    np.testing.assert_allclose(found, values - values.sum(1, keepdims=True), 1e-4, 1e-3)
    assert len(program.calls) == kernels


@pytest.mark.parametrize("turned", [False, True])
def test_chosen_matrices_need_no_copy(turned: bool) -> None:
    """A product reads them where they are; one that is out of range is 0, and other gathers are
    copied."""
    x, w = g.input(0, Type((5, 9, 17), DType.F32)), g.input(1, Type((3, 17, 17), DType.F32))
    at = g.input(2, Type((5,), DType.I64))
    some = g.gather(w, at, 0)
    given = arrays(x, w)
    numbers = np.array([2, -1, 0, 3, 2])
    product = g.matmul(x, g.transpose(some) if turned else some)
    assert len(check([product], [x, w, at], [*given, numbers]).calls) == 1
    rows = g.gather(g.reshape(w, (51, 17)), at, 0)
    other = g.matmul(g.reshape(x, (45, 17)), g.transpose(rows))
    assert len(check([other], [x, w, at], [*given, numbers]).calls) == 2


def test_what_a_number_chooses_is_zero_by_itself_where_there_is_nothing() -> None:
    x, at = g.input(0, Type((9, 40), F)), g.input(1, Type((9, 40), DType.I64))
    numbers = np.random.default_rng(0).integers(-3, 44, (9, 40))
    chosen = g.gather(x, at, 1, batch=True)
    program = check([g.exp(chosen)], [x, at], [*arrays(x), numbers])
    (kernel,) = (c.kernel for c in program.calls)
    values = [s.value for s in statements(kernel.body) if isinstance(s, Store)]
    assert not any(n.op == "where" for n in toposort(values))
    # A load does not give this zero.
    padded = g.pad(x, (0, 2), (0, 3), -0.0)
    check([g.div(g.full_like(padded, 1.0), padded), g.pad(x, (0, 2), (0, 3), 0.0)], [x], arrays(x))


def test_what_no_number_chooses_is_not_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of which both operands are out of range is 0; if one of them is not, it is
    computed."""
    x, w = g.input(0, Type((3, 9, 17), F)), g.input(1, Type((3, 17, 17), F))
    numbers = [g.input(i, Type((4,), DType.I64)) for i in (2, 3)]
    product = g.matmul(g.gather(x, numbers[0], 0), g.gather(w, numbers[1], 0))
    count = 0
    dot = evaluate._STRUCTURAL["dot"]

    def counted(*operands: object) -> object:
        nonlocal count
        count += 1
        return dot(*operands)

    monkeypatch.setitem(evaluate._STRUCTURAL, "dot", counted)  # type: ignore[arg-type]
    counts = []
    for chosen in ([-1, -1, -1, -1], [0, -1, 2, -1], [0, 1, 2, 0]):
        count = 0
        both = [np.array(chosen), np.array([3, -1, 1, 3])]
        check([g.neg(product)], [x, w, *numbers], [*arrays(x, w), *both])
        counts.append(count)
    one, two, four = counts
    assert one * 4 == two * 2 == four > 0


def test_attention_needs_no_copy_of_a_view() -> None:
    x, w, bias, out = source(0, 16, 8), source(1, 24, 8), source(2, 24), source(3, 8, 8)
    y = g.add(g.matmul(attention(x, w, bias, 2, 2), out), x)
    program = check([y], [x, w, bias, out], arrays(x, w, bias, out))
    # qkv, scores, softmax, mix (stored in the order that the output projection reads), projection
    assert len(program.calls) == 5


def test_update_reads_slices_of_the_old_value_and_is_in_place() -> None:
    p, m, x, y, rate = source(0, 100), source(1, 100), source(2, 6, 10), source(3, 40), source(4)
    w1 = g.reshape(g.slice(p, (0,), (60,), (1,)), (6, 10))
    w2 = g.slice(p, (60,), (100,), (1,))
    out = g.matmul(x, g.permute(w1, (1, 0)))
    gradient = g.concat([g.reshape(g.mul(w1, x), (60,)), g.mul(w2, y)], 0)
    moment = g.add(g.mul(m, g.full((100,), 0.9, F)), g.mul(gradient, g.full((100,), 0.1, F)))
    value = g.sub(p, g.mul(moment, g.expand(g.reshape(rate, (1,)), (100,))))
    nodes = (p, m, x, y, rate)
    program = check([out, value, moment], nodes, arrays(*nodes), updates=((1, 0), (2, 1)))
    assert not program.copies
    assert len(program.calls) == 4  # the product, two pieces of the gradient in place, one update


def test_updates_leave_products_and_sums_to_be_in_place() -> None:
    """Fused with the gradient's kernel they were written beside the input and copied: weights and
    moments once more in memory."""
    x, d = source(0, 12, 8), source(1, 12, 6)
    w, m, b = source(2, 8, 6), source(3, 8, 6), source(4, 1, 6)
    dw, db = g.matmul(g.permute(x, (1, 0)), d), g.reduce("sum", d, (0,))
    moment = g.add(g.mul(m, g.full(m.shape, 0.9, F)), dw)
    values = [g.sub(w, moment), moment, g.sub(b, db), dw, db]
    nodes = (x, d, w, m, b)
    program = check(values, nodes, arrays(*nodes), updates=((0, 2), (1, 3), (2, 4)))
    assert not program.copies
    assert not program.temps
    assert len(program.calls) == 4  # the product and the sum, and what each updates


def test_clipped_gradients_are_written_over_those_before_clipping() -> None:
    """Gradients before and after clipping were both in memory: GPT-2 124M took a fifth more."""
    x, d, w = source(0, 12, 8), source(1, 12, 6), source(2, 8, 6)
    dw = g.matmul(g.permute(x, (1, 0)), d)
    dv = g.matmul(g.permute(d, (1, 0)), d)
    sums = [g.reduce("sum", g.mul(n, n), (0, 1)) for n in (dw, dv)]
    scale = g.div(g.full((1, 1), 1.0, F), g.add(sums[0], sums[1]))
    clipped = [g.mul(n, g.expand(scale, n.shape)) for n in (dw, dv)]
    value = g.sub(w, clipped[0])
    program = check([value, *clipped], (x, d, w), arrays(x, d, w), updates=((0, 2),))
    assert not program.copies
    assert not [n for n in program.temps if n > 4]


def test_what_others_read_later_or_elsewhere_is_not_written_over() -> None:
    x = source(0, 8, 8)
    y = g.matmul(x, x)
    turned = g.add(y, g.permute(y, (1, 0)))
    check([turned], (x,), arrays(x))
    check([g.neg(y), g.matmul(y, g.exp(y))], (x,), arrays(x))
    row = g.expand(g.reduce("max", y, (1,)), y.shape)
    check([g.exp(y), g.sub(y, row)], (x,), arrays(x))
    check([g.sub(y, row), g.exp(y)], (x,), arrays(x))
    check([g.matmul(y, y), g.add(g.matmul(x, y), y)], (x,), arrays(x))


def test_what_has_its_memory_with_others_is_not_written_over() -> None:
    """The whole of two pieces came where one of them was to be: half of it was behind the end."""
    x, d = source(0, 8, 8), source(1, 8, 8)
    y, z = g.matmul(x, x), g.matmul(d, d)
    total = g.reduce("sum", g.concat([y, z], 0), (0, 1))
    check([g.mul(y, g.expand(total, y.shape))], (x, d), arrays(x, d))


def test_the_first_piece_of_a_concatenation_is_written_over_what_it_is_the_last_to_read() -> None:
    """Gradients of parameters that are one array: what is added to the first of them lies there."""
    x, d = source(0, 8, 8), source(1, 8, 8)
    y, z = g.matmul(x, x), g.matmul(d, d)
    for axis in (0, 1):
        joined = g.concat([g.add(y, z), g.exp(d), g.neg(x)], axis)
        total = g.reduce("sum", joined, (0, 1))
        program = check([g.mul(joined, g.expand(total, joined.shape))], (x, d), arrays(x, d))
        # Along the last axis a piece is no run of bytes, and the product lies beside it.
        assert len([n for n in program.temps if n == 8 * 8 * 4]) == axis


def test_logarithms_of_a_softmax_and_their_gradient_are_written_over_logits() -> None:
    """They were in memory besides; logarithms are read by the loss, too."""
    for width in (8, 45):
        x, w, labels = source(0, 24, 8), source(1, 8, width), source(2, 24, width)
        logits = g.matmul(x, w)
        most = g.expand(g.reduce("max", logits, (1,)), logits.shape)
        below = g.sub(logits, most)
        sums = g.reduce("sum", g.exp(below), (1,))
        logs = g.sub(below, g.expand(g.log(sums), logits.shape))
        loss = g.reduce("sum", g.mul(logs, labels), (0, 1))
        whole = g.expand(g.reduce("sum", labels, (1,)), logits.shape)
        gradient = g.sub(labels, g.mul(g.exp(logs), whole))
        back = g.matmul(g.permute(x, (1, 0)), gradient)
        program = check([loss, back], (x, w, labels), arrays(x, w, labels))
        assert len([n for n in program.temps if n >= 24 * width * 4]) == 2


def test_a_product_is_added_to_a_temporary_where_that_is() -> None:
    """Tied embeddings: the gradient of the rows that were looked up, and that of the last layer."""
    x, d, at = source(0, 6, 8), source(1, 6, 40), source(2, 6, dtype=DType.I64)
    rows = g.scatter("sum", g.full((40, 8), 0.0, F), at, x, 0)
    whole = g.add(rows, g.matmul(g.permute(d, (1, 0)), x))
    given = [*arrays(x, d), np.array([3, 39, 3, 0, 7, 7])]
    program = check([whole, g.reduce("sum", whole, (0, 1))], (x, d, at), given)
    assert not [n for n in program.temps if n >= 40 * 8 * 4]


def test_an_update_that_is_copied_at_the_end_is_not_written_over() -> None:
    """Outputs took the memory of what was yet to be copied: the input became what lay there."""
    x = source(0, 8)
    turned = g.add(g.flip(x, (0,)), x)
    program = check([turned, g.neg(turned)], (x,), arrays(x), updates=((0, 0),))
    assert len(program.copies) == 1


def test_swapped_inputs_need_one_copy() -> None:
    a, b = source(0, 10), source(1, 10)
    program = check([b, a], [a, b], arrays(a, b), updates=((0, 0), (1, 1)))
    assert len(program.copies) == 1


def test_gradient_of_a_split_is_written_in_place() -> None:
    x = source(0, 2, 8, 4)
    first = g.pad(x, (0, 0, 0), (0, 0, 8), 0.0)
    second = g.pad(g.mul(x, x), (0, 0, 4), (0, 0, 4), 0.0)
    third = g.pad(g.neg(x), (0, 0, 8), (0, 0, 0), 0.0)
    check([g.add(g.add(first, second), third)], [x], arrays(x))


def test_indexing() -> None:
    table, updates = source(0, 7, 12), source(2, 2, 5, 12)
    index = g.input(1, Type((2, 5), DType.I64))
    values = arrays(table, updates)
    chosen = np.random.default_rng(1).integers(-1, 8, (2, 5))
    outputs = [
        g.exp(g.gather(table, index, 0)),
        g.gather(table, index, 1),
        g.scatter("sum", g.full((7, 12), 0, F), index, updates, 0),
        g.scatter("sum", table, index, updates, 0),
    ]
    check(outputs, [table, index, updates], [values[0], chosen, values[1]])


def test_scans_arguments_and_views() -> None:
    x = source(0, 7, 12)
    odd = g.reshape(g.permute(x, (1, 0)), (4, 21))
    outputs = [
        g.scan("sum", x, 0),
        g.scan("sum", x, 1),
        g.scan("max", x, 1),
        g.argmax(x, 1),
        g.argmax(x, 0),
        g.pad(x, (1, 2), (0, 3), 1.5),
        g.flip(x, (0, 1)),
        g.slice(x, (1, 2), (7, 12), (2, 3)),
        odd,
        g.add(odd, g.reshape(x, (4, 21))),
    ]
    check(outputs, [x], arrays(x))


def test_scalars_empty_tensors_and_repeated_outputs() -> None:
    x, empty = source(0), source(1, 0, 3)
    outputs = [g.exp(x), g.add(x, x), x, x, g.reduce("sum", empty, (0,)), g.exp(empty)]
    outputs.append(g.matmul(g.permute(empty, (1, 0)), empty))
    check(outputs, [x, empty], [np.float32(2), np.zeros((0, 3), np.float32)])
