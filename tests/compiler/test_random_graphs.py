"""Random graphs compiled to kernels against the graph interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from hal.tile.node import Node, toposort
from stack.compiler.graph import fuse, prepare, roots
from stack.compiler.program import GraphRequest
from stack.compiler.targets import Target, table
from stack.compiler.templates import lanes, scratch
from stack.compiler.templates.schedule import LoopSizes
from stack.compiler.templates.signature import Signature
from tests.compiler.graphs import requests
from tests.compiler.growing import Growing
from tests.compiler.lowered import SIMD, lowered, run_lowered

TOLERANCE = {DType.F64: 1e-6, DType.F32: 1e-3, DType.F16: 0.3, DType.BF16: 1.0}
TOLERANCE |= {DType.F8E4M3FN: 16.0, DType.F8E5M2: 32.0}
"""For values that are only nearly exact, relative to the greater of 1 and the expected value."""


def with_small_loops(target: Target) -> Target:
    """The target with loop nests that small tensors cut."""
    sizes = LoopSizes(unroll=2, rows_on_grid=8, chunk=64)
    loops = replace(target.templates.loops, sizes=sizes)
    return replace(target, templates=replace(target.templates, loops=loops))


SMALL = {
    scratch: {"ROW_SCRATCH_NBYTES": 256},
    fuse: {"MOST_ROOTS": 6, "SERIAL": 128, "ENOUGH_ROWS": 4},
    lanes: {"UNROLL": 1},
    table: {"TARGETS": tuple(map(with_small_loops, table.TARGETS))},
    prepare: {"FEW": 8, "LONG": 32, "DEEP": 8, "PART": 2},
    roots: {"INLINE_LIMIT": 12, "CHEAP": 5, "NESTING_LIMIT": 7},
}
"""The compiler's thresholds at sizes that small tensors pass."""


@contextmanager
def small_thresholds() -> Iterator[None]:
    with ExitStack() as stack:
        for module, values in SMALL.items():
            stack.enter_context(mock.patch.multiple(module, **values))
        yield


def narrow(vector_nbytes: int) -> DeviceInfo:
    """A device whose vectors and caches are small."""
    limits = replace(SIMD.limits, vector_nbytes=vector_nbytes, caches=(512, 4096))
    return replace(SIMD, limits=limits)


def shared(lanes: int) -> DeviceInfo:
    """A device on which so many lanes run an instance."""
    limits = replace(SIMD.limits, vector_nbytes=0, lanes=lanes, caches=(512, 4096))
    return replace(SIMD, limits=limits)


DEVICES = (*map(narrow, (8, 16, 32)), *map(shared, (4, 64)))


def agrees(request: GraphRequest, d: Growing, info: DeviceInfo) -> None:
    """Assert that the request compiles to kernels that compute its values."""
    arrays = [d.values[n] for n in request.inputs]
    found, program = run_lowered(request.outputs, request.inputs, arrays, request.updates, info)
    with mock.patch.object(Signature, "value", side_effect=object):
        assert program == lowered(request, info), "unequal work shares a kernel"
    for i, (n, actual) in enumerate(zip(request.outputs, found, strict=True)):
        expected, near = d.values[n], tolerance(n) if d.rough(n) else 0
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(
            actual.astype(np.float64),
            expected.astype(np.float64),
            near,
            near,
            err_msg=f"output {i}",
        )


def tolerance(n: Node) -> float:
    """That of the coarsest type on the way: a kernel may round to it, or keep what it has."""
    return max(TOLERANCE[m.dtype] for m in toposort([n]) if m.dtype.is_float)


def budget(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.slow
@pytest.mark.turns
@budget(60)
@given(requests(), st.sampled_from(DEVICES))
def test_random_graphs(made: tuple[GraphRequest, Growing], info: DeviceInfo) -> None:
    agrees(*made, info)


@pytest.mark.slow
@pytest.mark.turns
@budget(60)
@given(requests(), st.sampled_from(DEVICES))
def test_random_graphs_that_pass_every_threshold(
    made: tuple[GraphRequest, Growing], info: DeviceInfo
) -> None:
    with small_thresholds():
        agrees(*made, info)
