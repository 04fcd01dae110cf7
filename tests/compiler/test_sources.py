"""Which sources a graph is compiled to: few, since a device takes its time for each."""

from __future__ import annotations

from dataclasses import replace

from hal.core.dtypes import DType
from hal.core.values import LLVM_IR, OPENCL_C, KernelSource
from hal.tile.node import Type
from stack import ops as g
from stack.compiler.compile import compile_graph
from stack.compiler.program import GraphRequest, KernelCall
from tests.compiler.lowered import SIMD

DEVICE = replace(SIMD, dtypes={DType.F32: 0.0})


def request(*sizes: int) -> GraphRequest:
    inputs = tuple(g.input(i, Type((n,), DType.F32)) for i, n in enumerate(sizes))
    return GraphRequest(tuple(g.sin(x) for x in inputs), inputs)


def sources(*sizes: int) -> list[str]:
    """The entries of the calls that compute a wave of vectors of these sizes."""
    calls = compile_graph(request(*sizes), DEVICE).calls
    assert all(isinstance(c, KernelCall) and c.grid[0] > 1 for c in calls)
    return [c.source.entry for c in calls if isinstance(c, KernelCall)]


def test_whole_chunks_of_any_number_have_one_source() -> None:
    many = sources(1 << 16, 1 << 18, 3 << 18)
    assert len(many) == 3
    assert len(set(many)) == 1


def test_a_last_chunk_that_is_not_whole_has_its_own() -> None:
    assert len(set(sources(1 << 16, (1 << 18) - 40))) == 2


def test_sources_are_told_as_they_are_written_unless_they_are_built_together() -> None:
    for format, is_told in ((LLVM_IR, True), (OPENCL_C, False)):
        told: list[KernelSource] = []
        device = replace(DEVICE, formats=(format,))
        graph = compile_graph(request(100, 200, 100), device, found=told.append)
        wanted = dict.fromkeys(c.source for c in graph.calls if isinstance(c, KernelCall))
        assert told == (list(wanted) if is_told else [])
