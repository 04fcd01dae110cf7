"""Loops whose tiles come from main memory one after the other: the next while the cores work on
one. Where all instances of a mesh load the same tile, one core fetches it for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from math import prod
from typing import Any

from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.build import binary, cast, const, program_id
from hal.tile.kernel import GLOBAL, Alloc, For, Kernel, Load, Memory, Statement
from hal.tile.node import Node, Type, node, toposort
from hal.tile.walk import statements
from stack.compiler.lower.mesh import dot
from stack.compiler.lower.mesh.loop import depends_on, same_block
from stack.compiler.lower.mesh.pieces import WORD_NBYTES
from stack.compiler.lower.scratchpad.transfer import mover
from stack.compiler.lower.scratchpad.windows import windowed
from stack.compiler.text.c import arith, control
from stack.compiler.text.c.memory import pointer, scalar
from stack.compiler.text.c.scope import PrivateArray, Scope
from stack.compiler.text.c.types import register


@dataclass(frozen=True, slots=True)
class Stream:
    """A loop from 0 to `stop` whose body begins with `loads`, each of rows of neighbours and in
    another place in every step; the rest of the body is in `loop`."""

    loop: For
    stop: int
    step: int
    loads: tuple[Load, ...]
    sharing: int
    """The cores of a mesh whose instances load the same; 0: they do not."""


def streams(kernel: Kernel, info: DeviceInfo, room_nbytes: int) -> dict[int, Stream]:
    """The streams of a kernel, by the number of the statement of its body; other transfers of their
    loops have so many bytes."""
    written = {s.target.memory for s in statements(kernel.body) if hasattr(s, "target")}
    found = {}
    for number, s in enumerate(kernel.body):
        if isinstance(s, For) and any(c.next.op == "dot" for c in s.carried):
            # A loop that adds a product to what it carries, as a stream, if it is one
            if any(n.op != "const" for n in (s.start, s.stop, s.step)) or s.start["value"] != 0:
                stream = None
            else:
                loads = tuple(x for x in s.body if isinstance(x, Load) and _comes(x, s.index))
                if not loads or any(x.source.memory in written for x in loads):
                    stream = None
                else:
                    cores = prod(info.limits.mesh)
                    block = binary("div", program_id(0), cores)
                    shared = all(not depends_on(x.source, {s.index, block}) for x in loads)
                    others = tuple(x for x in s.body if x not in loads)
                    rest = moved(others, f"step{s.index['id']}", room_nbytes)
                    stream = Stream(
                        replace(s, body=rest),
                        int(s.stop["value"]),
                        int(s.step["value"]),
                        loads,
                        cores if shared else 0,
                    )
            if stream is not None:
                found[number] = stream
    return found


ONCE = node("var", Type((), DType.I64), id="once")
"""The index of the only step of a loop."""


def moved(body: tuple[Statement, ...], tag: str, room_nbytes: int) -> tuple[Statement, ...]:
    """Statements with transfers for what they touch in main memory, through arrays of so many bytes
    at most, which are named by the tag."""
    zero, one = (const(n, DType.I64) for n in (0, 1))
    found: list[Statement] = []
    for s in windowed(For(ONCE, zero, one, one, (), body), room_nbytes).whole:
        found += s.body if isinstance(s, For) and s.index is ONCE else (s,)
    names = {
        s.memory: replace(s.memory, name=f"{s.memory.name}_{tag}")
        for s in found
        if isinstance(s, Alloc) and not any(x is s for x in body)
    }
    changed: tuple[Statement, ...] = _renamed(tuple(found), names)
    return changed


def _renamed(part: Any, names: Mapping[Memory, Memory]) -> Any:
    """A part of a kernel with other memories."""
    if isinstance(part, Memory):
        return names.get(part, part)
    if isinstance(part, tuple):
        return tuple(_renamed(x, names) for x in part)
    if is_dataclass(part) and not isinstance(part, type):
        values = {f.name: getattr(part, f.name) for f in fields(part)}
        return replace(part, **{name: _renamed(x, names) for name, x in values.items()})
    return part


def _comes(x: Load, index: Node) -> bool:
    """Whether a load is of whole rows, of which only the number may be limited."""
    a = x.source
    if a.memory.space != GLOBAL or x.other is not None or len(x.result.shape) != 2:
        return False
    if any(n.op != "const" for n in a.strides) or a.strides[1]["value"] != 1:
        return False
    whole = a.strides[0]["value"] >= x.result.shape[1] and a.limits[1] is None
    sizes = (x.result.shape[1], int(a.strides[0]["value"]))
    words = all(size * x.result.dtype.nbytes % WORD_NBYTES == 0 for size in sizes)
    return whole and words and depends_on(a, set(), (index,))


def write(scope: Scope, p: Stream) -> None:
    """Write a stream as statements."""
    out = scope.out
    tag = out.name("q")
    came = f"hal_came_{tag}"
    out.functions.define(came, f"static __thread_local athread_rply_t {came};\n")
    places = {x: _place(scope, x, f"hal_in{i}_{tag}") for i, x in enumerate(p.loads)}
    carried = [control.copied(scope, c.init) for c in p.loop.carried]
    # Put what products in the loop use, and lies otherwise before it, into arrays of its own.
    for n in toposort(c.next for c in p.loop.carried):
        for x in n.srcs[:2] if n.op == "dot" else ():
            tile = dot.tile_of(x)
            held = x.srcs[0] if x.op == "transpose" else x
            if tile in scope.arrays and dot.is_widened(held):
                scope.arrays[held] = control.copied(scope, held)
            elif tile in scope.arrays and scope.arrays[tile].find is not None:
                scope.arrays[tile] = control.copied(scope, tile)
    with out.block():
        out.do("long asked = 0;")
        out.do(f"const int shared = {same_block(p.sharing) if p.sharing else '0'};")
        out.do(f"{came} = 0;")
        with out.block(f"for (long s = -1; s < {-(-p.stop // p.step)}; ++s)"):
            out.do(f"if (s >= 0) athread_dma_wait_value(&{came}, asked);")
            # Ask for the next tiles, and work on those that came; first all are done with what the
            # next ones replace.
            out.do("if (shared) athread_ssync_array();")
            with _at(scope, p, f"(s + 1) * {p.step}", f"(s + 1) * {p.step} < {p.stop}") as inner:
                for load, place in places.items():
                    _fetch(inner, load, f"{place}[(s + 1) % 2]", came)
            with _at(scope, p, f"s * {p.step}", "s >= 0") as inner:
                for load, place in places.items():
                    _give(inner, load.result, f"{place}[s % 2]")
                control.one_step(inner, p.loop, carried)
    for c, array in zip(p.loop.carried, carried, strict=True):
        scope.arrays[c.result] = array


def _place(scope: Scope, x: Load, name: str) -> str:
    kind, size = register(scope.out.dialect, x.result.dtype), x.result.type.size
    scope.out.fixed_nbytes += 2 * size * x.result.dtype.nbytes
    text = f"static __thread_local {kind} {name}[2][{size}] __attribute__((aligned(64)));\n"
    return scope.out.functions.define(name, text)


@contextmanager
def _at(scope: Scope, p: Stream, k: str, condition: str) -> Iterator[Scope]:
    """A block in which the loop's index has a value, where a condition holds."""
    with scope.out.block(f"if ({condition})"):
        scope.out.do(f"const long k = {k};")
        inner = scope.inner()
        inner.scalars.update({p.loop.index: "k", ONCE: "0L"})
        yield inner


def _fetch(scope: Scope, x: Load, target: str, came: str) -> None:
    """Start the DMA of a tile, with zeros for the rows that are beyond the limit."""
    out, a = scope.out, x.source
    rows, columns = x.result.shape
    nbytes = columns * x.result.dtype.nbytes
    gap = int(a.strides[0]["value"]) * x.result.dtype.nbytes - nbytes
    n, start = out.name("n"), f"{pointer(a.memory)} + {scalar(scope, a.offset)}"
    limit = a.limits[0]
    left = str(rows) if limit is None else scalar(scope, limit)
    out.do(f"const long {n} = {left} < {rows} ? {left} : {rows};")
    if limit is not None:
        out.do(f"for (long i = {n} * {columns}; i < {rows * columns}; ++i) {target}[i] = 0;")
    call = f"stride({target}, {start}, {n} * {nbytes}, {nbytes}, {gap}, &{came});"
    with out.block(f"if (((long)({start}) & {WORD_NBYTES - 1}) == 0)"):
        out.do(f"if (!shared) athread_dma_iget_{call}")
        out.do(f"else if (_PEN == 0) athread_dma_ibcast_{call}")
        out.do("asked++;")
    # What does not begin with a word comes at once, and slowly.
    if x.result.dtype.nbytes < WORD_NBYTES:
        get = mover(scope, "get")
        places = f"(char *){target}, (char *)({start})"
        out.do(f"else {get}({places}, {nbytes}, {n}, {nbytes + gap});")


def _give(scope: Scope, tile: Node, place: str) -> None:
    """The tile that came, also as an array of values that can be computed with."""
    out, dtype = scope.out, tile.dtype
    name = out.name("v")
    out.do(f"const {register(out.dialect, dtype)} *const {name} = {place};")
    scope.arrays[tile] = PrivateArray(name, tile.shape)
    if not dtype.is_narrow:
        return
    wide = cast(tile, dtype.computed_in)
    array = scope.declare(wide.type)
    value = arith.converted(out, f"{name}[i]", dtype, [wide.dtype])
    out.do(f"for (long i = 0; i < {tile.type.size}; ++i) {array.name}[i] = {value};")
    out.spend("f32", tile.type.size)
    out.spend("near", 6 * tile.type.size)
    scope.arrays[wide] = array
