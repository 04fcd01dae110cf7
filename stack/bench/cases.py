"""The operators that `hal bench` measures, as graphs, with what each has to do at least."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node, Type
from stack import ops as g
from stack.compiler.program import GraphRequest

ROWS, COLUMNS = 8192, 4096
"""Of the arrays of operators that are bound by memory: 128 MiB of float32, more than in
caches."""
EDGES = ((DType.F32, (128, 512, 1024, 2048)), (DType.F64, (1024, 2048)), (DType.F16, (1024, 2048)))
"""Of the square products."""
HEADS, LENGTH, WIDTH = 8, 1024, 64
"""Of the attention: heads, positions, elements of a head."""


@dataclass(frozen=True, slots=True)
class Case:
    """An operator on arrays of one size. `flops` counts the operations of its definition, each
    elementwise function as one; `peak` is the element type whose rate bounds it."""

    name: str
    size: str
    peak: DType
    output: Node
    inputs: tuple[Node, ...]
    flops: int

    @property
    def request(self) -> GraphRequest:
        """The graph."""
        return GraphRequest((self.output,), self.inputs)

    @property
    def nbytes(self) -> int:
        """What must be moved: every input read once, the output written once."""
        return sum(n.type.nbytes for n in (*self.inputs, self.output))

    @property
    def intensity(self) -> float:
        """Operations for each byte that must be moved."""
        return self.flops / self.nbytes


def cases(rows: int = ROWS, columns: int = COLUMNS) -> Iterator[Case]:
    """The operator library's kinds: elementwise, conversions, movements, reductions, norms,
    lookups, products, attention."""
    shape, size = (rows, columns), f"{rows}x{columns}"
    x, y = _inputs(shape, shape)
    count = x.type.size
    yield Case("add", size, DType.F32, g.add(x, y), (x, y), count)
    half, root = g.full_like(x, 0.5), g.full_like(x, 2**-0.5)
    tail = g.add(g.erf(g.mul(x, root)), g.full_like(x, 1))
    yield Case("gelu", size, DType.F32, g.mul(g.mul(x, half), tail), (x,), 5 * count)
    yield Case("to float16", size, DType.F32, g.cast(x, DType.F16), (x,), count)
    yield Case("transpose", size, DType.F32, g.contiguous(g.transpose(x)), (x,), 0)
    # Reductions and norms of each row.
    size = f"{rows}x{columns}"
    (x,) = _inputs((rows, columns))
    count = x.type.size
    yield Case("sum", size, DType.F32, g.reduce("sum", x), (x,), count)
    yield Case("sum of rows", size, DType.F32, g.reduce("sum", x, 1), (x,), count)
    yield Case("softmax", size, DType.F32, _softmax(x), (x,), 5 * count)
    x, weight, bias = _inputs((rows, columns), (columns,), (columns,))
    centred = g.sub(x, _mean(x))
    scale = g.rsqrt(g.add(_mean(g.mul(centred, centred)), g.full_like(x, 1e-5)))
    scaled = g.mul(g.mul(centred, scale), g.broadcast(weight, x.shape))
    y = g.add(scaled, g.broadcast(bias, x.shape))
    yield Case("layer norm", f"{rows}x{columns}", DType.F32, y, (x, weight, bias), 8 * x.type.size)
    (table,) = _inputs((rows, columns))
    index = g.input(1, Type((rows,), DType.I32))
    found = g.gather(table, index, 0)
    yield Case("embedding", f"{rows}x{columns}", DType.F32, found, (table, index), 0)
    for dtype, edges in EDGES:
        for edge in (edge for edge in edges if edge <= columns):
            a, b = _inputs((edge, edge), (edge, edge), dtype=dtype)
            name, flops = f"matmul {dtype.short}", 2 * edge**3
            yield Case(name, str(edge), dtype, g.matmul(a, b), (a, b), flops)
    # softmax(q @ k.T / sqrt(width)) @ v for each head.
    length = min(LENGTH, rows)
    q, k, v = _inputs(*[(HEADS, length, WIDTH)] * 3)
    scores = g.matmul(q, g.transpose(k))
    weights = _softmax(g.mul(scores, g.full_like(scores, 1 / math.sqrt(WIDTH))))
    flops = HEADS * length**2 * (4 * WIDTH + 6)
    size = f"{HEADS}x{length}x{WIDTH}"
    yield Case("attention", size, DType.F32, g.matmul(weights, v), (q, k, v), flops)


def _inputs(*shapes: Sequence[int], dtype: DType = DType.F32) -> list[Node]:
    return [g.input(slot, Type(tuple(shape), dtype)) for slot, shape in enumerate(shapes)]


def _softmax(x: Node) -> Node:
    """Of the last axis."""
    axis = len(x.shape) - 1
    power = g.exp(g.sub(x, g.expand(g.reduce("max", x, axis), x.shape)))
    return g.mul(power, g.expand(g.recip(g.reduce("sum", power, axis)), x.shape))


def _mean(x: Node) -> Node:
    """Of each row, as wide as x."""
    total = g.reduce("sum", x, 1)
    return g.expand(g.mul(total, g.full_like(total, 1 / x.shape[1])), x.shape)
