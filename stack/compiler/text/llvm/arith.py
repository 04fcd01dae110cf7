"""Elementwise operations on operands: each function takes LLVM values of one width and writes the
cheapest sequence with the meaning that `hal.tile.kernel` states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hal.core.dtypes import DType
from stack.compiler.text.llvm.casts import round_to
from stack.compiler.text.llvm.types import (
    SIGNED,
    constant,
    is_constant,
    register,
    splat_constant,
    vector,
)
from stack.compiler.text.llvm.writer import Writer

Operation = Callable[[Writer, DType, int, str, str], str]

_NANS = ("0x7FF8", "0xFFF8")


def _plain(of_float: str, of_int: str, of_bool: str) -> Operation:
    def operation(out: Writer, dtype: DType, width: int, a: str, b: str) -> str:
        name = of_float if dtype.is_float else of_bool if dtype is DType.BOOL else of_int
        result = out.put(f"{name} {vector(register(dtype), width)} {a}, {b}")
        return round_to(out, result, dtype, width)

    return operation


def _extreme(name: str) -> Operation:
    """min or max. The hardware's float form gives its second operand when unordered, so NaN needs
    care only in the first one; a constant takes that place."""
    relation = {"min": "olt", "max": "ogt"}[name]
    of_bool = {"min": "and", "max": "or"}[name]

    def operation(out: Writer, dtype: DType, width: int, a: str, b: str) -> str:
        kind, mask = vector(register(dtype), width), vector("i1", width)
        if dtype is DType.BOOL:
            return out.put(f"{of_bool} {kind} {a}, {b}")
        if not dtype.is_float:
            sign = "s" if dtype in SIGNED else "u"
            return out.elementwise(f"{sign}{name}", register(dtype), width, a, b)
        if is_constant(b):
            a, b = b, a
        best = out.put(f"fcmp {relation} {kind} {a}, {b}")
        best = out.put(f"select {mask} {best}, {kind} {a}, {kind} {b}")
        if is_constant(a) and not any(nan in a for nan in _NANS):
            return best
        nan = out.put(f"fcmp uno {kind} {a}, zeroinitializer")
        return out.put(f"select {mask} {nan}, {kind} {a}, {kind} {best}")

    return operation


def _divide(name: str) -> Operation:
    def operation(out: Writer, dtype: DType, width: int, a: str, b: str) -> str:
        kind = vector(register(dtype), width)
        if dtype.is_float:
            how = {"div": "fdiv", "rem": "frem"}[name]
            return round_to(out, out.put(f"{how} {kind} {a}, {b}"), dtype, width)
        if dtype in SIGNED:
            return _divide_signed(out, name, dtype, width, a, b)
        zero = out.put(f"icmp eq {kind} {b}, zeroinitializer")
        safe = _select(out, kind, width, zero, _number(dtype, 1, width), b)
        result = out.put(f"u{name} {kind} {a}, {safe}")
        return _select(out, kind, width, zero, "zeroinitializer", result)

    return operation


def _divide_signed(out: Writer, name: str, dtype: DType, width: int, a: str, b: str) -> str:
    """Divisors 0 and -1 (the one that overflows) are divided by 1 and mended."""
    kind = vector(register(dtype), width)
    zero = out.put(f"icmp eq {kind} {b}, zeroinitializer")
    minus = out.put(f"icmp eq {kind} {b}, {_number(dtype, -1, width)}")
    odd = out.put(f"or {vector('i1', width)} {zero}, {minus}")
    safe = _select(out, kind, width, odd, _number(dtype, 1, width), b)
    result = out.put(f"s{name} {kind} {a}, {safe}")
    if name == "div":
        negated = out.put(f"sub {kind} zeroinitializer, {a}")
        result = _select(out, kind, width, minus, negated, result)
    return _select(out, kind, width, zero, "zeroinitializer", result)


def _shift(left: bool) -> Operation:
    def operation(out: Writer, dtype: DType, width: int, a: str, b: str) -> str:
        scalar = register(dtype)
        kind = vector(scalar, width)
        if not left and dtype in SIGNED:
            most = _number(dtype, dtype.bits - 1, width)
            amount = out.elementwise("umin", scalar, width, b, most)
            return out.put(f"ashr {kind} {a}, {amount}")
        inside = out.put(f"icmp ult {kind} {b}, {_number(dtype, dtype.bits, width)}")
        shifted = out.put(f"{'shl' if left else 'lshr'} {kind} {a}, {b}")
        return _select(out, kind, width, inside, shifted, "zeroinitializer")

    return operation


def _select(out: Writer, kind: str, width: int, mask: str, a: str, b: str) -> str:
    return out.put(f"select {vector('i1', width)} {mask}, {kind} {a}, {kind} {b}")


def _number(dtype: DType, value: int, width: int) -> str:
    return splat_constant(register(dtype), constant(dtype, value), width)


BINARY: Mapping[str, Operation] = {
    "add": _plain("fadd", "add", "or"),
    "sub": _plain("fsub", "sub", "xor"),
    "mul": _plain("fmul", "mul", "and"),
    "div": _divide("div"),
    "rem": _divide("rem"),
    "min": _extreme("min"),
    "max": _extreme("max"),
    "and": _plain("", "and", "and"),
    "or": _plain("", "or", "or"),
    "xor": _plain("", "xor", "xor"),
    "shl": _shift(left=True),
    "shr": _shift(left=False),
}
"""Operations of two operands of one type, by name."""

_FLOAT_RELATION = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole"}
_INT_RELATION = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le"}


def compare(out: Writer, name: str, dtype: DType, width: int, a: str, b: str) -> str:
    """A comparison; gives i1 lanes."""
    kind = vector(register(dtype), width)
    if dtype.is_float:
        return out.put(f"fcmp {_FLOAT_RELATION[name]} {kind} {a}, {b}")
    sign = "" if name in ("eq", "ne") else "s" if dtype in SIGNED else "u"
    return out.put(f"icmp {sign}{_INT_RELATION[name]} {kind} {a}, {b}")


_UNARY_INTRINSIC = {
    "abs": "fabs",
    "sqrt": "sqrt",
    "floor": "floor",
    "ceil": "ceil",
    "round": "roundeven",
}
_EXACT = frozenset({"abs", "neg", "floor", "ceil", "round"})


def unary(out: Writer, name: str, dtype: DType, width: int, a: str) -> str:
    """neg, not, and the float functions that hardware has."""
    scalar = register(dtype)
    kind = vector(scalar, width)
    if name == "not":
        return out.put(f"xor {kind} {a}, {splat_constant(scalar, '-1', width)}")
    if not dtype.is_float:
        return _unary_int(out, name, dtype, width, a)
    if name == "neg":
        return out.put(f"fneg {kind} {a}")
    if name == "recip":
        one = splat_constant(scalar, constant(DType.F64, 1.0), width)
        result = out.put(f"fdiv {kind} {one}, {a}")
    else:
        result = out.elementwise(_UNARY_INTRINSIC[name], scalar, width, a)
    return result if name in _EXACT else round_to(out, result, dtype, width)


def _unary_int(out: Writer, name: str, dtype: DType, width: int, a: str) -> str:
    kind = vector(register(dtype), width)
    negated = out.put(f"sub {kind} zeroinitializer, {a}")
    if name == "neg":
        return negated
    if dtype not in SIGNED:
        return a
    below = out.put(f"icmp slt {kind} {a}, zeroinitializer")
    return _select(out, kind, width, below, negated, a)


def fma(out: Writer, dtype: DType, width: int, a: str, b: str, c: str) -> str:
    """a * b + c, rounded once; of integers it wraps."""
    if dtype.is_float:
        return round_to(out, out.elementwise("fma", register(dtype), width, a, b, c), dtype, width)
    kind = vector(register(dtype), width)
    product = out.put(f"mul {kind} {a}, {b}")
    return out.put(f"add {kind} {product}, {c}")
