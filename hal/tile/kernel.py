"""Tile IR: kernels as statements over pure tile expressions.

A kernel is run for every point of a grid by an independent *program instance*. Values are *tiles*:
typed arrays of a static shape, scalars included. What has an effect or an order is a statement;
what is pure is a `Node`:

leaves        const(value) | var(id) | scalar(name) | program_id(axis) | num_programs(axis) | arange
(0, 1, 2, ... along
              the only axis)
elementwise   neg abs exp log sin cos tanh erf sqrt rsqrt recip floor ceil round not | add sub mul
div rem pow min max and
              or xor shl shr | eq ne lt le (give bool) | fma(a, b, c) = a*b + c | where(cond, a, b)
              | cast | bitcast
shape         broadcast (numpy rules) | reshape | transpose(perm)
contraction   reduce(kind, axis) removes an axis, kind: sum prod min max | scan(kind, axis)
inclusive |
              dot(a[M,K], b[K,N], acc[M,N]) = acc + a @ b, products and sums in acc's type

Meaning. Operands of an elementwise operation have one shape and (but for where's condition, cast,
bitcast) one type. Integers wrap. `div` and `rem` of integers truncate toward zero, by zero give 0.
A shift by the width or more (the amount read as unsigned) gives 0 (-1 for a negative signed `shr`);
`shr` is arithmetic for signed, logical for unsigned types. `rem` of floats is exact and has the
dividend's sign. `min` and `max` give NaN if an operand is NaN; of zeros with two signs either one;
of bools they are `and` and `or`, false being less than true. `round` is to nearest even. Casts:
float to integer truncates and saturates, NaN gives 0; integers wrap; to bool is `!= 0`; to a
narrower float rounds to nearest even; what is too large is infinite, or NaN in a type without
infinities. Types that are computed in another (`DType.computed_in`: narrow floats in f32) are cast
from and to any type by way of that one, and arithmetic on them, a whole `reduce` or `dot` and each
prefix of a `scan` included, is done in it and rounded once. The order in which floats are combined
by `reduce`, `scan` and `dot` is free.
"""

from __future__ import annotations

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.core.values import Param
from hal.tile.node import Node

GLOBAL = "global"
SCRATCHPAD = "scratchpad"


@dataclass(frozen=True, slots=True)
class Memory:
    """A named array of `dtype`: a buffer parameter (space "global", size 0: not known here) or an
    `Alloc`."""

    name: str
    dtype: DType
    space: str = GLOBAL
    size: int = 0


@dataclass(frozen=True, slots=True)
class Access:
    """A strided block of a memory: element (i0, i1, ...) is at `offset + sum(i_k * strides[k])`,
    counted in elements.

    It is valid if i_k < limits[k] for every k whose limit is not None. Offset, strides and limits
    are i64 scalars.
    """

    memory: Memory
    offset: Node
    strides: tuple[Node, ...]
    limits: tuple[Node | None, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """`result` (a var) = the block; elements that are not valid are not touched and give `other` (a
    scalar), zero without one. A load whose result nothing uses says that its block is read soon,
    and need not be made."""

    result: Node
    source: Access
    other: Node | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """Write a tile to a block; elements that are not valid are not touched."""

    target: Access
    value: Node


@dataclass(frozen=True, slots=True)
class Gather:
    """`result` = memory[index] where mask (None: everywhere), else `other` (None: 0)."""

    result: Node
    memory: Memory
    index: Node
    mask: Node | None = None
    other: Node | None = None


@dataclass(frozen=True, slots=True)
class Scatter:
    """memory[index] = value elementwise where mask. Equal indices: one of the values is kept."""

    memory: Memory
    index: Node
    value: Node
    mask: Node | None = None


@dataclass(frozen=True, slots=True)
class Atomic:
    """memory[index] = kind(memory[index], value), atomically per element; kind: add, min, max,
    exchange."""

    kind: str
    memory: Memory
    index: Node
    value: Node
    mask: Node | None = None


@dataclass(frozen=True, slots=True)
class Alloc:
    """Scratch memory of `memory.size` elements, private to the instance, undefined at first."""

    memory: Memory


@dataclass(frozen=True, slots=True)
class Copy:
    """Start copying a block of `shape` between memories (DMA); done after `Wait` on the same
    channel."""

    target: Access
    source: Access
    shape: tuple[int, ...]
    channel: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for every copy started on the channel."""

    channel: int


@dataclass(frozen=True, slots=True)
class Carried:
    """A value that a loop carries: `var` inside is `init` at first and `next` of the iteration
    before; after the loop `result` is the last one."""

    var: Node
    init: Node
    next: Node
    result: Node


@dataclass(frozen=True, slots=True)
class For:
    """for index in range(start, stop, step): body. Bounds are i64 scalars, step is positive."""

    index: Node
    start: Node
    stop: Node
    step: Node
    carried: tuple[Carried, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class If:
    """Run `then` where the bool scalar holds, else `orelse`."""

    condition: Node
    then: tuple[Statement, ...]
    orelse: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class Barrier:
    """Every lane of the instance has finished its earlier accesses to scratch memory."""


Statement = Load | Store | Gather | Scatter | Atomic | Alloc | Copy | Wait | For | If | Barrier


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel: buffer parameters are the memories of the same name, scalar parameters `scalar`
    nodes."""

    name: str
    params: tuple[Param, ...]
    body: tuple[Statement, ...]
