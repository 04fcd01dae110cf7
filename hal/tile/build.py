"""A builder that writes kernels: expressions by functions, statements in order.

Operands broadcast by numpy's rules and Python numbers become constants of the other operand's type.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager

from hal.core.dtypes import DType
from hal.core.values import Param, ParamKind
from hal.tile.kernel import (
    SCRATCHPAD,
    Access,
    Alloc,
    Atomic,
    Barrier,
    Carried,
    Copy,
    For,
    Gather,
    If,
    Kernel,
    Load,
    Memory,
    Scatter,
    Statement,
    Store,
    Wait,
)
from hal.tile.node import Node, Type, node
from hal.tile.size import Size, lowered

Number = int | float | bool
Operand = Node | Number
I64 = DType.I64


def const(value: Number, dtype: DType, shape: tuple[int, ...] = ()) -> Node:
    """A constant, broadcast to a shape; a size is a scalar parameter, cast to the element type."""
    given: object = value
    if type(given) is Size:
        return broadcast(cast(lowered(given), dtype), shape)
    typed = float(value) if dtype.is_float else bool(value) if dtype is DType.BOOL else int(value)
    return broadcast(node("const", Type((), dtype), value=typed), shape)


def index(value: Operand) -> Node:
    """An i64 scalar."""
    return value if isinstance(value, Node) else const(value, I64)


def broadcast_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape by numpy's rules. Raises ValueError when there is none."""
    n = max(len(a), len(b))
    pairs = zip((1,) * (n - len(a)) + a, (1,) * (n - len(b)) + b, strict=True)
    out = []
    for x, y in pairs:
        if x != y and 1 not in (x, y):
            raise ValueError(f"shapes {a} and {b} do not broadcast")
        out.append(y if x == 1 else x)
    return tuple(out)


def broadcast(x: Node, shape: tuple[int, ...]) -> Node:
    """x repeated to `shape` (numpy rules)."""
    return x if x.shape == shape else node("broadcast", x.type.with_shape(shape), (x,))


def _aligned(*operands: Operand) -> tuple[Node, ...]:
    dtype = next(o.dtype for o in operands if isinstance(o, Node))
    nodes = [o if isinstance(o, Node) else const(o, dtype) for o in operands]
    shape: tuple[int, ...] = ()
    for n in nodes:
        shape = broadcast_shapes(shape, n.shape)
    return tuple(broadcast(n, shape) for n in nodes)


_BOOLEAN = frozenset({"eq", "ne", "lt", "le"})


def _fold(op: str, a: Node, b: Node) -> Node | None:
    """Index arithmetic on i64 constants, so that addresses stay short."""
    if a.dtype is not I64 or a.shape:
        return None
    x = a["value"] if a.op == "const" else None
    y = b["value"] if b.op == "const" else None
    if op == "add":
        return (
            const(x + y, I64)
            if x is not None and y is not None
            else b
            if x == 0
            else a
            if y == 0
            else None
        )
    if op == "mul":
        if x is not None and y is not None:
            return const(x * y, I64)
        return const(0, I64) if 0 in (x, y) else b if x == 1 else a if y == 1 else None
    if op == "sub":
        return const(x - y, I64) if x is not None and y is not None else a if y == 0 else None
    return None


def unary(op: str, x: Node) -> Node:
    """An elementwise operation of one operand."""
    return node(op, x.type, (x,))


def binary(op: str, a: Operand, b: Operand) -> Node:
    """An elementwise operation of two operands; comparisons give bool."""
    x, y = _aligned(a, b)
    return _fold(op, x, y) or node(
        op, x.type.with_dtype(DType.BOOL) if op in _BOOLEAN else x.type, (x, y)
    )


def add(a: Operand, b: Operand) -> Node:
    return binary("add", a, b)


def sub(a: Operand, b: Operand) -> Node:
    return binary("sub", a, b)


def mul(a: Operand, b: Operand) -> Node:
    return binary("mul", a, b)


def fma(a: Operand, b: Operand, c: Operand) -> Node:
    """a * b + c, rounded once."""
    x, y, z = _aligned(a, b, c)
    return node("fma", x.type, (x, y, z))


def where(condition: Node, a: Operand, b: Operand) -> Node:
    """a where the condition holds, else b."""
    x, y = _aligned(a, b)
    shape = broadcast_shapes(condition.shape, x.shape)
    c, x, y = broadcast(condition, shape), broadcast(x, shape), broadcast(y, shape)
    return node("where", x.type, (c, x, y))


def cast(x: Node, dtype: DType) -> Node:
    """x converted to another element type."""
    return x if x.dtype is dtype else node("cast", x.type.with_dtype(dtype), (x,))


def bitcast(x: Node, dtype: DType) -> Node:
    """x's bits read as another element type of the same width."""
    return x if x.dtype is dtype else node("bitcast", x.type.with_dtype(dtype), (x,))


def reshape(x: Node, shape: tuple[int, ...]) -> Node:
    """x's elements in row-major order under another shape."""
    return x if x.shape == shape else node("reshape", x.type.with_shape(shape), (x,))


def transpose(x: Node, perm: tuple[int, ...]) -> Node:
    """Axis i of the result is axis perm[i] of x."""
    if x.op == "transpose" and [x["perm"][p] for p in perm] == list(range(len(perm))):
        return x.srcs[0]
    return node("transpose", x.type.with_shape(x.shape[p] for p in perm), (x,), perm=perm)


def reduce(kind: str, x: Node, axis: int) -> Node:
    """x without the axis, combined by kind: sum, prod, min or max."""
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    return node("reduce", x.type.with_shape(shape), (x,), kind=kind, axis=axis)


def scan(kind: str, x: Node, axis: int) -> Node:
    """Inclusive prefix combination along the axis."""
    return node("scan", x.type, (x,), kind=kind, axis=axis)


def dot(a: Node, b: Node, acc: Node) -> Node:
    """acc + a @ b in acc's element type."""
    return node("dot", acc.type, (a, b, acc))


def arange(n: int, dtype: DType = I64) -> Node:
    """The tile 0, 1, ..., n-1."""
    return node("arange", Type((n,), dtype))


def program_id(axis: int = 0) -> Node:
    """This instance's index along a grid axis."""
    return node("program_id", Type((), I64), axis=axis)


def num_programs(axis: int = 0) -> Node:
    """The grid's size along an axis."""
    return node("num_programs", Type((), I64), axis=axis)


class Builder:
    """Collects parameters and statements of one kernel."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._params: list[Param] = []
        self._blocks: list[list[Statement]] = [[]]
        self._loaded: list[dict[Hashable, Node]] = [{}]
        self._fresh = 0

    def buffer(self, name: str, dtype: DType, reads: bool = True, writes: bool = False) -> Memory:
        """Declare a buffer parameter."""
        self._params.append(Param(name, ParamKind.BUFFER, dtype, reads, writes))
        return Memory(name, dtype)

    def scalar(self, name: str, dtype: DType) -> Node:
        """Declare a scalar parameter."""
        self._params.append(Param(name, ParamKind.SCALAR, dtype))
        return node("scalar", Type((), dtype), name=name)

    def var(self, type: Type) -> Node:
        """A fresh variable."""
        self._fresh += 1
        return node("var", type, id=self._fresh)

    def _emit(self, statement: Statement) -> None:
        self._blocks[-1].append(statement)
        self._loaded[-1].clear()

    def _load(self, statement: Load | Gather, *what: Hashable) -> Node:
        """The result of a load; that of the same one before it in the block, if nothing that may
        write comes between them."""
        loaded = self._loaded[-1]
        if what not in loaded:
            self._blocks[-1].append(statement)
            loaded[what] = statement.result
        return loaded[what]

    @contextmanager
    def _block(self) -> Iterator[list[Statement]]:
        """The statements inside, as a block of their own."""
        block: list[Statement] = []
        self._blocks.append(block)
        self._loaded.append({})
        yield block
        self._blocks.pop()
        self._loaded.pop()

    def access(
        self,
        memory: Memory,
        offset: Operand,
        strides: Sequence[Operand],
        limits: Sequence[Operand | None] = (),
    ) -> Access:
        """A strided block; see `Access`. Missing limits are None."""
        bounds = tuple(limits) + (None,) * (len(strides) - len(limits))
        return Access(
            memory,
            index(offset),
            tuple(map(index, strides)),
            tuple(None if b is None else index(b) for b in bounds),
        )

    def load(
        self,
        memory: Memory,
        offset: Operand,
        shape: tuple[int, ...] = (),
        strides: Sequence[Operand] = (),
        limits: Sequence[Operand | None] = (),
        other: Node | None = None,
    ) -> Node:
        """Load a block of `shape` (a scalar without one)."""
        result = self.var(Type(shape, memory.dtype))
        source = self.access(memory, offset, strides, limits)
        return self._load(Load(result, source, other), shape, source, other)

    def store(
        self,
        memory: Memory,
        offset: Operand,
        value: Node,
        strides: Sequence[Operand] = (),
        limits: Sequence[Operand | None] = (),
    ) -> None:
        """Store a tile to a block."""
        self._emit(Store(self.access(memory, offset, strides, limits), value))

    def gather(
        self, memory: Memory, index: Node, mask: Node | None = None, other: Node | None = None
    ) -> Node:
        """Load one element for each index."""
        result = self.var(Type(index.shape, memory.dtype))
        return self._load(Gather(result, memory, index, mask, other), memory, index, mask, other)

    def scatter(self, memory: Memory, index: Node, value: Node, mask: Node | None = None) -> None:
        """Store one element for each index."""
        self._emit(Scatter(memory, index, value, mask))

    def atomic(
        self, kind: str, memory: Memory, index: Node, value: Node, mask: Node | None = None
    ) -> None:
        """Combine one element for each index atomically."""
        self._emit(Atomic(kind, memory, index, value, mask))

    def alloc(self, name: str, dtype: DType, size: int) -> Memory:
        """Scratch memory of `size` elements."""
        memory = Memory(name, dtype, SCRATCHPAD, size)
        self._emit(Alloc(memory))
        return memory

    def copy(
        self, target: Access, source: Access, shape: tuple[int, ...], channel: int = 0
    ) -> None:
        """Start an asynchronous block copy."""
        self._emit(Copy(target, source, shape, channel))

    def wait(self, channel: int = 0) -> None:
        """Wait for the channel's copies."""
        self._emit(Wait(channel))

    def barrier(self) -> None:
        """Order scratch accesses between lanes."""
        self._emit(Barrier())

    def loop(
        self,
        start: Operand,
        stop: Operand,
        step: Operand,
        body: Callable[..., Sequence[Node] | None],
        init: Sequence[Node] = (),
    ) -> tuple[Node, ...]:
        """for i in range(start, stop, step): values = body(i, *values); gives the last values."""
        i = self.var(Type((), I64))
        variables = [self.var(v.type) for v in init]
        with self._block() as inside:
            after = body(i, *variables) or ()
        carried = tuple(
            Carried(v, first, nxt, self.var(v.type))
            for v, first, nxt in zip(variables, init, after, strict=True)
        )
        self._emit(For(i, index(start), index(stop), index(step), carried, tuple(inside)))
        return tuple(c.result for c in carried)

    @contextmanager
    def when(self, condition: Node) -> Iterator[None]:
        """Statements inside run where the condition holds."""
        with self._block() as inside:
            yield
        self._emit(If(condition, tuple(inside)))

    def kernel(self) -> Kernel:
        """The finished kernel."""
        return Kernel(self.name, tuple(self._params), tuple(self._blocks[0]))
