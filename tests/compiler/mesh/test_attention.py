"""Attention as one kernel, interpreted."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.lowered import run_lowered
from tests.compiler.mesh.attention import attention, attention_of
from tests.compiler.mesh.machine import meshed


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("shape", "keys"), [((2, 2, 21, 5), 21), ((70, 8), 33), ((1, 40, 3), 40)])
def testattention(shape: tuple[int, ...], keys: int, causal: bool) -> None:
    rng = np.random.default_rng(keys)
    sizes = (shape, (*shape[:-2], keys, shape[-1]), (*shape[:-2], keys, shape[-1]))
    arrays = [rng.standard_normal(s).astype(np.float32) for s in sizes]
    out, inputs = attention(shape, keys, causal)
    (found,), program = run_lowered([out], inputs, arrays, info=meshed(2, 2))
    assert len(program.calls) == 1
    np.testing.assert_allclose(found, attention_of(*arrays, causal), rtol=1e-5, atol=1e-6)


def test_weights_that_something_else_reads_are_stored() -> None:
    out, inputs = attention((40, 8), 40, causal=False)
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((40, 8)).astype(np.float32) for _ in inputs]
    outs = [out, out.srcs[0]]
    (found, weights), program = run_lowered(outs, inputs, arrays, info=meshed(2, 2))
    assert len(program.calls) > 1
    np.testing.assert_allclose(found, attention_of(*arrays, False), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
