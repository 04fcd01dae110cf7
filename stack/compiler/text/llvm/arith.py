"""Primitive operations as LLVM instructions: how each is spelled, by the kind of its operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from math import inf

from hal.core.dtypes import DType
from hal.tile.build import binary, cast
from hal.tile.node import Node, Type, node
from stack.compiler.text.llvm.types import constant, is_constant, register, splat_constant, vector
from stack.compiler.text.llvm.writer import LlvmWriter
from stack.compiler.text.primitive import (
    DEFINED,
    EXTREMES,
    HALVES,
    computed,
    definition,
)

HAS = frozenset({HALVES, EXTREMES, "sin", "cos"})
"""Operations that have instructions or rules of their own."""

_INSTRUCTIONS: Mapping[str, Mapping[str, str]] = {
    "add": {"f": "fadd", "i": "add", "u": "add"},
    "sub": {"f": "fsub", "i": "sub", "u": "sub"},
    "mul": {"f": "fmul", "i": "mul", "u": "mul"},
    "div": {"f": "fdiv", "i": "sdiv", "u": "udiv"},
    "rem": {"f": "frem", "i": "srem", "u": "urem"},
    "and": dict.fromkeys("iub", "and"),
    "or": dict.fromkeys("iub", "or"),
    "xor": dict.fromkeys("iub", "xor"),
    "shl": dict.fromkeys("iu", "shl"),
    "shr": {"i": "ashr", "u": "lshr"},
    "eq": {"f": "fcmp oeq", **dict.fromkeys("iub", "icmp eq")},
    "ne": {"f": "fcmp une", **dict.fromkeys("iub", "icmp ne")},
    "lt": {"f": "fcmp olt", "i": "icmp slt", **dict.fromkeys("ub", "icmp ult")},
    "le": {"f": "fcmp ole", "i": "icmp sle", **dict.fromkeys("ub", "icmp ule")},
    "neg": {"f": "fneg", **dict.fromkeys("iu", "sub {} zeroinitializer,")},
    "not": dict.fromkeys("iub", "xor"),
}

_INTRINSICS: Mapping[str, Mapping[str, str]] = {
    "min": {"i": "smin", "u": "umin"},
    "max": {"i": "smax", "u": "umax"},
    **{name: {"f": name} for name in ("sqrt", "floor", "ceil", "fma")},
    **{name: {"f": name} for name in ("exp", "log", "sin", "cos", "tanh", "pow")},
    "abs": {"f": "fabs"},
    "round": {"f": "roundeven"},
}

_EXTREMES = {"min": "minimum", "max": "maximum"}

_WHOLE = {DType.F32: 2.0**22, DType.F64: 2.0**51}
"""Quotients below which a type tells each whole number from what lies half way to the next."""

_HELD = 1 << 53
"""Integers that a float of 64 bits holds: so many of no sign, and of either sign half as many."""

_SOURCE = {"f": "f", "i": "s", "u": "u", "b": "u"}


def instruction(out: LlvmWriter, n: Node, width: int, operands: list[str]) -> str:
    """The value of a primitive node, of operands of so many lanes."""
    dtype = n.srcs[0].type.dtype
    if n.op == "rem" and dtype in _WHOLE and width > 1:
        return _remainders(out, dtype, width, *operands)
    if n.op in ("div", "rem") and dtype.is_int and width > 1 and not is_constant(operands[1]):
        return _divided(out, n.op, dtype, width, *operands)
    if n.op in _INSTRUCTIONS:
        return out.put(f"{_head(n.op, dtype, width)} {', '.join(operands)}")
    if n.op in _EXTREMES and dtype.is_float:
        # Of zeros either will do: hardware that tells them apart does it by itself.
        name = _EXTREMES[n.op]
        return out.elementwise(name, register(dtype), width, *operands, flags="nsz ")
    if n.op in _INTRINSICS:
        return out.elementwise(_INTRINSICS[n.op][dtype.kind], register(dtype), width, *operands)
    if n.op == "where":
        c, a, b = operands
        kind = vector(register(n.dtype), width)
        return out.put(f"select {vector('i1', width)} {c}, {kind} {a}, {kind} {b}")
    value = operands[0]
    source, target = n.srcs[0].dtype, n.dtype
    a, b = register(source), register(target)
    if a == b:
        return value
    if n.op == "bitcast":
        how = "bitcast"
    elif source.is_float and target.is_float:
        how = "fpext" if source.bits < target.bits else "fptrunc"
    elif source.is_float:
        # What the type does not hold is not asked for: LLVM 22 takes vectors that it limits itself
        # apart.
        how = f"fpto{_SOURCE[target.kind]}i"
    elif target.is_float:
        how = f"{_SOURCE[source.kind]}itofp"
    else:
        narrower = target.bits < source.bits
        how = "trunc" if narrower else "sext" if source.kind == "i" else "zext"
    return out.put(f"{how} {vector(a, width)} {value} to {vector(b, width)}")


def _remainders(out: LlvmWriter, dtype: DType, width: int, x: str, y: str) -> str:
    """Remainders of truncated divisions. LLVM calls a function for each lane, which is left to it
    where a quotient is large or no number. Else the quotient is rounded to at most one more than it
    is, so one multiply-add gives the exact remainder, or that less y. A million of float32 take 0.2
    ms instead of 10 (one thread, Zen 4)."""
    scalar, kind = register(dtype), vector(register(dtype), width)

    def number(value: float) -> str:
        return splat_constant(scalar, constant(dtype, value), width)

    def of(name: str, *operands: str) -> str:
        return out.elementwise(name, scalar, width, *operands)

    quotient, size = of("trunc", out.put(f"fdiv {kind} {x}, {y}")), of("fabs", y)
    held = vector("i1", width)
    small = out.put(f"fcmp olt {kind} {of('fabs', quotient)}, {number(_WHOLE[dtype])}")
    real = out.put(f"fcmp olt {kind} {size}, {number(inf)}")
    holds = out.put(f"and {held} {small}, {real}")

    def near() -> str:
        rest = of("fma", out.put(f"fneg {kind} {quotient}"), y, x)
        rest = out.put(f"fmul {kind} {rest}, {of('copysign', number(1.0), x)}")
        less = out.put(f"fcmp olt {kind} {rest}, {number(0.0)}")
        more = out.put(f"fadd {kind} {rest}, {size}")
        rest = out.put(f"select {held} {less}, {kind} {more}, {kind} {rest}")
        return of("copysign", rest, x)

    return _where_all(out, holds, width, kind, near, lambda: out.put(f"frem {kind} {x}, {y}"))


def _divided(out: LlvmWriter, op: str, dtype: DType, width: int, a: str, b: str) -> str:
    """Quotients or remainders of integers, by divisors that are neither 0 nor -1: those of floats
    that hold the operands, which are too exact to be rounded up to a whole number. LLVM divides
    lane by lane, which is left to it where integers of 64 bits are large. A million of 32 bits take
    a fifth of the time and of 64 a third (one thread, Zen 4)."""
    kind, sign = vector(register(dtype), width), _SOURCE[dtype.kind]
    floats = vector("float" if dtype.bits <= 16 else "double", width)

    def near() -> str:
        x, y = (out.put(f"{sign}itofp {kind} {v} to {floats}") for v in (a, b))
        ratio = out.put(f"fdiv {floats} {x}, {y}")
        quotient = out.put(f"fpto{sign}i {floats} {ratio} to {kind}")
        if op == "div":
            return quotient
        return out.put(f"sub {kind} {a}, {out.put(f'mul {kind} {quotient}, {b}')}")

    if dtype.bits < 64:
        return near()
    held, most = vector("i1", width), splat_constant("i64", str(_HELD), width)
    half = splat_constant("i64", str(_HELD // 2 if sign == "s" else 0), width)
    fit = [out.put(f"icmp ult {kind} {out.put(f'add {kind} {v}, {half}')}, {most}") for v in (a, b)]
    holds = out.put(f"and {held} {', '.join(fit)}")
    far = f"{_head(op, dtype, width)} {a}, {b}"
    return _where_all(out, holds, width, kind, near, lambda: out.put(far))


def _where_all(
    out: LlvmWriter,
    holds: str,
    width: int,
    kind: str,
    then: Callable[[], str],
    orelse: Callable[[], str],
) -> str:
    """A vector by one way where something holds for all lanes, else by another."""
    mask = out.put(f"bitcast {vector('i1', width)} {holds} to i{width}")
    first, second, after = out.label("all"), out.label("some"), out.label("next")
    out.branch(out.put(f"icmp eq i{width} {mask}, -1"), first, second)
    found = []
    for label, value in ((first, then), (second, orelse)):
        out.begin(label)
        lanes = value()
        found.append(f"[{lanes}, %{out.block}]")
        out.jump(after)
    out.begin(after)
    return out.put(f"phi {kind} {', '.join(found)}")


@cache
def _head(op: str, dtype: DType, width: int) -> str:
    """An instruction up to its operands."""
    kind = vector(register(dtype), width)
    if op == "not":
        return f"xor {kind} {splat_constant(register(dtype), '-1', width)},"
    name = _INSTRUCTIONS[op][dtype.kind]
    return name.format(kind) if "{}" in name else f"{name} {kind}"


# definitions

_Step = tuple[Node, tuple[int, ...]]
"""A primitive node, and the places of its operands: first those of the operation, then those of the
steps before."""


def define(out: LlvmWriter, n: Node, width: int, operands: list[str]) -> str:
    """The value of an operation, by its definition where it is not primitive."""
    if n.op not in DEFINED and not n.srcs[0].type.dtype.is_narrow:
        return instruction(out, n, width, operands)
    values = list(operands)
    steps, last = _program(n.op, n.type.dtype, tuple(map(_operand, n.srcs)))
    for step, places in steps:
        if step.op == "const":
            value = constant(step.dtype, step["value"])
            values.append(splat_constant(register(step.dtype), value, width))
        else:
            values.append(instruction(out, step, width, [values[i] for i in places]))
    return values[last]


def _operand(x: Node) -> Node | DType:
    """What the definition of an operation may depend on: a constant, or a type alone."""
    while x.op == "broadcast":
        x = x.srcs[0]
    return x if x.op == "const" else x.type.dtype


@cache
def _program(
    op: str, dtype: DType, operands: tuple[Node | DType, ...]
) -> tuple[tuple[_Step, ...], int]:
    """The steps of an operation, and the place of its value."""
    given = [
        x if isinstance(x, Node) else node("var", Type((), x), id=i) for i, x in enumerate(operands)
    ]
    places = {x: i for i, x in enumerate(given)}
    steps: list[_Step] = []

    def place(n: Node) -> int:
        """Where a node's value is, after the steps that it takes."""
        if n not in places:
            simpler = definition(n, HAS)
            if simpler is None:
                steps.append((n, tuple(place(s) for s in n.srcs)))
                places[n] = len(given) + len(steps) - 1
            else:
                places[n] = place(simpler)
        return places[n]

    last = place(computed(node(op, Type((), dtype), tuple(given))))
    return tuple(steps), last


def combine(out: LlvmWriter, op: str, dtype: DType, width: int, a: str, b: str) -> str:
    """An operation of two operands of one type."""
    return define(out, _of_two(op, dtype), width, [a, b])


@cache
def _of_two(op: str, dtype: DType) -> Node:
    x, y = (node("var", Type((), dtype), id=i) for i in range(2))
    return binary(op, x, y)


def fma(out: LlvmWriter, dtype: DType, width: int, a: str, b: str, c: str) -> str:
    """a * b + c, of floats rounded once."""
    if dtype.is_float:
        return out.elementwise("fma", register(dtype), width, a, b, c)
    return combine(out, "add", dtype, width, combine(out, "mul", dtype, width, a, b), c)


def convert(out: LlvmWriter, value: str, source: DType, target: DType, width: int) -> str:
    """`cast` of a value."""
    x = node("var", Type((), source), id=0)
    return value if source is target else define(out, cast(x, target), width, [value])
