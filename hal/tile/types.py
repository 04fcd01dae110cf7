"""The typing rules of tile expressions: what is wrong with a node, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from types import MappingProxyType

from hal.core.dtypes import DType
from hal.tile.node import Node
from hal.tile.numeric import bounds
from hal.tile.ops import COMBINE, OPS, Op, OpClass

AXES = 3
"""A grid has at most this many axes."""

MOST_ELEMENTS = 2**31 - 1
"""Of a tile or a scratch memory: positions in it are counted in 32 bits."""

Rule = Callable[[Node], Iterator[str]]


def problem(node: Node) -> str | None:
    """The first rule that this node breaks (its sources are not checked), or None."""
    op = OPS.get(node.op)
    if op is None:
        return f"unknown operation {node.op!r}; the operations are {', '.join(OPS)}"
    return next(_problems(op, node), None)


def _problems(op: Op, n: Node) -> Iterator[str]:
    if len(n.srcs) != op.arity:
        yield f"{op.name} takes {op.arity} operands, not {len(n.srcs)}"
    names = tuple(k for k, _ in n.attrs)
    if names != op.attrs:
        yield f"{op.name} has the attributes {list(op.attrs)}, not {list(names)}"
    for t in (n, *n.srcs):
        if not all(isinstance(d, int) and d >= 1 for d in t.shape):
            yield f"{t.op} has type {t.type}; every dimension of a tile is at least 1"
        if t.type.size > MOST_ELEMENTS:
            yield f"{t.op} has type {t.type}; a tile has at most {MOST_ELEMENTS} elements"
    for x in n.srcs or (n,):
        if not op.takes(x.dtype):
            yield f"{op.name} does not take {x.dtype.short}"
    yield from _GROUP[op.group](n)


def _same(n: Node) -> Iterator[str]:
    for i, x in enumerate(n.srcs):
        if x.type != n.type:
            yield f"{n.op} of type {n.type} has operand {i} of type {x.type}; they must be the same"


def _compare(n: Node) -> Iterator[str]:
    a, b = n.srcs
    if a.type != b.type:
        yield f"{n.op} compares {a.type} with {b.type}; cast or broadcast one"
    if n.type != a.type.with_dtype(DType.BOOL):
        yield f"{n.op} of {a.type} gives {a.type.with_dtype(DType.BOOL)}, not {n.type}"


def _select(n: Node) -> Iterator[str]:
    condition, a, b = n.srcs
    if condition.type != n.type.with_dtype(DType.BOOL):
        yield f"where's condition is {condition.type}; it must be {n.type.with_dtype(DType.BOOL)}"
    for x in (a, b):
        if x.type != n.type:
            yield f"where of type {n.type} has an operand of type {x.type}; they must be the same"


def _convert(n: Node) -> Iterator[str]:
    x = n.srcs[0]
    if x.shape != n.shape:
        yield f"{n.op} keeps the shape, but {x.type} became {n.type}"
    if n.op == "bitcast" and (x.dtype.bits != n.dtype.bits or n.dtype is DType.BOOL):
        yield f"bitcast of {x.dtype.short} to {n.dtype.short}; it needs one width, and not bool"


def _shape(n: Node) -> Iterator[str]:
    x = n.srcs[0]
    if x.dtype is not n.dtype:
        yield f"{n.op} keeps the element type, but {x.type} became {n.type}"
    if n.op == "reshape" and prod(x.shape) != prod(n.shape):
        yield f"reshape of {x.type} to {n.type} changes the number of elements"
    pairs = zip(reversed(x.shape), reversed(n.shape), strict=False)
    fits = len(x.shape) <= len(n.shape) and all(a in (1, b) for a, b in pairs)
    if n.op == "broadcast" and not fits:
        yield f"{x.type} does not broadcast to {n.type}; sizes must be 1 or equal, from the last"
    if n.op == "transpose":
        perm = n["perm"]
        if sorted(perm) != list(range(len(x.shape))):
            yield f"perm {perm} is not an order of the {len(x.shape)} axes of {x.type}"
        elif n.shape != tuple(x.shape[p] for p in perm):
            yield f"transpose of {x.type} by {perm} is not {n.type}"


def _along(n: Node) -> Iterator[str]:
    x, kind, axis = n.srcs[0], n["kind"], n["axis"]
    if kind not in COMBINE:
        yield f"{n.op} has no kind {kind!r}; the kinds are {', '.join(COMBINE)}"
    elif not OPS[COMBINE[kind]].takes(x.dtype) or (
        x.dtype is DType.BOOL and kind in ("sum", "prod")
    ):
        yield f"{n.op} {kind} does not take {x.dtype.short}"
    if not 0 <= axis < len(x.shape):
        yield f"{n.op} along axis {axis} of {x.type}, which has {len(x.shape)} axes"
        return
    kept = x.shape if n.op == "scan" else x.shape[:axis] + x.shape[axis + 1 :]
    if n.type != x.type.with_shape(kept):
        yield f"{n.op} of {x.type} along axis {axis} gives {x.type.with_shape(kept)}, not {n.type}"


def _dot(n: Node) -> Iterator[str]:
    a, b, acc = n.srcs
    if not len(a.shape) == len(b.shape) == len(acc.shape) == 2:
        yield f"dot needs tiles of two axes, not {a.type}, {b.type} and {acc.type}"
    elif a.shape[1] != b.shape[0] or acc.shape != (a.shape[0], b.shape[1]):
        yield f"dot of {a.type} and {b.type} into {acc.type}: shapes must be [M,K], [K,N] and [M,N]"
    if acc.type != n.type:
        yield f"dot into {acc.type} cannot be {n.type}"
    alike = a.dtype is b.dtype or (a.dtype.is_int and b.dtype.is_int)
    wide = all(x.dtype.bits <= acc.dtype.bits for x in (a, b))
    if not alike or not wide or a.dtype.is_float != acc.dtype.is_float:
        yield (
            f"dot of {a.dtype.short} and {b.dtype.short} into {acc.dtype.short}: "
            "inputs need one type or are both integers, and a sum of the same kind and at least "
            "their width"
        )


def _leaf(n: Node) -> Iterator[str]:
    if n.op == "arange":
        if len(n.shape) != 1:
            yield f"arange has one axis, not type {n.type}"
    elif n.op != "var" and n.shape:
        yield f"{n.op} is a scalar, not {n.type}; broadcast it"
    elif n.op == "const":
        value, dtype = n["value"], n.dtype
        wanted = float if dtype.is_float else bool if dtype is DType.BOOL else int
        if type(value) is not wanted:
            yield f"a constant of {dtype.short} holds a {wanted.__name__}, not {value!r}"
        elif dtype.is_int and not bounds(dtype)[0] <= value <= bounds(dtype)[1]:
            yield f"{value} does not fit {dtype.short}"
    elif "axis" in OPS[n.op].attrs and (n["axis"] not in range(AXES) or n.dtype is not DType.I64):
        yield f"{n.op} is an i64 of axis 0 to {AXES - 1}, not {n.type} of axis {n['axis']}"


_GROUP: Mapping[OpClass, Rule] = MappingProxyType(
    {
        OpClass.LEAF: _leaf,
        OpClass.UNARY: _same,
        OpClass.BINARY: _same,
        OpClass.TERNARY: _same,
        OpClass.COMPARE: _compare,
        OpClass.SELECT: _select,
        OpClass.CONVERT: _convert,
        OpClass.SHAPE: _shape,
        OpClass.REDUCE: _along,
        OpClass.SCAN: _along,
        OpClass.DOT: _dot,
    }
)
