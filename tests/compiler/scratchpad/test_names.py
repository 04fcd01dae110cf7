"""What this lowering takes for granted: parameters that a kernel writes share no bytes with others
that it reads, so that transfers may pass accesses to memories of other names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hal.core.description import SpaceKind
from stack.compiler.program import BufferRef, GraphRequest
from stack.compiler.templates.emit import TileCall
from tests.compiler.graphs import requests
from tests.compiler.lowered import SIMD, lowered
from tests.compiler.test_random_graphs import budget, small_thresholds

BY_TRANSFERS = replace(
    SIMD,
    spaces=tuple(
        replace(s, dma_only=s.kind is SpaceKind.SCRATCHPAD, nbytes=min(s.nbytes, 1 << 30))
        for s in SIMD.spaces
    ),
)


def overlaps(call: TileCall, updates: dict[int, int]) -> Iterator[str]:
    """The pairs of a written and a read parameter with bytes of one buffer."""
    pairs = zip(call.kernel.params, call.buffers, strict=True)
    for (a, x), (b, y) in permutations(pairs, 2):
        same = buffer(x, updates) == buffer(y, updates)
        a0, b0 = x.offset_nbytes, y.offset_nbytes
        meet = a0 < b0 + y.nbytes and b0 < a0 + x.nbytes
        if a.writes and b.reads and same and meet:
            yield f"{call.kernel.name}: {a.name} and {b.name}"


def buffer(part: BufferRef, updates: dict[int, int]) -> tuple[str, int]:
    """The buffer that a part is of: an output that updates an input is that input."""
    if part.kind == "output" and part.index in updates:
        return "input", updates[part.index]
    return part.kind, part.index


@pytest.mark.slow
@budget(40)
@given(requests(), st.booleans())
def test_names_mean_memories(made: tuple[GraphRequest, object], small: bool) -> None:
    request, _ = made
    if small:
        with small_thresholds():
            program = lowered(request, BY_TRANSFERS)
    else:
        program = lowered(request, BY_TRANSFERS)
    found = [x for c in program.calls for x in overlaps(c, dict(request.updates))]
    assert not found
