"""From a graph to calls of compiled kernels: prepare, choose roots, fuse, order, emit, render."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from hal.core.errors import UnsupportedFormat
from hal.core.values import LLVM_IR, Grid, KernelSource, Param, ParamKind
from hal.tile.build import Builder
from hal.tile.kernel import For, Gather, If, Kernel, Load, Memory, Scatter, Statement, Store
from hal.tile.node import Node
from stack.compiler import llvm
from stack.compiler.access import Affine, NotAffineError
from stack.compiler.expr import reads
from stack.compiler.fuse import Cluster, Fusion, settle
from stack.compiler.loops import Nest, emit_loops, passes
from stack.compiler.order import update_in_place
from stack.compiler.ordered import read_ordered
from stack.compiler.prepare import prepare
from stack.compiler.products import Operands, emit_product
from stack.compiler.program import (
    BufferKind,
    BufferRef,
    Call,
    CompiledGraph,
    CopyCall,
    GraphRequest,
    KernelCall,
)
from stack.compiler.roots import Home, base, choose_roots, place
from stack.compiler.scan import emit_scan
from stack.compiler.scatter import emit_scatter_add
from stack.compiler.tiles import Emission
from stack.ir.record import OpRecord

Renderer = Callable[[Kernel, DeviceInfo], KernelSource]

RENDERERS: Mapping[str, Renderer] = {LLVM_IR: llvm.render}
"""The program formats that the compiler writes."""

ROW_SCRATCH_NBYTES = 1 << 18
"""Scratch memory for rows in one kernel; longer rows go to a temporary."""


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a buffer: `kind` is "input", "output" or "temp"."""

    kind: BufferKind
    index: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class TileCall:
    """A kernel in tile IR with its grid and the buffers of its parameters, before rendering."""

    kernel: Kernel
    grid: Grid
    buffers: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class TileProgram:
    """A compiled graph whose kernels are still tile IR."""

    calls: tuple[TileCall, ...]
    copies: tuple[tuple[int, int, int], ...]
    """(input, temporary, nbytes) to copy at the end, for updates that could not be in place."""
    temps: tuple[int, ...]


def compile_graph(
    request: GraphRequest, info: DeviceInfo, records: Mapping[str, OpRecord]
) -> CompiledGraph:
    """Compile a request for the device.

    Raises UnsupportedFormat when the device takes no program format that the compiler writes.
    """
    write = renderer(info)
    program = lower_graph(request, info, records)
    sources: dict[Kernel, KernelSource] = {}
    calls: list[Call] = []
    for call in program.calls:
        source = sources.get(call.kernel)
        if source is None:
            source = sources[call.kernel] = write(call.kernel, info)
        args = tuple(BufferRef(p.kind, p.index, p.offset, p.nbytes) for p in call.buffers)
        calls.append(KernelCall(source, call.grid, args))
    for target, temp, nbytes in program.copies:
        calls.append(
            CopyCall(BufferRef("input", target, 0, nbytes), BufferRef("temp", temp, 0, nbytes))
        )
    return CompiledGraph(
        inputs=tuple(n.type for n in request.inputs),
        outputs=tuple(n.type for n in request.outputs),
        updates=request.updates,
        temps=program.temps,
        calls=tuple(calls),
    )


def renderer(info: DeviceInfo) -> Renderer:
    """The writer of the program format that the device likes best.

    Raises UnsupportedFormat when the compiler writes none that the device takes.
    """
    for accepted in info.formats:
        if accepted in RENDERERS:
            return RENDERERS[accepted]
    raise UnsupportedFormat(
        f"{info.name} takes programs in {', '.join(info.formats) or 'no format'}; "
        f"the compiler writes {', '.join(RENDERERS)}"
    )


def _sizes(request: GraphRequest, temps: Sequence[int]) -> dict[tuple[str, int], int]:
    sizes = {("temp", i): n for i, n in enumerate(temps)}
    for kind, nodes in (("input", request.inputs), ("output", request.outputs)):
        sizes.update({(kind, i): n.type.size * n.dtype.nbytes for i, n in enumerate(nodes)})
    return sizes


def lower_graph(
    request: GraphRequest, info: DeviceInfo, records: Mapping[str, OpRecord]
) -> TileProgram:
    """The request as tile kernels in the order in which they run."""
    prepared = prepare(request)
    fusion, temps, operands = _fuse(prepared)
    homes = fusion.homes
    order, copied = update_in_place(prepared, fusion, homes)
    copies = []
    for output, target in copied:
        root = base(prepared.outputs[output])
        nbytes = root.type.size * root.dtype.nbytes
        homes[root] = Home("temp", len(temps), 0, root.type.size, root.type.size)
        copies.append((target, len(temps), nbytes))
        temps.append(nbytes)
    stored = _stored(prepared, fusion)
    dtypes: dict[tuple[str, int], DType] = {(h.kind, h.index): n.dtype for n, h in homes.items()}
    sizes = _sizes(prepared, temps)
    emitter = _Emitter(fusion, operands, stored, dtypes, sizes, info, records)
    calls = [emitter.emit(c) for c in order if c.roots[0].type.size]
    return _renumbered(calls, copies, temps)


def _fuse(request: GraphRequest) -> tuple[Fusion, list[int], dict[Cluster, Operands]]:
    """Clusters whose every view can be expressed: what cannot gets a buffer, and fusion starts
    again."""
    extra: set[Node] = set()
    while True:
        roots = choose_roots(request, extra)
        homes, temps = place(request, roots)
        fusion = Fusion(roots, homes)
        operands: dict[Cluster, Operands] = {}
        unread = {view for c in fusion.clusters for view in _unreadable(c, homes, operands)}
        if not unread:
            return fusion, temps, operands
        if unread <= extra:
            raise AssertionError(f"views that cannot be read even from buffers: {unread}")
        extra |= unread


def _unreadable(
    cluster: Cluster, homes: Mapping[Node, Home], operands: dict[Cluster, Operands]
) -> list[Node]:
    """The view that keeps a cluster from being emitted, if any; a product's operands are noted."""
    if not cluster.roots[0].type.size:
        return []
    try:
        if cluster.kind == "loops":
            settle(cluster, homes)
        elif cluster.kind == "matmul":
            operands[cluster] = Operands(cluster, homes)
        else:
            read_ordered(cluster.roots[0], homes)
    except NotAffineError as error:
        if error.view is None:
            raise
        return [error.view]
    return []


def _stored(request: GraphRequest, fusion: Fusion) -> frozenset[Node]:
    """The roots that something outside their own loop reads."""
    stored = {base(o) for o in request.outputs}
    for cluster in fusion.clusters:
        for root in cluster.roots:
            for need in fusion.needs[root]:
                if fusion.of.get(need) is not cluster:
                    stored.add(need)
    for root in fusion.needs:
        if root.op == "concat":
            stored.update(fusion.needs[root])
    return frozenset(stored)


class _Memories:
    """The memories of one kernel: buffers, numbered as they are first used, and scratch memory for
    rows."""

    def __init__(self, b: Builder, dtypes: Mapping[tuple[str, int], DType]) -> None:
        self._b = b
        self._dtypes = dtypes
        self.buffers: dict[tuple[BufferKind, int, int], Memory] = {}
        self.ends: dict[tuple[BufferKind, int, int], int] = {}
        self._scratch: dict[int, Memory] = {}

    def alloc(self, number: int, dtype: DType, size: int) -> None:
        self._scratch[number] = self._b.alloc(f"row{number}", dtype, size)

    def memory(self, home: Home, offset: Affine) -> tuple[Memory, int]:
        """A parameter that begins at the least offset, so that equal work on other parts of a
        buffer is the same kernel."""
        if home.kind == "scratch":
            return self._scratch[home.index], 0
        low, high = offset.bounds()
        start = max(low, 0)
        key = (home.kind, home.index, start)
        self.ends[key] = max(self.ends.get(key, 0), high + 1)
        memory = Memory(f"b{len(self.buffers)}", self._dtypes[home.kind, home.index])
        return self.buffers.setdefault(key, memory), start

    def parts(self, sizes: Mapping[tuple[str, int], int]) -> tuple[Part, ...]:
        """What each parameter is given, in bytes; never beyond the buffer's end."""
        found = []
        for key, memory in self.buffers.items():
            kind, index, start = key
            width = memory.dtype.nbytes
            end = min(self.ends[key] * width, sizes[kind, index])
            found.append(Part(kind, index, start * width, end - start * width))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class _Emitter:
    """Turns clusters into kernels."""

    fusion: Fusion
    operands: Mapping[Cluster, Operands]
    stored: frozenset[Node]
    dtypes: Mapping[tuple[str, int], DType]
    sizes: Mapping[tuple[str, int], int]
    info: DeviceInfo
    records: Mapping[str, OpRecord]

    def emit(self, cluster: Cluster) -> TileCall:
        b = Builder(_name(cluster))
        memories = _Memories(b, self.dtypes)
        grid = self._body(cluster, b, memories)
        body = b.kernel().body
        read, written = _accesses(body)
        params = tuple(
            Param(m.name, ParamKind.BUFFER, m.dtype, m.name in read, m.name in written)
            for m in memories.buffers.values()
        )
        return TileCall(Kernel(b.name, params, body), grid, memories.parts(self.sizes))

    def _body(self, cluster: Cluster, b: Builder, memories: _Memories) -> Grid:
        homes = self.fusion.homes
        own = frozenset(cluster.roots)
        emission = Emission(b, memories.memory, homes, self.records, own)
        match cluster.kind:
            case "scan":
                return emit_scan(read_ordered(cluster.roots[0], homes), emission, self.info)
            case "scatter_add":
                return emit_scatter_add(read_ordered(cluster.roots[0], homes), emission, self.info)
            case "matmul":
                ops = self.operands[cluster]
                return emit_product(
                    ops, Nest(ops.space, ops.exprs, cluster.roots, self.stored), emission, self.info
                )
        nest = Nest(*settle(cluster, homes), cluster.roots, self.stored)
        rows = _row_scratch(cluster, nest, memories, self.info)
        if rows:
            homes = {**homes, **rows}
            nest = Nest(*settle(cluster, homes), cluster.roots, self.stored)
        later = _read_again(nest)
        return emit_loops(
            Nest(nest.space, nest.exprs, nest.roots, self.stored | later),
            Emission(b, memories.memory, homes, self.records, own),
            self.info,
        )


def _read_again(nest: Nest) -> frozenset[Node]:
    """Roots that a later pass over the row reads from memory."""
    level = passes(nest)
    return frozenset(
        r.root
        for root, e in nest.exprs.items()
        for r in reads(e)
        if r.root in level and r.root.op != "reduce" and level[r.root] < level[root]
    )


def _row_scratch(
    cluster: Cluster, nest: Nest, memories: _Memories, info: DeviceInfo
) -> dict[Node, Home]:
    """Scratch memory for roots that only a later pass over the same row reads: they never leave the
    cache."""
    kinds = [reduced for _, reduced in cluster.domain]
    if kinds != [False, True] and kinds != [True]:
        return {}
    length = cluster.domain[-1][0]
    budget = ROW_SCRATCH_NBYTES
    rows: dict[Node, Home] = {}
    for root in sorted(_read_again(nest) - nest.stored, key=nest.roots.index):
        nbytes = length * root.dtype.nbytes
        if nbytes <= budget and root.type.size == prod(s for s, _ in cluster.domain):
            budget -= nbytes
            memories.alloc(len(rows), root.dtype, length)
            rows[root] = Home("scratch", len(rows), 0, length, 0)
    return rows


def _accesses(body: Sequence[Statement]) -> tuple[set[str], set[str]]:
    """The names of the memories that statements read and write."""
    reads: set[str] = set()
    writes: set[str] = set()
    for s in body:
        match s:
            case Load():
                reads.add(s.source.memory.name)
            case Gather():
                reads.add(s.memory.name)
            case Store():
                writes.add(s.target.memory.name)
            case Scatter():
                writes.add(s.memory.name)
            case For() | If():
                inner = [s.body] if isinstance(s, For) else [s.then, s.orelse]
                for block in inner:
                    r, w = _accesses(block)
                    reads |= r
                    writes |= w
    return reads, writes


def _name(cluster: Cluster) -> str:
    """What the kernel computes, for traces and profiles: the operators that its roots end with, and
    its domain."""
    ops: dict[str, None] = {}
    for root in cluster.roots:
        ops[f"{root['kind']}" if root.op == "reduce" else root.op] = None
    sizes = "x".join(str(s) for s, _ in cluster.domain) or "1"
    return "_".join([*list(ops)[:4], sizes])


def _renumbered(
    calls: Sequence[TileCall], copies: Sequence[tuple[int, int, int]], temps: Sequence[int]
) -> TileProgram:
    """Only the temporaries that something uses."""
    used: dict[int, int] = {}

    def number(i: int) -> int:
        return used.setdefault(i, len(used))

    renamed = tuple(
        TileCall(
            c.kernel,
            c.grid,
            tuple(replace(p, index=number(p.index)) if p.kind == "temp" else p for p in c.buffers),
        )
        for c in calls
    )
    moved = tuple((target, number(i), nbytes) for target, i, nbytes in copies)
    return TileProgram(renamed, moved, tuple(temps[i] for i in used))
