"""Plans that serve many requests: those that differ in sizes and numbers alone.

A request is taken apart into its *skeleton* and the sizes and numbers in it. The first request of a
skeleton is compiled as it is. What differs in the second one becomes data: a number an element of a
further input, a size (an axis, where a slice begins, the width of an edge) a `Size`. The compiled
graph then serves every request of that skeleton whose sizes meet the conditions under which it was
compiled; nothing but these sizes is looked at, so that what is served is exactly what was asked
for. Axes of 0 and of 1 belong to the skeleton: they mean something else than others.
"""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement, count
from operator import gt, itemgetter
from typing import Any

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node, Type, node, substitute, toposort
from hal.tile.size import Facts, Size, Values, is_symbolic, periods
from stack import ops as g
from stack.compiler.program import (
    BufferRef,
    Call,
    CompiledGraph,
    CopyCall,
    GraphRequest,
    KernelCall,
    LoopCall,
)
from stack.memory.plan import Layout, plan
from stack.ops import is_exchange
from stack.runtime.placement import lifetimes

Number = float | int | bool
Row = tuple[int, ...]

SMALL = 1 << 20
"""Up to how many bytes temporaries may be given twice their size to grow into."""

SIZED: dict[str, tuple[str, ...]] = {
    "slice": ("start", "stop"),
    "pad": ("lo", "hi"),
    "overlap_add": ("length",),
}
"""The attributes that are sizes."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A request's skeleton, as a digest, and what varies between requests that have it. `numbers`
    are those of its constants, as text, because no two NaNs are equal and two zeros are."""

    skeleton: bytes
    sizes: Row
    numbers: tuple[str, ...]
    values: tuple[Number, ...]
    """The same numbers as they are."""


def parts(request: GraphRequest) -> Parts:
    """Take a request apart; inputs are told by their position."""
    at = dict(zip(request.inputs, count()))
    skeleton: list[Any] = []
    sizes: list[int] = []
    values: list[Number] = []
    shapes: dict[tuple[int, ...], tuple[Row, list[int]]] = {}
    """Of each the part that is fixed, and its sizes."""
    for n in (*request.inputs, *(n for n in toposort(request.outputs) if n.op != "input")):
        shape, attrs = n.type.shape, n.attrs
        if shape not in shapes:
            fixed = tuple([d if d < 2 else -1 for d in shape])
            shapes[shape] = fixed, [d for d in shape if d >= 2]
        fixed, own = shapes[shape]
        sizes += own
        if n.op == "const":
            values.append(n["value"])
            attrs = ()
        elif n.op in SIZED:
            names = SIZED[n.op]
            attrs = tuple([(k, v) for k, v in attrs if k not in names])
            for name in names:
                found = n[name]
                sizes += found if isinstance(found, tuple) else (found,)
            if (
                n.op == "overlap_add"
            ):  # a window's elements are no data, as they are none of `window`
                attrs = (*attrs, ("taps", n.srcs[0].shape[n["axis"] + 1]))
        if n.op != "input":
            at.setdefault(n, len(at))
        skeleton.append(
            (
                n.op != "input" and n.op,
                n.type.dtype.short,
                fixed,
                repr(attrs) if attrs and n.op != "input" else "",
                [at[s] for s in n.srcs],
            )
        )
    outputs = [at[n] for n in request.outputs]
    # Version 2 writes what is equal in the same way, also where it is one object in several places.
    told = marshal.dumps((len(request.inputs), skeleton, outputs, request.updates), 2)
    numbers = tuple([repr(v) for v in values])
    return Parts(hashlib.sha256(told).digest(), tuple(sizes), numbers, tuple(values))


@dataclass(frozen=True, slots=True)
class Sized:
    """A request with sizes, and what tells which requests it is for."""

    request: GraphRequest
    facts: Facts
    sizes: tuple[Any, ...]
    """Those of the request's `Parts`, each an integer or a Size."""
    symbols: dict[str, int]
    """Where in `sizes` each symbol is."""
    numbers: dict[DType, tuple[int, ...]]
    """Which of the numbers are in the further input of each element type, in order."""
    fixed: tuple[tuple[int, str], ...]
    """The other numbers: (which, its text)."""


def generalised(request: GraphRequest, rows: Sequence[Parts]) -> Sized:
    """The request, which is the last of these rows, as one for all of them and others like them."""
    facts = Facts()
    dims = _dims(request)
    given = sum(d >= 2 for n in request.inputs for d in n.shape)
    sizes, symbols = _sizes(facts, [r.sizes for r in rows], dims, given)
    last = rows[-1]
    same = [len(set(column)) == 1 for column in zip(*(r.numbers for r in rows), strict=True)]
    packed: dict[DType, list[int]] = {}
    consts = [n for n in toposort(request.outputs) if n.op == "const"]
    for i, n in enumerate(consts):
        if not same[i]:
            packed.setdefault(n.dtype, []).append(i)
    numbers = {dtype: tuple(which) for dtype, which in packed.items()}
    found = _rebuilt(request, facts if symbols else None, sizes, numbers)
    fixed = tuple((i, last.numbers[i]) for i, alike in enumerate(same) if alike)
    return Sized(found, facts, sizes, symbols, numbers, fixed)


def periods_of(request: GraphRequest) -> dict[str, int]:
    """`periods` of the sizes in a request."""
    found = list[int]()
    for n in toposort(request.outputs):
        found += n.shape
        for name in SIZED.get(n.op, ()):
            own = n[name]
            found += own if isinstance(own, tuple) else (own,)
    return periods(found)


def _dims(request: GraphRequest) -> list[bool]:
    """Which of the sizes of a request are those of axes."""
    out: list[bool] = []
    for n in (*request.inputs, *(n for n in toposort(request.outputs) if n.op != "input")):
        out += [True for d in n.shape if d >= 2]
        for name in SIZED.get(n.op, ()):
            found = n[name]
            out += [False] * (len(found) if isinstance(found, tuple) else 1)
    return out


def _sizes(
    facts: Facts, rows: Sequence[Row], dims: Sequence[bool], given: int
) -> tuple[tuple[Any, ...], dict[str, int]]:
    """Each size as an integer, where it is one in all rows, or as an expression of symbols. The
    first `given` ones are those of inputs, which may be equal by chance."""
    known: dict[Row, Any] = {}
    symbols: dict[str, int] = {}
    columns = list(zip(*rows, strict=True))
    is_dim = {column for column, dim in zip(columns, dims, strict=True) if dim}
    factors = _factors(columns, given)

    def sized(i: int, column: Row) -> Any:
        if column not in known:
            found = _expressed(column, known, i < given, factors)
            if found is None:
                name = f"s{len(symbols)}"
                found = facts.symbol(name, column[-1], 2 if column in is_dim else 0)
                symbols[name] = i
            known[column] = found
        return known[column]

    for column in factors:
        sized(columns.index(column), column)
    return tuple(
        [c[0] if len(set(c)) == 1 else sized(i, c) for i, c in enumerate(columns)]
    ), symbols


def _factors(columns: Sequence[Row], given: int) -> list[Row]:
    """The sizes within a graph that make up those of its inputs, from the least on: an input that
    has several axes as one is told by them, for they cannot be told by it."""
    varying: dict[Row, bool] = {}
    for i, column in enumerate(columns):
        if len(set(column)) > 1:
            varying.setdefault(column, i < given)
    factors: list[Row] = []
    while True:
        known: dict[Row, Any] = dict.fromkeys(factors, 1)
        alone: list[Row] = []
        for column, is_given in varying.items():
            if column in known:
                continue
            if _expressed(column, known, is_given, factors) is None:
                if not is_given and any(_divides(column, c, varying) for c in alone):
                    break
                alone.append(column)
            known[column] = 1
        else:
            return factors
        factors = sorted([*factors, column], key=itemgetter(-1))


def _divides(column: Row, product: Row, known: Container[Row]) -> bool:
    """Whether a product is the column by a number, or by another column."""
    if any(c <= 0 or p % c for c, p in zip(column, product, strict=True)):
        return False
    rest = tuple([p // c for c, p in zip(column, product, strict=True)])
    return len(set(rest)) == 1 or rest in known


def _expressed(column: Row, known: dict[Row, Any], given: bool, factors: Sequence[Row] = ()) -> Any:
    """A column as a simple expression of known ones, or None; that of an input as a product of two
    alone, or of `factors` and a number."""
    if given:
        for (a, x), (b, y) in combinations_with_replacement(known.items(), 2):
            if all(p * q == c for p, q, c in zip(a, b, column, strict=True)):
                return x * y
        known = {c: known[c] for c in factors}
        return _multiple(column, known)
    for other, size in known.items():
        apart = {c - o for c, o in zip(column, other, strict=True)}
        if len(apart) == 1:
            return size + apart.pop()
    found = _multiple(column, known)
    if found is not None:
        return found
    for other, size in known.items():
        moves = [
            (c - d, o - p) for c, d, o, p in zip(column[1:], column, other[1:], other, strict=False)
        ]
        slopes = {dc // do if do and dc % do == 0 else None for dc, do in moves if dc or do}
        slope = slopes.pop() if len(slopes) == 1 else None
        if slope and 1 < abs(slope) <= 1 << 20:
            return size * slope + (column[0] - other[0] * slope)
    return None


def _multiple(column: Row, known: dict[Row, Any]) -> Any:
    """A column as a number times one known column, or two; or None."""
    for (a, x), (b, y) in combinations_with_replacement(known.items(), 2):
        for factors, product in (
            ((x, y), [p * q for p, q in zip(a, b, strict=True)]),
            ((x, 1), list(a)),
        ):
            if all(p > 0 and c % p == 0 for c, p in zip(column, product, strict=True)):
                times = {c // p for c, p in zip(column, product, strict=True)}
                if len(times) == 1:
                    return factors[0] * factors[1] * times.pop()
    return None


class Sizing:
    """A row of integers and other numbers in which what differs between rows is symbols of `facts`:
    for integers also expressions of such. `dims` tells which are sizes of axes. No number is NaN or
    a zero, and a column has one Python type."""

    def __init__(self, facts: Facts, rows: Sequence[Sequence[Any]], dims: Sequence[bool]) -> None:
        last = rows[-1]
        whole = [i for i, value in enumerate(last) if type(value) is int]
        ints = [tuple([row[i] for i in whole]) for row in rows]
        sizes, symbols = _sizes(facts, ints, [dims[i] for i in whole], 0)
        values: list[Any] = list(last)
        self._symbols = {name: whole[at] for name, at in symbols.items()}
        for i, size in zip(whole, sizes, strict=True):
            values[i] = size
        for i, column in enumerate(zip(*rows, strict=True)):
            if type(last[i]) is not int and len(set(map(repr, column))) > 1:
                name = f"n{i}"
                values[i], self._symbols[name] = facts.number(name, last[i]), i
        self.values = tuple(values)
        """The last row with symbols."""
        varying = [i for i, v in enumerate(values) if is_symbolic(v)]
        plain = [i for i, v in enumerate(values) if not is_symbolic(v)]
        self._plain, self._varying = _picked(plain), _picked(varying)
        self._wanted = self._plain(values)
        self._expected = facts.values([values[i] for i in varying])

    def match(self, row: Sequence[Any]) -> dict[str, Any] | None:
        """The symbols' values in a row; None where others differ, too."""
        if self._plain(row) != self._wanted:
            return None
        values = {name: row[at] for name, at in self._symbols.items()}
        return values if self._expected(values) == self._varying(row) else None


def _rebuilt(
    request: GraphRequest,
    facts: Facts | None,
    sizes: Sequence[Any],
    numbers: dict[DType, tuple[int, ...]],
) -> GraphRequest:
    """The request with these sizes, in the order of `parts`, and inputs in the place of numbers."""
    rest = iter(sizes)
    done: dict[Node, Node] = {}

    def typed(n: Node) -> Type:
        return n.type.with_shape([d if d < 2 else next(rest) for d in n.shape])

    inputs = []
    for i, n in enumerate(request.inputs):
        done[n] = node("input", typed(n), slot=i)
        inputs.append(done[n])
    data: dict[int, Node] = {}
    for dtype, which in numbers.items():
        line = node("input", Type((len(which),), dtype), slot=len(inputs))
        inputs.append(line)
        for i, number in enumerate(which):
            data[number] = g.reshape(g.slice(line, (i,), (i + 1,)), ())
    constant = count()
    for n in toposort(request.outputs):
        if n.op == "input":
            continue
        type, attrs = typed(n), dict(n.attrs)
        for name in SIZED.get(n.op, ()):
            old = attrs[name]
            attrs[name] = tuple([next(rest) for _ in old]) if isinstance(old, tuple) else next(rest)
        if n.op == "const":
            number = next(constant)
            done[n] = data.get(number, n)
        else:
            done[n] = node(n.op, type, tuple([done[s] for s in n.srcs]), **attrs)
    outputs = tuple(done[n] for n in request.outputs)
    return GraphRequest(outputs, tuple(inputs), request.updates, facts)


@dataclass(frozen=True, slots=True)
class Lifted:
    """A request whose constants have plain values, and what its last inputs are: for each an
    element type and expressions of the symbols."""

    request: GraphRequest
    numbers: tuple[tuple[DType, tuple[Any, ...]], ...]


def lifted(request: GraphRequest) -> Lifted:
    """The request with further inputs in the place of constants that are expressions of symbols."""
    packed: dict[DType, list[Node]] = {}
    for n in toposort(request.outputs):
        if n.op == "const" and is_symbolic(n["value"]):
            packed.setdefault(n.dtype, []).append(n)
    inputs, data = list(request.inputs), {}
    for dtype, consts in packed.items():
        line = node("input", Type((len(consts),), dtype), slot=len(inputs))
        inputs.append(line)
        for i, n in enumerate(consts):
            data[n] = g.reshape(g.slice(line, (i,), (i + 1,)), ())
    outputs = substitute(request.outputs, data)
    numbers = tuple(
        (dtype, tuple([n["value"] for n in consts])) for dtype, consts in packed.items()
    )
    return Lifted(replace(request, outputs=outputs, inputs=tuple(inputs)), numbers)


@dataclass(frozen=True, slots=True)
class Hole:
    """The place of a size in a graph."""

    number: int


class SizedGraph:
    """A compiled graph with sizes: it serves values of its symbols that meet its conditions."""

    def __init__(self, graph: CompiledGraph, facts: Facts) -> None:
        self.conditions = tuple(facts.conditions)
        self.holds = facts.holding()
        self._sizes: dict[Any, Size] = {}
        self._holes: dict[Any, Hole] = {}
        self._layout: tuple[Layout, tuple[int, ...], tuple[int, ...]] | None = None
        """Where temporaries lie, the bytes that each has there, and those of what has a size."""
        self.form = _map_graph(graph, self._note)
        """The graph with holes in the place of sizes."""
        self._inputs, self._outputs = _typing(self.form.inputs), _typing(self.form.outputs)
        self.bound: object = None
        """Its launches on the engine's device, which makes them."""
        self.has_slots: bool | None = None
        """Whether the device takes sizes as slots of recorded launches, once it was asked."""
        self.outline: tuple[Any, Any, Any] | None = None
        """What plans take and give, with the types of inputs and of outputs that it is for."""
        holes: Sequence[Any] = self.form.temps
        self._temps = _picked([n.number for n in holes if type(n) is Hole])
        self._values = facts.values(self._sizes.values())

    @property
    def is_plain(self) -> bool:
        """Whether all its sizes are numbers."""
        return not self._holes

    def _note(self, size: int) -> Any:
        given: object = size
        if type(given) is not Size:
            return size
        self._sizes.setdefault(given.terms, given)  # equal ones are evaluated once
        return self._holes.setdefault(given.terms, Hole(len(self._holes)))

    def let_go(self) -> None:
        """Hold no memory for temporaries."""
        self.bound = None

    def layout(self, sizes: tuple[int, ...], alignment: int) -> tuple[Layout, tuple[int, ...]]:
        """Where temporaries lie for these sizes, and how many bytes each has there: as in the last
        layout, while all of them fit; else a new one, with up to a quarter more (small ones: up to
        twice as much) for those that can grow."""
        temps, form = self._temps(sizes), list[Any](self.form.temps)
        if self._layout is None or any(map(gt, temps, self._layout[2])):
            grown = tuple(map(_with_room, temps))
            rest = iter(grown)
            room = tuple([next(rest) if type(n) is Hole else n for n in form])
            self._layout = plan(lifetimes(self.form, room), alignment), room, grown
        return self._layout[:2]

    def types(self, sizes: tuple[int, ...]) -> tuple[tuple[Type, ...], tuple[Type, ...]]:
        """The types of the inputs and of the outputs for these sizes."""
        return self._inputs(sizes), self._outputs(sizes)

    def sizes(self, values: Values) -> tuple[int, ...]:
        """All sizes of the graph."""
        return self._values(values)

    def at(self, sizes: tuple[int, ...]) -> CompiledGraph:
        """The graph for such sizes, all of them plain; its kernels are the same."""
        return _map_graph(self.form, lambda s: at_sizes(s, sizes))


def at_sizes(size: Any, sizes: tuple[int, ...]) -> int:
    """What a hole or a plain size is."""
    found: int = sizes[size.number] if type(size) is Hole else size
    return found


def _typing(types: Sequence[Type]) -> Callable[[tuple[int, ...]], tuple[Type, ...]]:
    """What gives these types, of which some have holes, for sizes; one tuple where none has."""
    whole, same = list(types), tuple(types)
    sized = [(i, t) for i, t in enumerate(types) if Hole in map(type, t.shape)]

    def at(sizes: tuple[int, ...]) -> tuple[Type, ...]:
        if not sized:
            return same
        found = whole.copy()
        for i, t in sized:
            found[i] = t.with_shape([at_sizes(d, sizes) for d in t.shape])
        return tuple(found)

    return at


def _with_room(nbytes: int) -> int:
    """The least multiple of a quarter of its highest bit that is as large; up to SMALL the least
    power of 2: another layout takes longer than a token."""
    if nbytes <= SMALL:
        return 1 << max(nbytes - 1, 0).bit_length() if nbytes else 0
    step = (1 << nbytes.bit_length()) // 8
    return -(-nbytes // step) * step


class General(SizedGraph):
    """It serves the requests whose parts fit."""

    def __init__(self, sized: Sized, graph: CompiledGraph) -> None:
        super().__init__(graph, sized.facts)
        self.sized, facts = sized, sized.facts
        varying = [i for i, s in enumerate(sized.sizes) if type(s) is Size]
        plain = [i for i, s in enumerate(sized.sizes) if type(s) is not Size]
        self._plain = _picked(plain)
        self._wanted = self._plain(sized.sizes)
        self._varying = _picked(varying)
        self._expected = facts.values([sized.sizes[i] for i in varying])
        self._numbers = _picked([i for i, _ in sized.fixed])
        self._fixed = tuple(text for _, text in sized.fixed)

    def fits(self, found: Parts) -> dict[str, int] | None:
        """The symbols' values for which this is what a request with these parts asks for; None
        where it is something else, or where the sizes do not meet the conditions."""
        sizes = found.sizes
        if self._plain(sizes) != self._wanted or self._numbers(found.numbers) != self._fixed:
            return None
        values = {name: sizes[at] for name, at in self.sized.symbols.items()}
        if self._expected(values) != self._varying(sizes) or not self.holds(values):
            return None
        return values


def _picked(which: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    if not which:
        return lambda found: ()
    if len(which) == 1:
        return lambda found: (found[which[0]],)
    get = itemgetter(*which)
    return lambda found: tuple(get(found))


def _map_graph(graph: CompiledGraph, change: Callable[[Any], Any]) -> CompiledGraph:
    """A graph with all of its sizes changed."""

    def types(found: Iterable[Type]) -> tuple[Type, ...]:
        return tuple([Type(tuple([change(d) for d in t.shape]), t.dtype) for t in found])

    def ref(r: BufferRef) -> BufferRef:
        return BufferRef(r.kind, r.index, change(r.offset_nbytes), change(r.nbytes))

    def call(c: Call) -> Call:
        if isinstance(c, KernelCall):
            x, y, z = c.grid
            args = tuple([ref(a) if isinstance(a, BufferRef) else change(a) for a in c.args])
            return KernelCall(c.source, (change(x), change(y), change(z)), args)
        if isinstance(c, LoopCall):
            whole = replace(c.renamed(ref), steps=change(c.steps))
            return replace(whole, body=_map_graph(c.body, change))
        assert isinstance(c, CopyCall), "an exchange has fixed sizes"
        return CopyCall(ref(c.dst), ref(c.src))

    temps = tuple([change(n) for n in graph.temps])
    calls = tuple([call(c) for c in graph.calls])
    return CompiledGraph(types(graph.inputs), types(graph.outputs), graph.updates, temps, calls)


def can_be_sized(request: GraphRequest) -> bool:
    """Whether sizes of a request can be data: what ranks exchange has fixed ones."""
    return not any(is_exchange(n) for n in toposort(request.outputs))


def can_generalise(request: GraphRequest) -> bool:
    """Whether sizes of a request can be made data: those in a loop's body are not found."""
    return can_be_sized(request) and all(n.op != "loop" for n in toposort(request.outputs))
