"""Random kernels of every statement and operation against the interpreter, on slave cores."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hal.core.values import ParamKind
from hal.tile.verify import verify
from tests.compiler.c.tame import SIZE, tamed
from tests.compiler.scratchpad.machine import agree
from tests.tile.kernels import arrays, kernels, numbers


@pytest.mark.slow
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)
@given(kernels(), st.data())
def test_random_kernels(device, grown, data) -> None:
    kernel = tamed(grown)
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
    agree(device, kernel, (1,), buffers, scalars)
