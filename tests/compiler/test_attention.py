"""Attention as one kernel of cores with vector registers, interpreted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
import pytest

from hal.core.description import DeviceInfo, MatrixUnit
from hal.core.dtypes import DType
from hal.tile.kernel import Alloc
from hal.tile.node import Node, Type, substitute
from hal.tile.numeric import NUMPY
from stack import ops as g
from stack.compiler.graph import trained
from stack.compiler.graph.prepare import passes
from stack.compiler.graph.trained import fold_gradients
from stack.framework.expr.movement import lower
from stack.framework.reverse import gradients
from stack.ir.interpret import interpret
from stack.ir.text import parse_graph, print_graph
from stack.ir.verify import verify
from tests.compiler.lowered import SIMD, run_lowered
from tests.compiler.mesh.attention import attention, attention_of
from tests.compiler.mesh.machine import meshed


@pytest.mark.parametrize(
    ("shape", "keys", "causal"),
    [((2, 21, 5), 21, True), ((36, 8), 33, False), ((1, 5, 12), 67, False), ((34, 3), 70, True)],
)
def test_attention(shape: tuple[int, ...], keys: int, causal: bool) -> None:
    rng = np.random.default_rng(keys)
    sizes = (shape, (*shape[:-2], keys, shape[-1]), (*shape[:-2], keys, shape[-1]))
    arrays = [rng.standard_normal(s).astype(np.float32) for s in sizes]
    out, inputs = attention(shape, keys, causal)
    (found,), program = run_lowered([out], inputs, arrays)
    assert len(program.calls) == 1
    assert not program.temps
    np.testing.assert_allclose(found, attention_of(*arrays, causal), rtol=1e-5, atol=1e-6)


def _band(rows: int, keys: int, lo: int, hi: int) -> Node:
    """Keys from a row's number + lo to its number + hi."""
    shape = (rows, keys)
    row = g.expand(g.reshape(g.arange(rows), (rows, 1)), shape)
    key = g.expand(g.reshape(g.arange(keys), (1, keys)), shape)
    above = g.lt(key, g.add(row, g.full_like(row, hi + 1)))
    return g.and_(g.le(g.add(row, g.full_like(row, lo)), key), above)


@pytest.mark.parametrize(("lo", "hi"), [(-7, 0), (-30, -3), (3, 64)])
def test_blocks_that_no_row_sees_change_nothing(lo: int, hi: int) -> None:
    """Also where a row sees no key at all, whose result is no number."""
    rows, keys = 34, 70
    out, inputs = attention((rows, 3), keys, False, mask=_band(rows, keys, lo, hi))
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(n.shape).astype(np.float32) for n in inputs]
    (found,), program = run_lowered([out], inputs, arrays)
    assert len(program.calls) == 1
    apart = np.arange(keys) - np.arange(rows)[:, None]
    with np.errstate(invalid="ignore"):
        expected = attention_of(*arrays, False, mask=(lo <= apart) & (apart <= hi))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_mask_of_keys_in_another_order_is_stored_as_it_is_for_one_row() -> None:
    """Keys that were gathered from parts, as by ranks: no loop over all of them reads it."""
    rows, keys = 34, 66
    parts = g.input(3, Type((33, 2), DType.BOOL))
    kept = g.reshape(g.permute(parts, (1, 0)), (1, keys))
    out, inputs = attention((rows, 3), keys, False, mask=g.expand(kept, (rows, keys)))
    rng = np.random.default_rng(6)
    arrays = [rng.standard_normal(n.shape).astype(np.float32) for n in inputs]
    mask = rng.random((33, 2)) < 0.6
    (found,), program = run_lowered([out], [*inputs, parts], [*arrays, mask])
    expected = attention_of(*arrays, False, mask=mask.T.reshape(1, keys))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert sum(program.temps) <= keys


def test_a_panel_of_rows_does_not_read_what_the_panels_behind_it_see_alone() -> None:
    rows, panel = 32, 16
    arrays = [np.random.default_rng(7).standard_normal((rows, 3), np.float32) for _ in range(3)]
    out, inputs = attention((rows, 3), rows, True)
    expected = attention_of(*arrays, True)
    arrays[2][panel:] = np.nan
    (found,), _ = run_lowered([out], inputs, arrays)
    np.testing.assert_allclose(found[:panel], expected[:panel], rtol=1e-5, atol=1e-6)
    assert np.isnan(found[panel:]).all()


@dataclass(frozen=True)
class Trained:
    """An attention with its gradients: sizes, and what is made of its weights."""

    shape: tuple[int, ...]
    keys: int
    columns: int
    causal: bool = False
    dropped: bool = False
    dtype: DType = DType.F32
    turned: bool = False
    shared: int = 1
    """Heads of q for each of k and v."""


TRAINED = [
    Trained((1, 35, 5), 38, 5, causal=True),
    Trained((1, 5, 12), 66, 3),
    Trained((1, 2, 17, 8), 11, 12, dropped=True),
    Trained((2, 10, 4), 10, 4, causal=True, dropped=True, dtype=DType.BF16),
    Trained((1, 2, 9, 6), 14, 6, turned=True),
    Trained((1, 2, 3, 9, 6), 14, 6, causal=True, shared=3),
]


@pytest.mark.parametrize("case", TRAINED, ids=str)
def test_gradients_take_memory_of_the_length(
    case: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trained, "ROWS_OF_PART", 16)  # two cores share the rows of the first case
    outputs, inputs = with_gradients(case)
    rng = np.random.default_rng(case.keys)
    arrays = [rng.standard_normal(n.shape).astype(NUMPY[n.dtype]) for n in inputs]
    found, program = run_lowered(outputs, inputs, arrays)
    values = dict(zip(inputs, arrays, strict=True))
    expected = interpret(outputs, values)
    near = 2e-4 if case.dtype is DType.F32 else 4e-2
    for mine, meant in zip(found, expected, strict=True):
        mine, meant = mine.astype(np.float64), np.asarray(meant).astype(np.float64)
        np.testing.assert_allclose(mine, meant, near, near * np.abs(meant).max())
    folded = tuple(outputs)
    for run in passes(lambda outputs: fold_gradients(outputs, SIMD.limits.instances)):
        folded = run(folded)
        verify(folded)
    assert parse_graph(print_graph(folded)) == folded
    for same, meant in zip(interpret(folded, values), expected, strict=True):
        exact = np.asarray(meant).astype(np.float64)
        np.testing.assert_allclose(same.astype(np.float64), exact, near, near * np.abs(exact).max())
    names = [c.kernel.name for c in program.calls if "attention" in c.kernel.name]
    assert len(names) == 2, names
    *batch, rows, depth = case.shape
    linear = prod(batch) * (rows + case.keys) * (depth + case.columns + 2)
    assert sum(program.temps) <= 4 * 3 * linear


def unit(m: int, n: int, k: int, registers: int = 0) -> MatrixUnit:
    """One for pairs of bfloat16, on registers of eight sums or on tile registers."""
    of_tiles = {x: x for x in ("register", "clear", "load", "store")} if registers else {}
    return MatrixUnit(
        *(m, n, k, DType.BF16, DType.F32),
        together=2,
        call="multiply",
        registers=registers,
        **of_tiles,
    )


UNITS = [unit(1, 8, 2), unit(8, 8, 4, 8), unit(16, 16, 32, 8)]


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("case", [TRAINED[0], TRAINED[2], TRAINED[5]], ids=str)
@pytest.mark.parametrize("of", UNITS, ids=["vectors", "tiles", "deep tiles"])
def test_a_matrix_unit_reads_operands_as_they_are(case: Trained, of: MatrixUnit) -> None:
    """What the kernels pack of q, k, v and weights, in the type in which they are in memory."""
    outputs, inputs = with_gradients(replace(case, dtype=DType.BF16))
    rng = np.random.default_rng(case.keys)
    arrays = [rng.standard_normal(n.shape).astype(NUMPY[n.dtype]) for n in inputs]
    found, program = run_lowered(outputs, inputs, arrays, info=replace(SIMD, matrix_units=(of,)))
    expected = interpret(outputs, dict(zip(inputs, arrays, strict=True)))
    for mine, meant in zip(found, expected, strict=True):
        exact = np.asarray(meant).astype(np.float64)
        np.testing.assert_allclose(mine.astype(np.float64), exact, 0, 1e-2 * np.abs(exact).max())
    for call in program.calls:
        if "attention" in call.kernel.name:
            rooms = (x.memory for x in call.kernel.body if isinstance(x, Alloc))
            packed = {room.name for room in rooms if room.dtype is DType.BF16}
            assert packed >= {"q", "k", "v", "weights"}


@pytest.mark.parametrize(
    ("case", "info"), [(TRAINED[2], SIMD), (TRAINED[0], meshed(2, 2))], ids=["vectors", "mesh"]
)
def test_beside_gradients_attention_without_them_has_the_same_bits(
    case: Trained, info: DeviceInfo
) -> None:
    """As `checkpoint` has it once forward alone, and again with its gradients."""
    outputs, inputs = with_gradients(case)
    again = g.input(4, inputs[0].type)
    outputs += substitute(outputs[:1], {inputs[0]: again})
    inputs.append(again)
    rng = np.random.default_rng(case.keys)
    arrays = [rng.standard_normal(n.shape).astype(NUMPY[n.dtype]) for n in inputs[:4]]
    found, program = run_lowered(outputs, inputs, [*arrays, arrays[0]], info=info)
    assert found[0].tobytes() == found[-1].tobytes()
    folded = sum("attention" in c.kernel.name for c in program.calls)
    assert folded == (3 if info is SIMD else 0)


def with_gradients(case: Trained) -> tuple[list[Node], list[Node]]:
    """The result, and the gradients by q, k and v of its product with a given array."""
    *batch, rows, depth = case.shape
    q = g.input(0, Type(case.shape, case.dtype))
    if case.turned:  # a head's rows apart, as in one product for all heads
        at = (batch[0], rows, batch[1], depth)
        q = g.input(0, Type(at, case.dtype))
    sizes = ((case.keys, depth), (case.keys, case.columns), (rows, case.columns))
    owners = [(*batch[:-1], batch[-1] // case.shared)] * 2 + [tuple(batch)]
    k, v, given = (
        g.input(i, Type((*of, *size), case.dtype))
        for i, (of, size) in enumerate(zip(owners, sizes, strict=True), 1)
    )
    inputs = [q, k, v, given]
    if case.shared > 1:
        k, v = (g.expand(x, (*batch, *x.shape[-2:])) for x in (k, v))
    heads = g.permute(q, (0, 2, 1, 3)) if case.turned else q
    scores = g.matmul(heads, g.transpose(k), DType.F32)
    scores = g.mul(scores, g.full_like(scores, 0.3))
    alone = (1,) * len(batch)
    if case.causal:
        mask = g.reshape(lower(rows, case.keys), (*alone, rows, case.keys))
        scores = g.where(g.expand(mask, scores.shape), scores, g.full_like(scores, -np.inf))
    last = (len(scores.shape) - 1,)
    most = g.reduce("max", scores, last)
    detached = g.input(4, most.type)  # nothing flows through what a softmax subtracts
    power = g.exp(g.sub(scores, g.expand(detached, scores.shape)))
    weights = g.mul(power, g.expand(g.recip(g.reduce("sum", power, last)), scores.shape))
    if case.dropped:
        odd = g.reshape(g.arange(weights.type.size), weights.shape)
        kept = g.ne(g.and_(odd, g.full_like(odd, 3)), g.full_like(odd, 1))
        zero = g.full_like(weights, 0)
        weights = g.mul(g.where(kept, weights, zero), g.full_like(weights, 1.5))
    out = g.matmul(g.cast(weights, case.dtype), v)
    found = gradients([(out, given)], lambda n: n in inputs[:3])
    outputs = [out, *(found[n] for n in inputs[:3])]
    return list(substitute(outputs, {detached: most})), inputs
