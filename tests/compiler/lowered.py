"""A request's tile kernels run in the tile interpreter, to be compared with the graph's meaning."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from stack.compiler.graph.attention import fold
from stack.compiler.graph.prepare import PASSES
from stack.compiler.kernels import TileProgram, lower_graph
from stack.compiler.program import GraphRequest
from stack.compiler.targets import choose
from stack.compiler.templates.schedule import NO_CHOICES, Choices
from stack.ir.interpret import interpret
from stack.ir.verify import verify as verify_graph

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
POISONS = (0xAB, 0xFF)
"""What fills memory that nothing has written: small negative numbers, and NaN."""


def lowered(
    request: GraphRequest, info: DeviceInfo = SIMD, choices: Choices = NO_CHOICES
) -> TileProgram:
    """The request's tile kernels for a device; the graph is verified after each pass."""
    outputs = request.outputs
    for run in (*PASSES, fold):
        outputs = run(outputs)
        verify_graph(outputs)
    return lower_graph(request, info, choose(info).templates, choices)


def run_lowered(
    outputs: Sequence[Node],
    inputs: Sequence[Node],
    arrays: Sequence[np.ndarray],
    updates: Sequence[tuple[int, int]] = (),
    info: DeviceInfo = SIMD,
    choices: Choices = NO_CHOICES,
    run: Callable[..., None] = interpret_kernel,
) -> tuple[list[np.ndarray], TileProgram]:
    """The outputs as the tile kernels compute them, and the program.

    Asserts that every kernel is valid, that neither the order of a kernel's instances nor what is
    in memory that nothing has written matters, and that no input changes but the updated ones.
    """
    request = GraphRequest(tuple(outputs), tuple(inputs), tuple(updates))
    program = lowered(request, info, choices)
    for call in program.calls:
        verify(call.kernel)
    first, second = (
        _run(request, program, arrays, poison, seed, run)
        for poison, seed in zip(POISONS, (None, 1), strict=True)
    )
    for place, found in first.items():
        assert found.tobytes() == second[place].tobytes(), f"{place} depends on order or garbage"
    updated = {i for _, i in updates}
    for i, a in enumerate(arrays):
        assert i in updated or first["input", i].tobytes() == a.tobytes(), f"input {i} changed"
    return [first["output", i].reshape(o.shape) for i, o in enumerate(outputs)], program


def _run(
    request: GraphRequest,
    program: TileProgram,
    arrays: Sequence[np.ndarray],
    poison: int,
    seed: int | None,
    run: Callable[..., None],
) -> dict[tuple[str, int], np.ndarray]:
    """The memory of inputs and outputs after a run."""
    memory = {("input", i): np.array(a).reshape(-1) for i, a in enumerate(arrays)}
    for i, o in enumerate(request.outputs):
        dtype = NUMPY[o.dtype]
        memory["output", i] = np.full(o.type.size * dtype.itemsize, poison, np.uint8).view(dtype)
    memory.update({("output", o): memory["input", i] for o, i in request.updates})
    temps = {("temp", i): np.full(n, poison, np.uint8) for i, n in enumerate(program.temps)}
    for call in program.calls:
        bound = {}
        for param, part in zip(call.kernel.params, call.buffers, strict=True):
            whole = {**memory, **temps}[part.kind, part.index]
            cut = whole.view(np.uint8)[part.offset_nbytes :][: part.nbytes]
            assert cut.size == part.nbytes, f"{param.name} of {call.kernel.name} ends beyond {part}"
            bound[param.name] = cut.view(NUMPY[param.dtype])
        run(call.kernel, call.grid, bound, {}, seed)
    for target, temp, _ in program.copies:
        memory["input", target].view(np.uint8)[:] = temps["temp", temp]
    return memory


def check(
    outputs: Sequence[Node],
    inputs: Sequence[Node],
    arrays: Sequence[np.ndarray],
    updates: Sequence[tuple[int, int]] = (),
    rtol: float = 1e-4,
) -> TileProgram:
    """Assert that the kernels compute what the graph means; give the program."""
    expected = interpret(list(outputs), dict(zip(inputs, arrays, strict=True)))
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
