"""An operand of a product on its way: from main memory into a core's scratchpad, to other cores,
into the form in which it is multiplied."""

from __future__ import annotations

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.kernel import Wait
from stack.compiler.lower.mesh.kernel import define_convert, define_turn, is_converted
from stack.compiler.lower.mesh.loop import LoadedTile, ProductLoop
from stack.compiler.lower.scratchpad.transfer import mover
from stack.compiler.text.c import control
from stack.compiler.text.c.memory import pointer, scalar
from stack.compiler.text.c.scope import Scope
from stack.compiler.text.c.types import register
from stack.compiler.text.c.writer import CWriter

WORD_NBYTES = 4
"""What addresses and sizes of DMA are multiples of."""
_SPARE = 16
"""Elements by which a message may be longer than a piece."""


@dataclass(frozen=True, slots=True)
class OperandPieces:
    """The pieces of one operand of a product, in C: `tag` makes names of the product's own, `n` is
    the C variable of the valid rows or columns, of which a piece has `extent`.

    `place` is a core's number along the line of the mesh on which pieces are passed on, `along` the
    part of the call's name that says so.
    """

    tag: str
    n: str
    x: LoadedTile
    p: ProductLoop
    extent: int
    place: str
    along: str

    @staticmethod
    def of(p: ProductLoop, tag: str) -> tuple[OperandPieces, OperandPieces]:
        """Those of a, which go along rows, and of b, which go along columns."""
        a = OperandPieces(f"a_{tag}", "na", p.a, p, p.rows, "_COL", "row")
        return a, OperandPieces(f"b_{tag}", "nb", p.b, p, p.columns, "_ROW", "col")

    @property
    def dtype(self) -> DType:
        """The type of an element in memory."""
        return self.x.load.result.dtype

    @property
    def count(self) -> str:
        """The rows or columns that pieces lie in: all of them where they were packed."""
        return str(self.extent) if self.x.packing else self.n

    @property
    def depth(self) -> str:
        """What pieces have along k."""
        return str(self.p.step) if self.x.packing else "depth"

    @property
    def turned(self) -> bool:
        """Whether pieces must be turned: those of b whose elements lie side by side along k."""
        return self.x is self.p.b and self.x.run == self.x.depth

    @property
    def came(self) -> str:
        """The reply words of the two places to which pieces are passed on."""
        return f"hal_came_{self.tag}"

    def array(self, what: str, slot: str) -> str:
        """One of the arrays: `in` by DMA, `got` from another core, `own` turned, `wide`
        converted."""
        return f"hal_{what}_{self.tag}[{slot}]"

    def mine(self, slot: str) -> str:
        """The core's own piece as it is passed on."""
        return self.array("own", "0") if self.turned else self.array("in", slot)

    # declarations

    def declare(self, out: CWriter) -> None:
        """Define the arrays and functions."""
        kind = register(out.dialect, self.dtype)
        self._define(out, "in", kind, self.dtype, 2)
        if self.p.together:
            self._define(out, "got", kind, self.dtype, 2)
            out.functions.define(
                self.came, f"static __thread_local athread_rply_t {self.came}[2];\n"
            )
        if self.turned:
            self._define(out, "own", kind, self.dtype, 1)
            define_turn(out, f"hal_turn_{self.tag}", self.x)
        if is_converted(self.x, self.p.dtype):
            self._define(out, "wide", register(out.dialect, self.p.dtype), self.p.dtype, 1)
            define_convert(out, f"hal_convert_{self.tag}", self.x, self.p)

    def _define(self, out: CWriter, what: str, kind: str, dtype: DType, slots: int) -> None:
        name, size = f"hal_{what}_{self.tag}", self.extent * self.p.step + _SPARE
        text = f"{kind} {name}[{slots}][{size}] __attribute__((aligned(64)));\n"
        out.functions.define(name, f"static __thread_local {text}")
        out.fixed_nbytes += slots * size * dtype.nbytes

    def declare_extent(self, scope: Scope) -> None:
        """How many rows, or columns, are valid: none for a core beyond the matrix."""
        left, value = self.x.load.source.limits[self.x.other], str(self.extent)
        if left is not None:
            n = scalar(scope, left)
            value = f"{n} < 0 ? 0 : {n} < {self.extent} ? {n} : {self.extent}"
        scope.out.do(f"const long {self.n} = {value};")

    # steps

    def fetch(self, scope: Scope, slot: str, came: str) -> None:
        """Start the DMA of the piece of step `k`, whose rows come to lie without gaps."""
        out, access, nbytes = scope.out, self.x.load.source, self.dtype.nbytes
        if self.x.packing:
            kind, panel = register(out.dialect, self.dtype), pointer(access.memory)
            out.do(f"{kind} *const {panel} = {self.array('in', slot)};")
            control.block(scope, [s for s in self.x.packing if not isinstance(s, Wait)])
            return
        run, lines = ("depth", self.n) if self.x.run == self.x.depth else (self.n, "depth")
        apart, offset = scalar(scope, access.strides[1 - self.x.run]), scalar(scope, access.offset)
        to, start = self.array("in", slot), f"from_{self.n}"
        size, gap = f"{run} * {nbytes}", f"({apart} - {run}) * {nbytes}"
        kind = register(out.dialect, self.dtype)
        out.do(f"{kind} *const {start} = {pointer(access.memory)} + {offset};")
        blocks = f"{to}, {start}, {lines} * {size}, {size}, {gap}"
        asked = f"athread_dma_iget_stride({blocks}, &{came}), asked++;"
        if nbytes % WORD_NBYTES == 0:
            out.do(asked)
            return
        # What does not lie in whole words comes at once, and slowly.
        out.do(f"if ((((long){start} | {size} | {gap}) & {WORD_NBYTES - 1}) == 0) {asked}")
        get = mover(scope, "get")
        out.do(f"else {get}((char *){to}, (char *){start}, {size}, {lines}, {size} + {gap});")

    def turn(self, out: CWriter, slot: str) -> None:
        """Turn the piece that came, if that must be."""
        if self.turned:
            own, source = self.array("own", "0"), self.array("in", slot)
            out.do(f"hal_turn_{self.tag}({own}, {source}, {self.depth}, {self.count});")

    def give(self, out: CWriter, slot: str, to: str, sent: str) -> None:
        """Pass the core's own piece on to all of its row or column, itself among them."""
        size = f"{self.count} * {self.depth} * {self.dtype.nbytes}"
        nbytes = f"({size} + {WORD_NBYTES - 1}) & -{WORD_NBYTES}"
        call = f"athread_rma_{self.along}_ibcast"
        places = f"{self.array('got', to)}, {self.mine(slot)}"
        out.do(f"{call}({places}, {nbytes}, &{sent}, &{self.came}[{to}]), given++;")

    def multiplied(self, out: CWriter, place: str) -> str:
        """The piece at a place in the form in which it is multiplied."""
        if not is_converted(self.x, self.p.dtype):
            return place
        to = self.array("wide", "0")
        out.do(f"hal_convert_{self.tag}({to}, {place}, {self.count} * {self.depth});")
        return to
