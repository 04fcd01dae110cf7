"""Random kernels of every statement and operation against the interpreter, on groups of lanes."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hal.core.values import ParamKind
from hal.tile.verify import verify
from tests.compiler.c.agreement import agree
from tests.compiler.c.tame import SIZE
from tests.compiler.simt.machine import run
from tests.compiler.simt.settled import settled
from tests.tile.kernels import arrays, kernels, numbers


@pytest.mark.slow
@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(kernels(), st.sampled_from((1, 4, 16, 64)), st.data())
def test_random_kernels(grown, lanes, data) -> None:
    kernel = settled(grown)
    verify(kernel)
    buffers = {
        p.name: data.draw(arrays(p.dtype, SIZE), p.name)
        for p in kernel.params
        if p.kind is ParamKind.BUFFER
    }
    scalars = {
        p.name: data.draw(numbers(p.dtype), p.name)
        for p in kernel.params
        if p.kind is ParamKind.SCALAR
    }
    agree(kernel, (1,), buffers, scalars, run=partial(run, lanes=lanes))
