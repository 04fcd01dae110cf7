"""Attention as one kernel of cores with vector registers, interpreted."""

from __future__ import annotations

import numpy as np
import pytest

from hal.tile.node import Node
from stack import ops as g
from tests.compiler.lowered import run_lowered
from tests.compiler.mesh.attention import attention, attention_of


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("shape", "keys"), [((2, 21, 5), 21), ((40, 8), 33), ((1, 10, 20), 131)])
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


@pytest.mark.parametrize(("lo", "hi"), [(-7, 0), (-60, -3), (3, 64)])
def test_blocks_that_no_row_sees_change_nothing(lo: int, hi: int) -> None:
    """Also where a row sees no key at all, whose result is no number."""
    rows, keys = 45, 100
    out, inputs = attention((rows, 6), keys, False, mask=_band(rows, keys, lo, hi))
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(n.shape).astype(np.float32) for n in inputs]
    (found,), program = run_lowered([out], inputs, arrays)
    assert len(program.calls) == 1
    apart = np.arange(keys) - np.arange(rows)[:, None]
    with np.errstate(invalid="ignore"):
        expected = attention_of(*arrays, False, mask=(lo <= apart) & (apart <= hi))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
