"""The order of kernels: it respects every dependency and frees buffers early."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given

from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from stack import ops as g
from stack.compiler.graph.cluster import Cluster
from stack.compiler.graph.fuse import Fusion
from stack.compiler.graph.order import schedule, update_in_place
from stack.compiler.graph.prepare import prepare
from stack.compiler.graph.roots import base
from stack.compiler.graph.solve import fuse
from stack.compiler.kernels import order_clusters
from stack.compiler.program import GraphRequest
from stack.compiler.targets import choose
from stack.compiler.templates.emit import TileCall
from stack.compiler.templates.schedule import NO_CHOICES
from tests.compiler.graphs import requests
from tests.compiler.growing import Growing
from tests.compiler.lowered import SIMD, lowered
from tests.compiler.mesh.machine import meshed
from tests.compiler.test_random_graphs import budget

F = DType.F32


def source(slot: int, *shape: int) -> Node:
    return g.input(slot, Type(shape, F))


def fused(outputs: Sequence[Node], inputs: Sequence[Node]) -> Fusion:
    return fuse(prepare(GraphRequest(tuple(outputs), tuple(inputs))))[0]


def peak(fusion: Fusion, order: Iterable[Cluster]) -> int:
    """The most bytes of computed roots that live at once."""
    clusters = list(order)
    last = {n: i for i, c in enumerate(clusters) for r in c.roots for n in fusion.needs[r]}
    live = most = 0
    for i, c in enumerate(clusters):
        live += sum(r.type.size * r.dtype.nbytes for r in c.roots)
        most = max(most, live)
        done = {n for r in c.roots for n in fusion.needs[r] if last[n] == i and n in fusion.of}
        live -= sum(n.type.size * n.dtype.nbytes for n in done)
    return most


@budget(40)
@given(requests())
def test_a_schedule_is_a_topological_order(made: tuple[GraphRequest, Growing]) -> None:
    request = prepare(made[0])
    fusion, _ = fuse(request)
    order, copies = update_in_place(request, fusion)
    assert sorted(c.number for c in order) == sorted(c.number for c in fusion.clusters)
    done: set[Cluster] = set()
    for cluster in order:
        assert done.issuperset(fusion.dependencies(cluster))
        done.add(cluster)
    assert set(copies) <= set(request.updates)


@budget(40)
@given(requests())
def test_an_input_is_written_in_place_after_everything_that_reads_it(
    made: tuple[GraphRequest, Growing],
) -> None:
    request = prepare(made[0])
    fusion, _ = fuse(request)
    order, copies = update_in_place(request, fusion)
    at = {c: i for i, c in enumerate(order)}
    for output, target in set(request.updates) - set(copies):
        root, old = request.outputs[output], request.inputs[target]
        if not root.type.size:
            continue
        home = fusion.homes[old]
        there = (home.kind, home.index)
        homes = {r: (fusion.homes[r].kind, fusion.homes[r].index) for r in fusion.of}
        written = {c for r, c in fusion.of.items() if homes[r] == there}
        assert written
        readers = {c for r, c in fusion.of.items() if old in fusion.needs[r]}
        assert all(at[c] < at[w] for c in readers - written for w in written)


def test_a_part_of_an_input_is_written_once_nothing_reads_it_any_more() -> None:
    """What ranks gather of the parameters of the first layers is put in its place before those of
    the last ones are read."""
    flat, x = source(0, 4 * 1024), source(1, 32, 32)
    parts = [g.slice_axis(flat, 0, k * 1024, (k + 1) * 1024) for k in range(4)]
    values, pieces = [x], []
    for k, part in enumerate(parts):
        values.append(g.matmul(values[k], g.reshape(part, (32, 32))))
        total = g.all_reduce("sum", g.matmul(g.transpose(values[k]), values[k + 1]), "line", str(k))
        pieces.append(g.reshape(g.add(total, total), (1024,)))
    request = prepare(GraphRequest((g.concat(pieces, 0),), (flat, x), ((0, 0),)))
    fusion, _ = fuse(request)
    order, copies = update_in_place(request, fusion)
    assert not copies
    readers = [c for c in order if any(flat in fusion.needs[r] for r in c.roots)]
    writers = [c for c in order if any(fusion.homes[r].kind == "input" for r in c.roots)]
    assert len(readers) == len(writers) == 4
    at = {c: i for i, c in enumerate(order)}
    assert all(at[r] < at[w] for r, w in zip(readers, writers, strict=True))
    assert at[writers[0]] < at[readers[3]]


def test_branches_are_finished_one_after_the_other() -> None:
    x, inputs = source(0, 64, 64), [source(i + 1, 64, 64) for i in range(6)]
    wide = [g.matmul(x, w) for w in inputs]
    narrow = [g.reduce("sum", g.matmul(p, p), (0, 1)) for p in wide]
    total = narrow[0]
    for n in narrow[1:]:
        total = g.add(total, n)
    fusion = fused([total], [x, *inputs])
    order = schedule(fusion, {})
    assert order is not None
    size = 64 * 64 * 4
    breadth_first = sorted(fusion.clusters, key=lambda c: (c.kind != "matmul", c.number))
    assert peak(fusion, order) < 4 * size
    assert peak(fusion, order) < peak(fusion, breadth_first)


def test_a_chain_keeps_its_order() -> None:
    x = source(0, 32, 32)
    n = x
    for _ in range(5):
        n = g.matmul(n, x)
    fusion = fused([n], [x])
    order = schedule(fusion, {})
    assert order is not None
    assert [c.number for c in order] == sorted(c.number for c in order)
    assert peak(fusion, order) <= peak(fusion, fusion.clusters)


def test_extra_dependencies_that_make_a_cycle_leave_no_order() -> None:
    x = source(0, 32, 32)
    fusion = fused([g.matmul(g.matmul(x, x), x)], [x])
    first, second = fusion.clusters
    assert schedule(fusion, {second: {first}}) == [first, second]
    assert schedule(fusion, {first: {second}}) is None


def test_of_updates_that_wait_for_each_other_one_is_copied() -> None:
    """And what it would have waited for keeps no other update out of its place."""
    a, b, c = source(0, 32), source(1, 32, 16), source(2, 8)
    given = (
        g.slice_axis(g.reshape(b, (512,)), 0, 100, 132),
        g.expand(g.reshape(a, (32, 1)), b.shape),
        g.slice_axis(g.reshape(b, (512,)), 0, 70, 78),
    )
    outputs = tuple(map(g.add, (a, b, c), given))
    request = prepare(GraphRequest(outputs, (a, b, c), ((0, 0), (1, 1), (2, 2))))
    fusion, _ = fuse(request)
    order, copies = update_in_place(request, fusion)
    assert copies == [(1, 1)]
    first, second, third = map(base, request.outputs)
    homes = [fusion.homes[n] for n in (first, second, third)]
    assert [(h.kind, h.index) for h in homes] == [("input", 0), ("output", 1), ("input", 2)]
    assert order.index(fusion.of[second]) < order.index(fusion.of[first])


def test_updates_do_not_walk_through_all_kernels_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a large model has: a ResNet-50 has 161 parameters, with two moments of each."""
    asked: list[Cluster] = []
    known = Fusion.dependencies

    def counted(fusion: Fusion, cluster: Cluster) -> set[Cluster]:
        asked.append(cluster)
        return known(fusion, cluster)

    monkeypatch.setattr(Fusion, "dependencies", counted)
    inputs = [source(i, 8, 8) for i in range(24)]
    outputs = [inputs[0]]
    for x in inputs:
        outputs.append(g.matmul(outputs[-1], x))
    new = tuple(map(g.add, inputs, outputs[1:]))
    updates = tuple((i, i) for i in range(len(inputs)))
    request = prepare(GraphRequest(new, tuple(inputs), updates))
    fusion, _ = fuse(request)
    update_in_place(request, fusion)
    assert len(asked) <= 3 * len(fusion.clusters)


def exchanges(outputs: Sequence[Node], request: GraphRequest, info: DeviceInfo) -> list[str]:
    """The groups of a request's exchanges in the order in which they run."""
    clusters = order_clusters(request, info, choose(info).templates, NO_CHOICES).clusters
    return [c.roots[0]["group"] for c in clusters if c.kind == "exchange"]


def attention(q: Node) -> Node:
    scores = g.matmul(q, g.transpose(q))
    power = g.exp(g.sub(scores, g.expand(g.reduce("max", scores, 1), scores.shape)))
    weights = g.mul(power, g.expand(g.recip(g.reduce("sum", power, 1)), scores.shape))
    return g.matmul(weights, q)


def test_exchanges_have_one_order_on_all_devices() -> None:
    q, x = source(0, 16, 16), source(1, 16)
    outputs = [g.all_reduce("sum", attention(q), "attention")]
    for number in range(20):
        x = g.flip(g.scan("sum", x, 0), 0)
        outputs.append(g.all_reduce("sum", x, str(number)))
    request = GraphRequest(tuple(outputs), (q, source(1, 16)))
    found = [exchanges(outputs, request, info) for info in (SIMD, meshed(4, 4))]
    assert found[0] == found[1]
    assert found[0].index("attention") > 0


def test_exchanges_keep_their_order_when_an_input_could_be_written_in_place() -> None:
    x, y = source(0, 16), source(1, 16)
    late = g.all_reduce("sum", g.exp(g.exp(g.exp(g.exp(y)))), "late")
    early = g.all_reduce("sum", g.neg(x), "early")
    new = g.add(early, x)
    read = g.mul(g.reduce("sum", g.mul(x, late), 0), g.reduce("sum", late, 0))
    wanted = (g.all_reduce("sum", g.neg(new), "last"), read, new)
    request = GraphRequest(wanted, (x, y), ((2, 0),))
    assert exchanges(wanted, request, SIMD) == ["early", "last", "late"]


@pytest.mark.parametrize("elementwise", [False, True])
def test_an_exchange_does_not_wait_for_what_a_later_one_needs(elementwise: bool) -> None:
    """Though both could be computed in one kernel, which reads something once."""
    x, y = source(0, 64, 64), source(1, 64, 64)
    first, other = g.exp(x), g.exp(g.matmul(y, y))
    if elementwise:
        both = g.reduce("sum", g.add(first, other), 0)
        first = g.reduce("sum", first, 0)
    else:
        first = g.reduce("sum", first, 0)
        both = g.add(first, g.reduce("sum", other, 0))
    outputs = g.all_reduce("sum", first, "early"), g.all_reduce("sum", both, "late")
    clusters = order_clusters(
        GraphRequest(outputs, (x, y)), SIMD, choose(SIMD).templates, NO_CHOICES
    ).clusters
    assert [c.kind for c in clusters].index("exchange") < [c.kind for c in clusters].index("matmul")


def test_a_number_of_a_ranks_own_does_not_change_the_order_of_exchanges() -> None:
    """Times 1 and plus 0 are simplified away, on the rank whose number that is."""
    x = g.input(0, Type((8,), F))
    orders = set()
    for number in (0, 1, 2):
        one, two = (
            g.add(g.mul(x, g.full_like(x, n)), g.full_like(x, m))
            for n, m in ((number, 0), (1, number))
        )
        first, then = g.all_reduce("sum", g.neg(one), "first"), g.all_reduce("sum", two, "then")
        outputs = (first, then, g.all_reduce("sum", x, "early"))
        request = GraphRequest(outputs, (x,))
        orders.add(tuple(exchanges(outputs, request, SIMD)))
    assert orders == {("early", "then", "first")}


@pytest.mark.parametrize("is_sent", [False, True])
def test_what_a_message_only_comes_behind_may_be_written_over(is_sent: bool) -> None:
    """As sums of gradients are, of which a pipeline's messages wait for every one; what is sent
    may still be on its way."""
    x, y = source(0, 32, 32), source(1, 32, 32)
    first = g.matmul(x, y)
    came = g.send_receive(first if is_sent else x, [(0, 1)], "line", "x", after=(first,))
    total = g.add(g.matmul(came, y), first)
    program = lowered(GraphRequest((total,), (x, y)))
    *_, last = (call for call in program.calls if isinstance(call, TileCall))
    assert any(p.reads and p.writes for p in last.kernel.params) is not is_sent
