"""From a graph to tile kernels: prepare, choose roots, fuse, order, emit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hal.core.description import DeviceInfo
from hal.tile.node import Node
from stack.compiler.access import NotAffineError
from stack.compiler.attention import fold, read_attention
from stack.compiler.cluster import Cluster
from stack.compiler.emit import Buffers, Emitter, Part, TileCall, TileExchange
from stack.compiler.fuse import Fusion, root_needs
from stack.compiler.mesh import on_mesh
from stack.compiler.order import update_in_place
from stack.compiler.ordered import read_ordered
from stack.compiler.prepare import prepare
from stack.compiler.products import read_operands
from stack.compiler.program import GraphRequest
from stack.compiler.roots import OWN_KERNEL, Home, base, choose_roots, place
from stack.compiler.schedule import NO_CHOICES, Choices
from stack.ir.record import OpRecord


@dataclass(frozen=True, slots=True)
class TileProgram:
    """A compiled graph whose kernels are still tile IR."""

    calls: tuple[TileCall | TileExchange, ...]
    copies: tuple[tuple[int, int, int], ...]
    """(input, temporary, nbytes) to copy at the end, for updates that could not be in place."""
    temps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OrderedClusters:
    """A request as clusters in the order in which they run, and what emits them."""

    emitter: Emitter
    clusters: Sequence[Cluster]
    copies: Sequence[tuple[int, int, int]]
    temps: Sequence[int]


def lower_graph(
    request: GraphRequest,
    info: DeviceInfo,
    records: Mapping[str, OpRecord],
    choices: Choices = NO_CHOICES,
) -> TileProgram:
    """The request as tile kernels in the order in which they run."""
    ready = order_clusters(request, info, records, choices)
    return _renumbered([_call(ready.emitter, c) for c in ready.clusters], ready.copies, ready.temps)


def _call(emitter: Emitter, cluster: Cluster) -> TileCall | TileExchange:
    return emitter.exchange(cluster) if cluster.kind == "exchange" else emitter.call(cluster)


def order_clusters(
    request: GraphRequest, info: DeviceInfo, records: Mapping[str, OpRecord], choices: Choices
) -> OrderedClusters:
    """Everything that comes before kernels are emitted."""
    prepared = prepare(request)
    if on_mesh(info):
        prepared = fold(prepared)
    fusion, temps = fuse(prepared)
    order, copied = update_in_place(prepared, fusion)
    copies = [_beside(prepared, pair, fusion.homes, temps) for pair in copied]
    buffers = _buffers(prepared, fusion.homes, temps)
    stored = stored_roots(prepared, fusion)
    emitter = Emitter(fusion.homes, stored, buffers, info, records, choices)
    return OrderedClusters(emitter, order, copies, temps)


def _beside(
    request: GraphRequest, update: tuple[int, int], homes: dict[Node, Home], temps: list[int]
) -> tuple[int, int, int]:
    """Move an output to a new temporary, to be copied over an input: (input, temporary, nbytes)."""
    output, target = update
    number, root = len(temps), base(request.outputs[output])
    temps.append(root.type.size * root.dtype.nbytes)
    for n, home in homes.items():
        if (home.kind, home.index) == ("output", output):
            homes[n] = replace(home, kind="temp", index=number)
    return target, number, temps[number]


def fuse(request: GraphRequest) -> tuple[Fusion, list[int]]:
    """Clusters whose every view can be expressed, and the sizes in bytes of the temporaries.

    What cannot be expressed gets a buffer, and the choice of roots starts again.
    """
    extra: set[Node] = set()
    while True:
        roots = choose_roots(request, extra)
        homes, temps = place(request, roots)
        alone, unread = _each_alone(roots, homes)
        if not unread:
            return Fusion(alone, root_needs(roots), homes), temps
        if unread <= extra:
            raise AssertionError(f"views that cannot be read even from buffers: {unread}")
        extra |= unread


def _each_alone(
    roots: Mapping[Node, None], homes: Mapping[Node, Home]
) -> tuple[dict[Node, Cluster], set[Node]]:
    """A cluster for each root that is computed, or the views that keep some from having one.

    Kernels of their own come first, because it is they that ask for buffers.
    """
    computed = [r for r in roots if r.op not in ("input", "concat") and r.type.size]
    alone: dict[Node, Cluster] = {}
    for own_kernel in (True, False):
        unread: set[Node] = set()
        for number, root in enumerate(computed):
            if (root.op in OWN_KERNEL) is own_kernel:
                try:
                    alone[root] = _alone(number, root, homes)
                except NotAffineError as error:
                    unread |= _views(root, error)
        if unread:
            return {}, unread
    return {root: alone[root] for root in computed}, set()


def _views(root: Node, error: NotAffineError) -> set[Node]:
    """What needs a buffer so that the root can be computed: the view that cannot be read, or
    whatever is read, where the root's place and its views want loops that do not fit."""
    if error.view is not None:
        return {error.view}
    return {s for s in root.srcs[:3] if s.op not in ("const", "arange")}


def _alone(number: int, root: Node, homes: Mapping[Node, Home]) -> Cluster:
    cluster = Cluster.of(number, root, homes)
    if cluster.kind == "matmul":
        read_operands(cluster, homes)
    elif cluster.kind == "attention":
        read_attention(cluster, homes)
    elif cluster.kind in ("scan", "scatter_add"):
        read_ordered(root, homes)
    return cluster


def stored_roots(request: GraphRequest, fusion: Fusion) -> frozenset[Node]:
    """The roots that something outside their own loop reads."""
    stored = {base(o) for o in request.outputs}
    for root, needs in fusion.needs.items():
        cluster = fusion.of.get(root)
        stored.update(n for n in needs if cluster is None or fusion.of.get(n) is not cluster)
    return frozenset(stored)


def _buffers(request: GraphRequest, homes: Mapping[Node, Home], temps: Sequence[int]) -> Buffers:
    sizes = {("temp", i): n for i, n in enumerate(temps)}
    for kind, nodes in (("input", request.inputs), ("output", request.outputs)):
        sizes.update({(kind, i): n.type.size * n.dtype.nbytes for i, n in enumerate(nodes)})
    return Buffers({(h.kind, h.index): n.dtype for n, h in homes.items()}, sizes)


def _renumbered(
    calls: Sequence[TileCall | TileExchange],
    copies: Sequence[tuple[int, int, int]],
    temps: Sequence[int],
) -> TileProgram:
    """Only the temporaries that something uses."""
    used: dict[int, int] = {}

    def number(i: int) -> int:
        return used.setdefault(i, len(used))

    def renamed(part: Part) -> Part:
        return replace(part, index=number(part.index)) if part.kind == "temp" else part

    done = tuple(replace(c, buffers=tuple(map(renamed, c.buffers))) for c in calls)
    moved = tuple((target, number(i), nbytes) for target, i, nbytes in copies)
    return TileProgram(done, moved, tuple(temps[i] for i in used))
