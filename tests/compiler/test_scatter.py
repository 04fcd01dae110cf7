"""Scatters whose slots several instances share: equal, bit for bit, to those of one instance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.node import Type
from stack import ops as g
from stack.compiler.templates import scatter
from tests.compiler.lowered import SIMD, run_lowered

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("kind", ["sum", "set", "max"])
@pytest.mark.parametrize(("rows", "slots", "after"), [(1, 37, ()), (2, 9, ()), (1, 16, (5,))])
def test_instances_that_share_slots_give_what_one_gives(monkeypatch, kind, rows, slots, after):
    shape, count = (rows, slots, *after), 40
    base = RNG.standard_normal(shape).astype(np.float32)
    index = RNG.integers(-3, slots + 3, (rows, count))
    updates = RNG.standard_normal((rows, count, *after)).astype(np.float32)
    x, i, u = (
        g.input(n, Type(a.shape, DType.I64 if n == 1 else DType.F32))
        for n, a in enumerate((base, index, updates))
    )
    output = g.scatter(kind, x, i, u, 1, batch=True)
    found, grids = [], []
    for cores, many in ((1, scatter.MANY), (7, 32)):
        monkeypatch.setattr(scatter, "MANY", many)
        info = replace(SIMD, limits=replace(SIMD.limits, instances=cores))
        results, program = run_lowered([output], [x, i, u], [base, index, updates], info=info)
        found.append(results[0])
        grids.append(max(call.grid[0] for call in program.calls))
    np.testing.assert_array_equal(found[0], found[1])
    each = -(-slots // (7 // rows))
    assert grids == [rows, rows * -(-slots // each)]
    expected = base.copy()
    combine = {"sum": np.add, "max": np.maximum, "set": lambda old, new: new}[kind]
    for row in range(rows):
        for place, update in zip(index[row], updates[row], strict=True):
            if 0 <= place < slots:
                expected[row, place] = combine(expected[row, place], update)
    np.testing.assert_array_equal(found[1], expected)
