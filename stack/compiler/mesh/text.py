"""A product as C for cores that have scratchpads and may pass pieces along a mesh.

Pieces of both operands come by DMA, the next ones while the cores multiply. Where a mesh works
together, as many steps as it has rows or columns are one: core t of a row has a's piece of step t,
core t of a column b's, and one after the other broadcasts its own (SUMMA, van de Geijn and Watts,
1997).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from stack.compiler.c.memory import pointer, scalar
from stack.compiler.c.scope import Scope
from stack.compiler.c.types import memory, register, wide
from stack.compiler.mesh.kernel import (
    define_convert,
    define_multiply,
    define_turn,
    is_converted,
    sums_of,
)
from stack.compiler.mesh.loop import CORES, Operand, Product
from stack.compiler.scratchpad.transfer import mover

WORD_NBYTES = 4
"""What addresses and sizes of DMA are multiples of."""


@dataclass(frozen=True, slots=True)
class _Side:
    """An operand's names and sizes: its letter; the C type of an element in memory and its bytes;
    the elements of a piece; a core's own place along the side on which it is shared; the call that
    broadcasts it; and whether b's pieces must be turned."""

    name: str
    x: Operand
    kind: str
    nbytes: int
    size: int
    extent: int
    place: str
    broadcast: str
    turned: bool


class Text:
    """The text of one product."""

    def __init__(self, scope: Scope, p: Product, vector_nbytes: int) -> None:
        self.scope, self.out, self.p = scope, scope.out, p
        self.tag = self.out.name("p")
        self.a = self._side("a", p.a, p.rows, "_COL", "row", turned=False)
        self.b = self._side("b", p.b, p.columns, "_ROW", "col", turned=p.b.run == 0)
        name = self._name("multiply")
        self.multiply = define_multiply(self.out, name, sums_of(p), vector_nbytes)

    def _name(self, what: str) -> str:
        return f"hal_{what}_{self.tag}"

    def _side(
        self, name: str, x: Operand, extent: int, place: str, along: str, turned: bool
    ) -> _Side:
        dtype = x.load.result.dtype
        kind = memory(self.out.dialect, dtype)
        broadcast = f"athread_rma_{along}_ibcast"
        size = extent * self.p.step
        return _Side(name, x, kind, dtype.nbytes, size, extent, place, broadcast, turned)

    def write(self) -> None:
        """Declare what lies in the scratchpad, and write the loop."""
        self._declare()
        out = self.out
        with out.block():
            self.scope = self.scope.inner()
            for s in (self.a, self.b):
                self._declare_extent(s)
            if self.p.together is None:
                self._alone()
                return
            # A grid that ends within a mesh leaves cores without work, which share nothing.
            with out.block(f"if (hal_count % {CORES} == 0)"):
                self._together(min(self.p.together))
            with out.block("else"):
                self._alone()

    def _declare(self) -> None:
        for s in (self.a, self.b):
            self._array(f"in_{s.name}", s.kind, s.size, 2)
            if self.p.together:
                self._array(f"got_{s.name}", s.kind, s.size, 2)
            if s.turned:
                self._array(f"own_{s.name}", s.kind, s.size, 1)
                define_turn(self.out, self._name(f"turn_{s.name}"), s.x)
            if is_converted(s.x, self.p.dtype):
                kind = register(self.out.dialect, wide(self.p.dtype))
                self._array(f"wide_{s.name}", kind, s.size, 1)
                define_convert(self.out, self._name(f"convert_{s.name}"), s.x, self.p)
        words = ("came", "sent", "came_a[2]", "came_b[2]")
        named = ", ".join(
            f"hal_{w.replace('[', f'_{self.tag}[')}" if "[" in w else self._name(w) for w in words
        )
        self.out.functions.define(
            self._name("words"), f"static __thread_local athread_rply_t {named};\n"
        )

    def _array(self, what: str, kind: str, size: int, slots: int) -> None:
        """An array in the scratchpad; a message may be a little longer than what it holds."""
        name = self._name(what)
        shape = f"[{slots}][{size + 64 // 4}]"
        self.out.functions.define(
            name, f"static __thread_local {kind} {name}{shape} __attribute__((aligned(64)));\n"
        )

    def _declare_extent(self, s: _Side) -> None:
        """How many of a piece's rows, or columns, are valid."""
        left = s.x.load.source.limits[s.x.other]
        value = str(s.extent)
        if left is not None:
            n = scalar(self.scope, left)
            value = f"{n} < 0 ? 0 : {n} < {s.extent} ? {n} : {s.extent}"
        self.out.do(f"const long n{s.name} = {value};")

    # steps

    @contextmanager
    def _at(self, k: str) -> Iterator[Scope]:
        """A block in which the loop's index has a value, and `depth` steps of k are left."""
        p = self.p
        with self.out.block():
            self.out.do(f"const long k = {k};")
            self.out.do(f"const long depth = {p.stop} - k < {p.step} ? {p.stop} - k : {p.step};")
            inner = self.scope.inner()
            inner.scalars[p.index] = "k"
            yield inner

    def _alone(self) -> None:
        out, p = self.out, self.p
        came = self._name("came")
        steps = -(-p.stop // p.step)
        out.do(f"{came} = 0;")
        out.do("long asked = 0;")
        with out.block(f"for (long s = -1; na > 0 && nb > 0 && s < {steps}; ++s)"):
            out.do(f"if (s >= 0) athread_dma_wait_value(&{came}, asked);")
            with out.block(f"if (s + 1 < {steps})"), self._at(f"(s + 1) * {p.step}") as inner:
                for side in (self.a, self.b):
                    self._fetch(inner, side)
            with out.block("if (s >= 0)"), self._at(f"s * {p.step}"):
                places = {}
                for side in (self.a, self.b):
                    places[side.name] = f"{self._name(f'in_{side.name}')}[s % 2]"
                    if side.turned:
                        places[side.name] = self._turn(side, places[side.name], "depth")
                self._multiply(places["a"], places["b"])

    def _together(self, turns: int) -> None:
        out, p = self.out, self.p
        came, sent = self._name("came"), self._name("sent")
        steps = -(-p.stop // (p.step * turns))
        out.do(f"{came} = {sent} = 0;")
        out.do("long asked = 0;")
        with out.block(f"for (long s = -1; s < {steps}; ++s)"):
            out.do(f"if (s >= 0) athread_dma_wait_value(&{came}, asked);")
            for side in (self.a, self.b):
                self._turn_own(side, turns)
            for side in (self.a, self.b):
                mine = f"((s + 1) * {turns} + {side.place}) * {p.step}"
                has = f"{side.place} < {turns} && n{side.name} > 0 && {mine} < {p.stop}"
                with out.block(f"if ({has})"), self._at(mine) as inner:
                    self._fetch(inner, side)
            out.do("if (s < 0) continue;")
            self._share(turns)

    def _turn_own(self, s: _Side, turns: int) -> None:
        if not s.turned:
            return
        mine = f"(s * {turns} + {s.place}) * {self.p.step}"
        has = f"s >= 0 && {s.place} < {turns} && n{s.name} > 0 && {mine} < {self.p.stop}"
        with self.out.block(f"if ({has})"), self._at(mine):
            self._turn(s, f"{self._name(f'in_{s.name}')}[s % 2]", "depth")

    def _turn(self, s: _Side, source: str, depth: str) -> str:
        own = f"{self._name(f'own_{s.name}')}[0]"
        self.out.do(f"{self._name(f'turn_{s.name}')}({own}, {source}, {depth}, n{s.name});")
        return own

    def _share(self, turns: int) -> None:
        """The turns of a step: each gives its pieces while all multiply those of the turn before.

        All wait for each other before pieces go where others may still be in use.
        """
        out, p = self.out, self.p
        words = [f"{self._name(f'came_{x}')}" for x in "ab"]
        out.do(" = ".join(f"{w}[{i}]" for w in words for i in (0, 1)) + " = 0;")
        out.do("athread_ssync_array();")
        out.do("long given = 0;")
        whole = p.step * turns
        out.do(f"const long left = ({p.stop} - s * {whole} + {p.step - 1}) / {p.step};")
        out.do(f"const long turns = left < {turns} ? left : {turns};")
        with out.block("for (long t = -1; t < turns; ++t)"):
            with out.block("if (t >= 0)"):
                for side, word in zip((self.a, self.b), words, strict=True):
                    wait = f"athread_rma_wait_value(&{word}[t % 2], t / 2 + 1);"
                    out.do(f"if (n{side.name} > 0) {wait}")
                out.do("athread_ssync_array();")
            with out.block("if (t + 1 < turns)"), self._at(f"s * {whole} + (t + 1) * {p.step}"):
                for side, word in zip((self.a, self.b), words, strict=True):
                    self._give(side, word)
            with (
                out.block("if (t >= 0 && na > 0 && nb > 0)"),
                self._at(f"s * {whole} + t * {p.step}"),
            ):
                self._multiply(*(f"{self._name(f'got_{x}')}[t % 2]" for x in "ab"))
        out.do(f"athread_rma_wait_value(&{self._name('sent')}, given);")
        out.do(f"{self._name('sent')} = 0;")

    def _give(self, s: _Side, word: str) -> None:
        source = (
            f"hal_own_{s.name}_{self.tag}[0]"
            if s.turned
            else f"{self._name(f'in_{s.name}')}[s % 2]"
        )
        target = f"{self._name(f'got_{s.name}')}[(t + 1) % 2]"
        nbytes = f"(n{s.name} * depth * {s.nbytes} + 3) / 4 * 4"
        with self.out.block(f"if ({s.place} == t + 1 && n{s.name} > 0)"):
            self.out.do(
                f"{s.broadcast}({target}, {source}, {nbytes}, &{self._name('sent')}, "
                f"&{word}[(t + 1) % 2]);"
            )
            self.out.do("given++;")

    def _fetch(self, scope: Scope, s: _Side) -> None:
        """Start the DMA of a piece, whose rows come to lie without gaps."""
        out, access = self.out, s.x.load.source
        along_depth = s.x.run == s.x.depth
        run, lines = ("depth", f"n{s.name}") if along_depth else (f"n{s.name}", "depth")
        apart = scalar(scope, access.strides[1 - s.x.run])
        at = f"{pointer(access.memory)} + {scalar(scope, access.offset)}"
        target = f"{self._name(f'in_{s.name}')}[(s + 1) % 2]"
        start = f"from_{s.name}"
        size, gap = f"{run} * {s.nbytes}", f"({apart} - {run}) * {s.nbytes}"
        out.do(f"{s.kind} *const {start} = {at};")
        asked = (
            f"athread_dma_iget_stride({target}, {start}, {lines} * {size}, {size}, {gap}, "
            f"&{self._name('came')}), asked++;"
        )
        if s.nbytes % WORD_NBYTES == 0:
            out.do(asked)
            return
        # What does not lie in whole words comes at once, and slowly.
        out.do(f"if ((((long){start} | {size} | {gap}) & {WORD_NBYTES - 1}) == 0) {asked}")
        get = mover(scope, "get")
        out.do(f"else {get}((char *){target}, (char *){start}, {size}, {lines}, {size} + {gap});")

    def _multiply(self, a: str, b: str) -> None:
        """Add the product of two pieces."""
        places = []
        for s, place in ((self.a, a), (self.b, b)):
            if is_converted(s.x, self.p.dtype):
                to = f"{self._name(f'wide_{s.name}')}[0]"
                self.out.do(f"{self._name(f'convert_{s.name}')}({to}, {place}, n{s.name} * depth);")
                place = to
            places.append(place)
        down, along = ("depth", "1") if self.p.a.run == 1 else ("1", "na")
        self.out.do(
            f"{self.multiply}({pointer(self.p.sums)}, {places[0]}, {down}, {along}, "
            f"{places[1]}, nb, na, nb, depth);"
        )
