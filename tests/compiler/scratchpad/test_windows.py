"""Transfers for many instances and steps at once leave what the statements one by one would."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hal.tile.numeric import NUMPY
from hal.tile.verify import verify
from tests.compiler.scratchpad.affine import affine
from tests.compiler.scratchpad.machine import agree

NBYTES = 1 << 16


@pytest.mark.slow
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(affine(), st.sampled_from((0, 300, 600, 4096)), st.integers(0, 99))
def test_random_walks(device, made, room_nbytes, seed) -> None:
    kernel, instances, dtype = made
    verify(kernel)
    rng, kind = np.random.default_rng(seed), NUMPY[dtype]
    count = NBYTES // 2
    buffers = {name: rng.integers(-50, 50, count).astype(kind) for name in "abc"}
    agree(device, kernel, (instances,), buffers, room_nbytes=room_nbytes)
