"""From clusters to tile kernels and the buffers that they are called with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import field, replace
from math import prod

from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.core.values import Grid, Param, ParamKind
from hal.tile.build import Builder
from hal.tile.kernel import Kernel, Memory
from hal.tile.node import Node, toposort
from hal.tile.size import Facts, is_fixed
from hal.tile.walk import accesses, map_nodes, statements
from stack.compiler.graph.access import Affine
from stack.compiler.graph.attention import Attention, read_attention, with_leaves
from stack.compiler.graph.cluster import Cluster, Homes
from stack.compiler.graph.operands import Operands, read_operands
from stack.compiler.graph.ordered import Ordered, read_ordered
from stack.compiler.graph.roots import Home, base, piece
from stack.compiler.known import Emitted, Recent
from stack.compiler.program import BufferRef, ExchangeCall
from stack.compiler.templates.emission import Emission, Work
from stack.compiler.templates.family import Templates
from stack.compiler.templates.loops import emit_loops
from stack.compiler.templates.products import (
    emit_product,
    shape_of,
    with_longer_runs,
    with_uneven_rows,
)
from stack.compiler.templates.scan import emit_scan
from stack.compiler.templates.scatter import emit_scatter
from stack.compiler.templates.schedule import (
    NO_CHOICES,
    Choices,
    LoopProblem,
    LoopSizes,
    Problem,
)
from stack.compiler.templates.scratch import read_again, with_scratch
from stack.compiler.templates.signature import ParamStart, Signature, place
from stack.ops import exchange_of, is_message


@dataclass(frozen=True, slots=True)
class TileCall:
    """A kernel in tile IR with its grid and the buffers of its parameters, before rendering."""

    kernel: Kernel
    grid: Grid
    buffers: tuple[BufferRef, ...]
    sizes: tuple[int, ...] = ()
    """What its scalar parameters, which follow the buffers, are."""


@dataclass(frozen=True, slots=True)
class Buffers:
    """Element type and size in bytes of each buffer that a graph's kernels share."""

    dtypes: Mapping[tuple[str, int], DType]
    sizes: Mapping[tuple[str, int], int]

    def part(self, at: ParamStart, end: int) -> BufferRef:
        """The bytes of a place up to an element, never beyond the buffer's end."""
        kind, index, start = at
        width = self.dtypes[kind, index].nbytes
        stop = min(end * width, self.sizes[kind, index])
        return BufferRef(kind, index, start * width, stop - start * width)


class _Memories:
    """The memories of one kernel: parameters, numbered as they are first used, and scratch memory
    for rows."""

    def __init__(self, buffers: Buffers) -> None:
        self.params: dict[ParamStart, Memory] = {}
        self.scratch: dict[int, Memory] = {}
        self._dtypes = buffers.dtypes

    def memory(self, home: Home, offset: Affine) -> tuple[Memory, int]:
        """A parameter that begins at the least offset, so that equal work on other parts of a
        buffer is the same kernel; scratch memory as a whole."""
        if home.kind == "scratch":
            return self.scratch[home.index], 0
        at = place(home, offset)
        fresh = Memory(f"b{len(self.params)}", self._dtypes[home.kind, home.index])
        return self.params.setdefault(at, fresh), at[2]


@dataclass(frozen=True, slots=True)
class _Job:
    """A cluster ready to be emitted: its name, the problem that it poses to a schedule and its
    signature, its roots' homes, those of them in scratch memory, and what emits its body."""

    name: str
    problem: Problem | None
    signature: Signature
    roots: frozenset[Node]
    homes: Homes
    rows: Mapping[Node, Home]
    emit: Callable[[Emission], Grid]


@dataclass(frozen=True, slots=True)
class Emitter:
    """Turns clusters into calls; clusters of one signature share a kernel."""

    homes: Homes
    stored: frozenset[Node]
    """The roots that something outside their own loop reads."""
    buffers: Buffers
    info: DeviceInfo
    templates: Templates
    choices: Choices = NO_CHOICES
    facts: Facts | None = None
    """What is known of sizes that are no numbers."""
    made: Recent[Emitted] = field(default_factory=Recent)
    """The kernels by name and signature, also those that others with these choices made."""

    def call(self, cluster: Cluster) -> TileCall:
        """The call that computes a cluster's roots."""
        job = self._job(cluster)
        key = (job.name, job.signature.value())
        made = self.made.get(key)
        if made is None:
            made = self._kernel(job)
            self.made.put(key, made)
        places = list(job.signature.places.items())
        buffers = tuple(self.buffers.part(*places[i]) for i in made.numbers)
        return TileCall(made.kernel, made.grid, buffers, made.sizes)

    def exchange(self, cluster: Cluster, sent: Container[Node]) -> ExchangeCall:
        """What ranks do together in a cluster of kind "exchange". A message keeps those values of
        `sent`, of earlier messages, that it comes after."""
        (root,) = cluster.roots
        exchange = exchange_of(root)
        dst, src, *elements = (self.whole(base(n)) for n in (root, *root.srcs[: exchange.reads]))
        behind = [base(n) for n in root.srcs[exchange.reads :]] if is_message(root) else []
        kept = [n for n in behind if n in sent and self.homes[n].kind == "temp"]
        return ExchangeCall(
            root["group"],
            exchange.call(root),
            dst,
            src,
            elements[0] if elements else None,
            tuple(map(self.whole, kept)),
        )

    def whole(self, n: Node) -> BufferRef:
        """All bytes of a root that lies in one piece."""
        return self._bytes(n, 0, n.type.size)

    def piece(self, n: Node) -> BufferRef:
        """All bytes of a loop's operand."""
        return self._bytes(*piece(n), n.type.size)

    def _bytes(self, root: Node, start: int, size: int) -> BufferRef:
        home = self.homes[root]
        assert home.kind != "scratch", "scratch memory is one kernel's own"
        assert home.run == home.stride, f"{root} lies in pieces"
        begin = home.base + start
        return self.buffers.part((home.kind, home.index, begin), begin + size)

    def problem(self, cluster: Cluster) -> Problem | None:
        """What a schedule of the cluster's kernel is chosen for; None where there is no choice."""
        return self._job(cluster).problem

    def _kernel(self, job: _Job) -> Emitted:
        b, memories = Builder(job.name), _Memories(self.buffers)
        for root, home in job.rows.items():
            memories.scratch[home.index] = b.alloc(f"row{home.index}", root.dtype, home.run)
        emission = Emission(
            b,
            memories.memory,
            job.homes,
            job.roots,
            self.info,
            self.templates.loops,
        )
        grid = job.emit(emission)
        numbers = {at: i for i, at in enumerate(job.signature.places)}
        used = {} if self.facts is None else _sizes(b.kernel(), self.facts)
        kernel = _with_params(b.kernel(), memories.params.values(), used)
        places = tuple(numbers[at] for at in memories.params)
        return Emitted(kernel, grid, places, tuple(used.values()))

    def _job(self, cluster: Cluster) -> _Job:
        if cluster.kind == "loops":
            return self._loops(cluster)
        if cluster.kind == "matmul":
            return self._product(cluster)
        if cluster.kind == "attention":
            return self._attention(cluster)
        return self._ordered(cluster)

    def _loops(self, cluster: Cluster) -> _Job:
        nest, rows = with_scratch(cluster, self.stored, self.homes, self.info)
        work = Work(nest, self.stored | read_again(nest))
        homes = {**self.homes, **rows} if rows else self.homes
        signature = Signature(homes, self.buffers.dtypes)
        signature.nest(nest, work.stored)
        name = name_of(cluster)
        digest = hashlib.sha256(repr(signature.value()).encode()).hexdigest()[:32]
        inner = (
            nest.space.axes[-1:]
            if nest.space.axes and nest.space.axes[-1] not in nest.space.reduced
            else ()
        )
        parallel = prod(a.size for a in nest.space.parallel if a not in inner)
        columns = prod(a.size for a in inner)
        problem = LoopProblem(
            name, digest, prod(a.size for a in nest.space.axes), parallel, columns
        )
        sizes = self.choices.get(problem, LoopSizes) or self.templates.loops.sizes

        def emit(emission: Emission) -> Grid:
            return emit_loops(work, emission, sizes)

        return _Job(name, problem, signature, frozenset(nest.own), homes, rows, emit)

    def _product(self, cluster: Cluster) -> _Job:
        operands = read_operands(cluster, self.homes)
        assert isinstance(operands, Operands), f"read before: {operands}"
        work = Work(cluster.nest, self.stored)
        template = self.templates.product
        if template.uneven_rows:
            operands = with_longer_runs(with_uneven_rows(operands), self.homes, self.info, template)
        signature = Signature(self.homes, self.buffers.dtypes)
        signature.nest(work.nest, work.stored)
        signature.operands(operands)

        def emit(emission: Emission) -> Grid:
            return emit_product(operands, work, emission, template, self.choices)

        problem = shape_of(operands, self.info, template) if template.search else None
        name, own = name_of(cluster), frozenset(work.nest.own)
        return _Job(name, problem, signature, own, self.homes, {}, emit)

    def _attention(self, cluster: Cluster) -> _Job:
        found = read_attention(cluster, self.homes)
        assert isinstance(found, Attention), f"read before: {found}"
        work = Work(cluster.nest, self.stored)
        homes = with_leaves(found.root, self.homes)
        signature = Signature(homes, self.buffers.dtypes)
        signature.nest(work.nest, work.stored)
        signature.attention(found)
        template = self.templates.attention
        assert template is not None, "attention is a node only where it has a template"

        def emit(emission: Emission) -> Grid:
            return template(found, work, emission)

        own = frozenset((found.root, *found.leaves))
        return _Job(name_of(cluster), None, signature, own, homes, {}, emit)

    def _ordered(self, cluster: Cluster) -> _Job:
        found, body = read_ordered(cluster.roots, self.homes), _ORDERED[cluster.kind]
        assert isinstance(found, Ordered), f"read before: {found}"
        stored = {n: at for n, at in found.written.items() if n in self.stored}
        found = replace(found, written=stored)
        signature = Signature(self.homes, self.buffers.dtypes)
        signature.ordered(found)

        def emit(emission: Emission) -> Grid:
            return body(found, emission)

        own = frozenset(cluster.roots)
        return _Job(name_of(cluster), None, signature, own, self.homes, {}, emit)


_ORDERED = {"scan": emit_scan, "scatter": emit_scatter}


def _sizes(kernel: Kernel, facts: Facts) -> dict[str, int]:
    """The sizes that a kernel uses, by the names of its scalar parameters."""
    used: dict[Node, None] = {}
    map_nodes(kernel, lambda n: used.setdefault(n) or n)
    names = {n["name"] for n in toposort(used) if n.op == "scalar"}
    return {name: facts.size(name) for name in sorted(names, key=lambda n: (len(n), n))}


def _with_params(kernel: Kernel, memories: Iterable[Memory], sizes: Iterable[str]) -> Kernel:
    """The kernel with its parameters, each buffer marked as read or written or both."""
    touched = [a for s in statements(kernel.body) for a in accesses(s)]
    read = {memory.name for memory, reads, _ in touched if reads}
    written = {memory.name for memory, _, writes in touched if writes}
    params = tuple(
        Param(m.name, ParamKind.BUFFER, m.dtype, m.name in read, m.name in written)
        for m in memories
    )
    scalars = tuple(Param(name, ParamKind.SCALAR, DType.I64) for name in sizes)
    return Kernel(kernel.name, params + scalars, kernel.body)


def name_of(cluster: Cluster) -> str:
    """What the kernel computes, for traces and profiles: the operators that its roots end with, and
    its domain, or of a product its axes."""
    ends = dict.fromkeys(str(r["kind"]) if r.op == "reduce" else r.op for r in cluster.roots)
    domain = [size for size, _ in cluster.domain]
    sizes = domain if cluster.kind == "loops" else [a.size for a in cluster.nest.space.axes]
    shown = (str(size) if is_fixed(size) else "n" for size in sizes)
    return "_".join([*list(ends)[:4], "x".join(shown) or "1"])
