"""From a graph to tile kernels: prepare, choose roots, fuse, order, emit."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial

from hal.core.description import DeviceInfo
from hal.core.facts import dataclass
from hal.tile.kernel import Kernel
from hal.tile.node import Node
from stack.compiler.graph.attention import fold, has_gradients
from stack.compiler.graph.cluster import Cluster
from stack.compiler.graph.order import take_over, update_in_place
from stack.compiler.graph.overwrite import overwriting
from stack.compiler.graph.panels import with_panels
from stack.compiler.graph.prepare import Pass, first_passes, passes, prepare
from stack.compiler.graph.roots import Home, base
from stack.compiler.graph.solve import fuse, stored_roots
from stack.compiler.graph.trained import fold_gradients
from stack.compiler.known import Emitted, Known, Recent
from stack.compiler.program import (
    BufferRef,
    CarriedValue,
    CompiledGraph,
    ExchangeCall,
    GraphRequest,
    LoopCall,
)
from stack.compiler.templates.emit import Buffers, Emitter, TileCall
from stack.compiler.templates.family import Templates
from stack.compiler.templates.schedule import NO_CHOICES, Choices
from stack.ops import is_message, parts_of, results_of


@dataclass(frozen=True, slots=True)
class TileLoop:
    """A loop whose body has no calls yet, and these."""

    loop: LoopCall
    calls: tuple[TileCall | ExchangeCall | TileLoop, ...]


TileCalls = tuple[TileCall | ExchangeCall | TileLoop, ...]


@dataclass(frozen=True, slots=True)
class TileProgram:
    """A compiled graph whose kernels are still tile IR."""

    calls: TileCalls
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
    made: Callable[[Kernel], object] = lambda kernel: None,
    known: Known | None = None,
) -> TileProgram:
    """The request as tile kernels in the order in which they run. Each is given to `made` as soon
    as it is there. Those that are `known`, of the same device, templates and choices, are not made
    anew."""
    known = known or Known()
    if (panels := templates.product.panels) is not None:
        request = replace(request, outputs=with_panels(request.outputs, lambda n: panels(n, info)))
    ready = order_clusters(request, info, templates, choices, known)
    emitter, temps = ready.emitter, list(ready.temps)
    # The nodes of each loop: the first one's call computes all of them.
    loops: dict[Hashable, list[Node]] = {}
    for cluster in ready.clusters:
        if cluster.kind == "loop":
            loops.setdefault(_same_loop(cluster.roots[0]), []).append(cluster.roots[0])
    messages = [c.roots[0] for c in ready.clusters if c.kind == "exchange"]
    sent = {base(n.srcs[0]) for n in messages if is_message(n)}
    bodies: dict[GraphRequest, TileProgram] = {}
    calls: list[TileCall | ExchangeCall | TileLoop] = []
    for c in ready.clusters:
        if c.kind == "exchange":
            calls.append(emitter.exchange(c, sent))
        elif c.kind != "loop":
            call = emitter.call(c)
            made(call.kernel)
            calls.append(call)
        elif (nodes := loops.pop(_same_loop(c.roots[0]), None)) is not None:
            body = GraphRequest(
                nodes[0]["body"].outputs, nodes[0]["body"].inputs, (), request.facts
            )
            if body not in bodies:  # those of a matrix's blocks are of few sizes
                bodies[body] = lower_graph(body, info, templates, choices, made, known)
            calls.append(_loop(nodes, bodies[body], emitter, temps))
    # Only the temporaries that something uses.
    used: dict[int, int] = {}

    def number(i: int) -> int:
        return used.setdefault(i, len(used))

    def named(ref: BufferRef) -> BufferRef:
        return replace(ref, index=number(ref.index)) if ref.kind == "temp" else ref

    done = _renamed(calls, named)
    moved = tuple((target, number(i), nbytes) for target, i, nbytes in ready.copies)
    return TileProgram(done, moved, tuple(temps[i] for i in used))


def _same_loop(n: Node) -> Hashable:
    """Equal for the results of one loop, which are a node for each element type."""
    return n.srcs, tuple((k, v) for k, v in n.attrs if k != "of")


def _loop(nodes: Sequence[Node], body: TileProgram, emitter: Emitter, temps: list[int]) -> TileLoop:
    """The call of a loop. What it keeps for itself, and its body's temporaries, are added to
    `temps`."""
    first = nodes[0]
    consts, begins, rows = ([emitter.piece(n) for n in ns] for ns in parts_of(first))
    results, homes = results_of(dict(first.attrs)), dict[int, BufferRef]()
    for n in nodes:
        own = emitter.whole(base(n))
        for i, begin in results.places(n.dtype):
            at = own.offset_nbytes + begin * n.dtype.nbytes
            homes[i] = BufferRef(own.kind, own.index, at, results.types[i].nbytes)

    def fresh(nbytes: int) -> BufferRef:
        temps.append(nbytes)
        return BufferRef("temp", len(temps) - 1, 0, nbytes)

    given = [homes.get(i) or fresh(t.nbytes) for i, t in enumerate(results.types)]
    carried = tuple(
        CarriedValue(begin, end, fresh(end.nbytes))
        for begin, end in zip(begins, given, strict=False)
    )
    offset = len(temps)
    temps += body.temps

    def moved(ref: BufferRef) -> BufferRef:
        return replace(ref, index=ref.index + offset) if ref.kind == "temp" else ref

    inputs, outputs = (
        tuple(n.type for n in ns) for ns in (first["body"].inputs, first["body"].outputs)
    )
    loop = LoopCall(
        CompiledGraph(inputs, outputs, (), (), ()),
        first["steps"],
        tuple(consts),
        carried,
        tuple(rows),
        tuple(given[len(begins) :]),
        first["reverse"],
        first["tested"],
    )
    return TileLoop(loop, _renamed(body.calls, moved))


def _folds(info: DeviceInfo, templates: Templates) -> tuple[Pass, ...]:
    """What finds a target's own operators in a graph."""
    return (partial(fold_gradients, cores=_cores(info)),) if templates.gradients else ()


def _cores(info: DeviceInfo) -> int:
    return max(1, info.limits.instances)


def folded(request: GraphRequest, info: DeviceInfo, templates: Templates) -> GraphRequest:
    """The same computation, with the operators that templates are for in the place of the parts
    that users wrote."""
    return prepare(request, first_passes(*_folds(info, templates)))


def order_clusters(
    request: GraphRequest,
    info: DeviceInfo,
    templates: Templates,
    choices: Choices,
    known: Known | None = None,
) -> OrderedClusters:
    """Everything that comes before kernels are emitted."""
    targets = [(o, request.inputs[i]) for o, i in request.updates]
    whole: set[int] = set()
    while True:
        in_part = partial(overwriting, updates=targets, whole=whole)
        ways = passes(
            *_folds(info, templates),
            last=(in_part,),
            cores=_cores(info),
            across=templates.product.across(info),
            reading=templates.product.reading(info),
        )
        prepared = prepare(request, ways)
        if templates.attention is not None and not has_gradients(prepared.outputs):
            found = fold(prepared.outputs, suits=lambda n: templates.suits(n, info))
            prepared = replace(prepared, outputs=found)
        fusion, temps = fuse(prepared, moves=templates.loops.squares)
        order, copied = update_in_place(prepared, fusion)
        # A part that cannot be written where it is is a part of something else.
        beside = {o for o, _ in copied if base(prepared.outputs[o]).op == "overwrite"}
        if not beside:
            break
        whole |= beside
    stored = stored_roots(prepared, fusion)
    take_over(prepared, fusion, order, stored)
    copies = [_beside(prepared, pair, fusion.homes, temps) for pair in copied]
    sizes = {("temp", i): n for i, n in enumerate(temps)}
    for kind, nodes in (("input", prepared.inputs), ("output", prepared.outputs)):
        sizes.update({(kind, i): n.type.nbytes for i, n in enumerate(nodes)})
    buffers = Buffers({(h.kind, h.index): n.dtype for n, h in fusion.homes.items()}, sizes)
    kernels = known.kernels if known is not None and request.facts is None else Recent[Emitted]()
    emitter = Emitter(
        fusion.homes, stored, buffers, info, templates, choices, request.facts, kernels
    )
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


def _renamed(
    calls: Sequence[TileCall | ExchangeCall | TileLoop], name: Callable[[BufferRef], BufferRef]
) -> TileCalls:
    """The calls, and those in loops, on other buffers."""
    found: list[TileCall | ExchangeCall | TileLoop] = []
    for c in calls:
        if isinstance(c, TileCall):
            found.append(replace(c, buffers=tuple(map(name, c.buffers))))
        elif isinstance(c, ExchangeCall):
            found.append(c.renamed(name))
        else:
            found.append(TileLoop(c.loop.renamed(name), _renamed(c.calls, name)))
    return tuple(found)
