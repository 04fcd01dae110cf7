"""C functions that work on pieces in a scratchpad: the inner kernel of a product, which is what
takes the time, and the conversion and turning of pieces.

The inner kernel adds a block of `rows` by `width` sums in registers, for one step of k after the
other. It says what it costs on the cores: a fused multiply-add for each vector of sums; an access
for each vector of b, each element of a (which fills a register), each vector of sums in and out.
"""

from __future__ import annotations

from string import Template

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from stack.compiler.lower.mesh.loop import LoadedTile, ProductLoop
from stack.compiler.templates.mesh_block import ROWS, VECTORS
from stack.compiler.text.c import arith, casts
from stack.compiler.text.c.types import register, unsigned
from stack.compiler.text.c.writer import CWriter

_VECTOR = """\
#ifndef HAL_VECTOR
#define HAL_VECTOR $nbytes
#endif
"""
"""The bytes of a vector of the machine that runs the text: an emulator's may have shorter ones than
the cores, and its compiler makes poor code of longer ones."""

# The functions ask for O3: without it the compiler keeps the sums in memory.

_MULTIPLY = Template("""\
enum { ${name}_lanes = ($width * $nbytes < HAL_VECTOR ? $width * $nbytes : HAL_VECTOR) / $nbytes };
typedef $sum ${name}_vector __attribute__((vector_size(${name}_lanes * $nbytes)));
typedef $sum ${name}_anywhere
    __attribute__((vector_size(${name}_lanes * $nbytes), aligned($nbytes), may_alias));
static __attribute__((noinline, optimize("O3"))) void $name(
    void *sums, const void *left, long down, long along,
    const void *right, long pitch, long rows, long columns, long depth) {
    enum { L = ${name}_lanes, V = $width / L };
    $sum *c = sums;
    const $sum *a = left, *b = right;
    for (long j = 0; j < columns; j += $width)
        for (long i = 0; i < rows; i += $rows) {
            ${name}_vector s[$rows][V], r[V];
            for (int y = 0; y < $rows; y++)
                for (int x = 0; x < V; x++)
                    s[y][x] = *(${name}_anywhere *)(c + (i + y) * $all + j + x * L);
            for (long k = 0; k < depth; k++) {
                for (int x = 0; x < V; x++)
                    r[x] = *(const ${name}_anywhere *)(b + k * pitch + j + x * L);
                for (int y = 0; y < $rows; y++) {
                    const $sum l = a[(i + y) * down + k * along];
                    for (int x = 0; x < V; x++) s[y][x] += l * r[x];
                }
            }
            for (int y = 0; y < $rows; y++)
                for (int x = 0; x < V; x++)
                    *(${name}_anywhere *)(c + (i + y) * $all + j + x * L) = s[y][x];
        }
    const double blocks = (double)((rows + $rows - 1) / $rows) * ((columns + $width - 1) / $width);
    $work(blocks * depth * $operations);
    athread_work_ldm(64.0 * blocks * (depth * $operands + $moved));
}
""")

_CONVERT = Template("""\
static __attribute__((optimize("O3"))) void $name(
    $to *restrict to, const $from *restrict from, long n) {
    for (long i = 0; i < n; i++) to[i] = $value;
    $work
}
""")

_TURN = Template("""\
static void $name($kind *restrict to, const $kind *restrict from, long rows, long columns) {
    for (long i = 0; i < rows; i++)
        for (long j = 0; j < columns; j++) to[i * columns + j] = from[j * rows + i];
    athread_work_ldm(128.0 * rows * columns);
}
""")
"""Each element is an access when it is read, and one when it is written."""


@dataclass(frozen=True, slots=True)
class Registers:
    """A block of sums in registers: rows by `width` elements, which take `vectors` vectors of the
    type that is multiplied."""

    rows: int
    width: int
    vectors: int
    lanes: int


def multiplied(p: ProductLoop) -> DType:
    """The type that the cores multiply: that of both operands before their last conversion."""
    found = set()
    for x in (p.a, p.b):
        stages = [x.load.result.dtype, *x.casts]
        found.add(stages[-2] if len(stages) > 1 and stages[-1] is p.dtype else stages[-1])
    return found.pop() if len(found) == 1 else p.dtype


@dataclass(frozen=True, slots=True)
class SumTile:
    """A tile of sums, and the type that is multiplied."""

    rows: int
    columns: int
    dtype: DType
    multiplied: DType


def sums_of(p: ProductLoop) -> SumTile:
    """The sums of a product."""
    return SumTile(p.rows, p.columns, p.dtype, multiplied(p))


def registers(s: SumTile, vector_nbytes: int) -> Registers:
    """The block of a product: whole vectors where the columns have some."""
    lanes = max(1, vector_nbytes // s.multiplied.nbytes)
    most = VECTORS * lanes
    widths = (most >> i for i in range(most.bit_length()))
    width = next(w for w in widths if s.columns % w == 0)
    rows = next(r for r in range(ROWS, 0, -1) if s.rows % r == 0)
    return Registers(rows, width, -(-width // lanes), lanes)


def define_multiply(out: CWriter, name: str, s: SumTile, vector_nbytes: int) -> str:
    """Define the inner kernel, over all blocks of sums of such a tile."""
    r = registers(s, vector_nbytes)
    out.functions.define("HAL_VECTOR", _VECTOR.replace("$nbytes", str(vector_nbytes)))
    moved = 2 * r.rows * max(1, r.width * s.dtype.nbytes // vector_nbytes)
    # The C type of sums: of whole numbers the one whose overflow has a meaning
    if s.dtype.is_float:
        total = register(out.dialect, s.dtype)
    else:
        total = unsigned(out.dialect, s.dtype)
    named = {
        "name": name, "sum": total, "nbytes": s.dtype.nbytes,
        "rows": r.rows, "width": r.width, "all": s.columns,
        "work": _WORK.get(s.multiplied, "athread_work_int"),
        "operations": 2 * r.rows * r.vectors * r.lanes,
        "operands": r.rows + r.vectors, "moved": moved,
    }  # fmt: skip
    return out.functions.define(name, _MULTIPLY.substitute(named))


_WORK = {
    DType.F64: "athread_work_f64",
    DType.F32: "athread_work_f32",
    DType.F16: "athread_work_f16",
    DType.BF16: "athread_work_f16",
}


def is_converted(x: LoadedTile, dtype: DType) -> bool:
    """Whether pieces of an operand are multiplied in another form than they have in memory."""
    return x.load.result.dtype is not dtype or any(c is not dtype for c in x.casts)


def define_convert(out: CWriter, name: str, x: LoadedTile, p: ProductLoop) -> str:
    """Define the conversion of an operand's pieces. A core's unit takes narrow floats as they are:
    only what is rounded or changes its kind costs something."""
    source = x.load.result.dtype
    value = arith.converted(out, casts.from_memory("from[i]", source), source, x.casts)
    free = source.is_narrow and set(x.casts) <= {p.dtype}
    work = "" if free else f"athread_work_f32(n);\n    athread_work_ldm({source.nbytes + 4}.0 * n);"
    named = {
        "name": name, "to": register(out.dialect, p.dtype), "value": value,
        "from": register(out.dialect, source), "work": work,
    }  # fmt: skip
    return out.functions.define(name, _CONVERT.substitute(named))


def define_turn(out: CWriter, name: str, x: LoadedTile) -> str:
    """Define the turning of pieces whose elements lie side by side along k."""
    kind = register(out.dialect, x.load.result.dtype)
    return out.functions.define(name, _TURN.substitute(name=name, kind=kind))
