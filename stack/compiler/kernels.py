"""From a graph to tile kernels: prepare, choose roots, fuse, order, emit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hal.core.description import DeviceInfo
from hal.tile.node import Node
from stack.compiler.graph.attention import fold
from stack.compiler.graph.cluster import Cluster
from stack.compiler.graph.order import update_in_place
from stack.compiler.graph.prepare import prepare
from stack.compiler.graph.roots import Home, base
from stack.compiler.graph.solve import fuse, stored_roots
from stack.compiler.graph.trained import fold_gradients
from stack.compiler.program import BufferRef, ExchangeCall, GraphRequest
from stack.compiler.templates.emit import Buffers, Emitter, TileCall
from stack.compiler.templates.family import Templates
from stack.compiler.templates.schedule import NO_CHOICES, Choices


@dataclass(frozen=True, slots=True)
class TileProgram:
    """A compiled graph whose kernels are still tile IR."""

    calls: tuple[TileCall | ExchangeCall, ...]
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
    templates: Templates,
    choices: Choices = NO_CHOICES,
) -> TileProgram:
    """The request as tile kernels in the order in which they run."""
    ready = order_clusters(request, info, templates, choices)
    return _renumbered([_call(ready.emitter, c) for c in ready.clusters], ready.copies, ready.temps)


def _call(emitter: Emitter, cluster: Cluster) -> TileCall | ExchangeCall:
    return emitter.exchange(cluster) if cluster.kind == "exchange" else emitter.call(cluster)


def order_clusters(
    request: GraphRequest,
    info: DeviceInfo,
    templates: Templates,
    choices: Choices,
) -> OrderedClusters:
    """Everything that comes before kernels are emitted."""
    prepared = prepare(request)
    if templates.gradients:
        prepared = replace(prepared, outputs=fold_gradients(prepared.outputs, info))
    if templates.attention is not None:
        prepared = replace(prepared, outputs=fold(prepared.outputs))
    fusion, temps = fuse(prepared)
    order, copied = update_in_place(prepared, fusion)
    copies = [_beside(prepared, pair, fusion.homes, temps) for pair in copied]
    buffers = _buffers(prepared, fusion.homes, temps)
    stored = stored_roots(prepared, fusion)
    emitter = Emitter(fusion.homes, stored, buffers, info, templates, choices, request.facts)
    return OrderedClusters(emitter, order, copies, temps)


def _beside(
    request: GraphRequest, update: tuple[int, int], homes: dict[Node, Home], temps: list[int]
) -> tuple[int, int, int]:
    """Move an output to a new temporary, to be copied over an input: (input, temporary, nbytes)."""
    output, target = update
    number, root = len(temps), base(request.outputs[output])
    temps.append(root.type.nbytes)
    for n, home in homes.items():
        if (home.kind, home.index) == ("output", output):
            homes[n] = replace(home, kind="temp", index=number)
    return target, number, temps[number]


def _buffers(request: GraphRequest, homes: Mapping[Node, Home], temps: Sequence[int]) -> Buffers:
    sizes = {("temp", i): n for i, n in enumerate(temps)}
    for kind, nodes in (("input", request.inputs), ("output", request.outputs)):
        sizes.update({(kind, i): n.type.nbytes for i, n in enumerate(nodes)})
    return Buffers({(h.kind, h.index): n.dtype for n, h in homes.items()}, sizes)


def _renumbered(
    calls: Sequence[TileCall | ExchangeCall],
    copies: Sequence[tuple[int, int, int]],
    temps: Sequence[int],
) -> TileProgram:
    """Only the temporaries that something uses."""
    used: dict[int, int] = {}

    def number(i: int) -> int:
        return used.setdefault(i, len(used))

    def named(ref: BufferRef) -> BufferRef:
        return replace(ref, index=number(ref.index)) if ref.kind == "temp" else ref

    done = tuple(
        c.renamed(named)
        if isinstance(c, ExchangeCall)
        else replace(c, buffers=tuple(map(named, c.buffers)))
        for c in calls
    )
    moved = tuple((target, number(i), nbytes) for target, i, nbytes in copies)
    return TileProgram(done, moved, tuple(temps[i] for i in used))
