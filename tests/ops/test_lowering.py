"""Lowerings of elementwise operations in the tile interpreter against the numpy references."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hal.tile import build as tile
from hal.tile.interpret import interpret as run_kernel
from stack.ir.interpret import interpret
from stack.ops import OPS
from stack.ops.random import LOW, block
from tests.draw import sample
from tests.ops.cases import Maker, drawn
from tests.ops.tolerance import assert_close

EACH = [(op, d) for op, r in OPS.items() if r.lower for d in sorted(r.dtypes)]
LOWERED = sample("lowering", EACH, 50)
"""Drawn in each run."""


def lowered_kernel(n, size):
    """One program instance that computes `size` elements of the node from flat operand buffers."""
    b = tile.Builder("one")
    buffers = [b.buffer(f"x{i}", s.dtype) for i, s in enumerate(n.srcs)]
    out = b.buffer("y", n.dtype, reads=False, writes=True)
    loaded = [b.load(x, 0, (size,), (1,)) for x in buffers]
    computed = [tile.cast(x, x.dtype.computed_in) for x in loaded]
    y = OPS[n.op].lower(n, tuple(computed))
    assert y.dtype is n.dtype.computed_in
    b.store(out, 0, tile.cast(y, n.dtype), (1,))
    return b.kernel()


@pytest.mark.parametrize(("op", "dtype"), LOWERED, ids=[f"{op}-{d.short}" for op, d in LOWERED])
@settings(max_examples=4, derandomize=True, deadline=None, database=None)
@given(data=st.data())
def test_lowering_means_what_the_reference_says(op, dtype, data):
    m = Maker(data.draw, views=False)
    n = drawn(m, op, dtype)
    assume(n.op == op and n.type.size > 0)
    buffers = {f"x{i}": m.inputs[s].ravel() for i, s in enumerate(n.srcs)}
    buffers["y"] = np.zeros(n.type.size, interpret([n], m.inputs)[0].dtype)
    run_kernel(lowered_kernel(n, n.type.size), (1,), buffers, {})
    (expected,) = interpret([n], m.inputs)
    assert_close(buffers["y"].reshape(n.shape), expected, n.dtype)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        (0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (2**128 - 1, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            0x03707344_13198A2E_85A308D3_243F6A88,
            0x299F31D0_A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_vectors(counter, key, words):
    of = lambda number, count: [np.array([number >> 32 * i & LOW], np.uint64) for i in range(count)]
    assert [int(w[0]) for w in block(of(counter, 4), of(key, 2))] == list(words)
