"""Results that caches do not hold: the next kernel and the host see every element."""

from __future__ import annotations

import numpy as np
import pytest

import hal
from hal.core.dtypes import DType
from hal.core.values import OpenOptions
from hal.tile.node import Node, Type
from stack import ops as build
from stack.compiler.compile import compile_graph
from stack.compiler.program import GraphRequest
from stack.compiler.text import streamed
from stack.runtime import engine_of


@pytest.mark.parametrize("shape", [((1 << 23) + 5,), (1025, 8190)])
def test_a_kernel_behind_one_that_writes_past_the_caches(shape: tuple[int, ...]) -> None:
    """Of the rows of the second shape every other one begins at a multiple of 16 bytes."""

    def doubled(x: Node) -> Node:
        return build.add(x, build.add(x, build.full_like(x, 1)))

    x = build.input(0, Type(shape, DType.F32))
    request = GraphRequest((doubled(x),), (x,))
    host = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 1000
    one = OpenOptions(settings={"lanes": "1"})
    with engine_of(hal.open("opencl:0", options=one)) as engine:
        (call,) = compile_graph(request, engine.device.info).calls
        assert host.nbytes >= streamed.LEAST_NBYTES
        assert "HAL_STREAM" in call.source.text
        plan, array = engine.plan(request), engine.put(host, DType.F32)
        for _ in range(3):
            (array,) = plan.run([array])
            host = 2 * host + 1
        np.testing.assert_array_equal(engine.get(array), host)
