"""Runs a request's tile kernels in the tile interpreter, to be compared with the graph interpreter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hal.core.description import (
    DeviceInfo,
    Limits,
    MemorySpace,
    NumericProfile,
    SpaceKind,
)
from hal.tile.interpret import interpret as interpret_kernel
from hal.tile.node import Node
from hal.tile.numeric import NUMPY
from hal.tile.verify import verify
from stack.compiler.compile import TileProgram, lower_graph
from stack.compiler.program import GraphRequest
from stack.ir.interpret import interpret
from stack.ops import OPS

SIMD = DeviceInfo(
    name="simd:0",
    plugin="simd",
    description="eight lanes, two cores",
    fingerprint="",
    contract=1,
    limits=Limits((1 << 31,) * 3, 1024, 1 << 34, 8, 2, 32, 16, 1, (32 << 10, 512 << 10)),
    spaces=(
        MemorySpace("global", SpaceKind.GLOBAL, 1 << 34, 64),
        MemorySpace("scratch", SpaceKind.SCRATCHPAD, 4 << 20, 64),
    ),
    dtypes={},
    numeric=NumericProfile({}, True, True, {}),
    formats=("llvm-ir/1",),
    features=frozenset(),
)
UNTOUCHED = 77


def run_lowered(
    outputs: Sequence[Node],
    inputs: Sequence[Node],
    arrays: Sequence[np.ndarray],
    updates: Sequence[tuple[int, int]] = (),
) -> tuple[list[np.ndarray], TileProgram]:
    """The outputs as the tile kernels compute them, and the program."""
    program = lower_graph(GraphRequest(tuple(outputs), tuple(inputs), tuple(updates)), SIMD, OPS)
    memory = {
        ("input", i): np.ascontiguousarray(a).reshape(-1).copy() for i, a in enumerate(arrays)
    }
    for i, o in enumerate(outputs):
        memory["output", i] = np.full(o.type.size, UNTOUCHED, NUMPY[o.dtype])
    memory.update({("output", o): memory["input", i] for o, i in updates})
    temps = [np.full(n, 0xAB, np.uint8) for n in program.temps]
    for call in program.calls:
        verify(call.kernel)
        bound = {}
        for param, part in zip(call.kernel.params, call.buffers, strict=True):
            whole = temps[part.index] if part.kind == "temp" else memory[part.kind, part.index]
            cut = whole.view(np.uint8)[part.offset : part.offset + part.nbytes]
            bound[param.name] = cut.view(NUMPY[param.dtype])
        interpret_kernel(call.kernel, call.grid, bound, {})
    for target, temp, _ in program.copies:
        memory["input", target].view(np.uint8)[:] = temps[temp]
    return [memory["output", i].reshape(o.shape) for i, o in enumerate(outputs)], program


def check(
    outputs: Sequence[Node],
    inputs: Sequence[Node],
    arrays: Sequence[np.ndarray],
    updates: Sequence[tuple[int, int]] = (),
    rtol: float = 1e-4,
) -> TileProgram:
    """Assert that the kernels compute what the graph means; give the program."""
    expected = interpret(list(outputs), dict(zip(inputs, arrays, strict=True)), OPS)
    found, program = run_lowered(outputs, inputs, arrays, updates)
    for k, (f, e) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(
            f.astype(np.float64),
            np.asarray(e).astype(np.float64),
            rtol,
            1e-5,
            err_msg=f"output {k}",
        )
    return program
