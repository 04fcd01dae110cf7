"""Which sources a graph is compiled to: few, since a device takes its time for each."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.core.values import LLVM_IR, OPENCL_C, KernelSource
from hal.tile.node import Type
from stack import ops as g
from stack.compiler.compile import compile_graph
from stack.compiler.known import Known, Recent
from stack.compiler.program import GraphRequest, KernelCall
from tests.compiler.graphs import requests
from tests.compiler.growing import Growing
from tests.compiler.lowered import SIMD
from tests.compiler.test_random_graphs import budget

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


def test_what_an_earlier_graph_had_is_not_made_anew() -> None:
    known = Known()
    first, second = (
        {c.source for c in compile_graph(request(*sizes), DEVICE, known=known).calls}
        for sizes in ((100, 200), (200, 300, 100))
    )
    assert len(first) == 2
    assert {id(source) for source in first} < {id(source) for source in second}


@budget(20)
@given(st.lists(requests(), min_size=2, max_size=3))
def test_a_graph_is_compiled_as_if_nothing_was_known(
    made: list[tuple[GraphRequest, Growing]],
) -> None:
    """Names too, so that a cache has one text for a graph."""
    known, device = Known(), replace(SIMD, dtypes=dict.fromkeys(DType, 0.0))
    for graph, _ in (*made, made[0]):
        assert compile_graph(graph, device, known=known) == compile_graph(graph, device)


def test_what_was_met_last_is_known() -> None:
    recent = Recent[int](4)
    for i in range(100):
        recent.put(i, i)
        assert all(recent.get(n) == n for n in (0, max(i - 1, 0), i))
    assert sum(recent.get(i) is not None for i in range(100)) <= 8
