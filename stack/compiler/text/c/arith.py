"""Elementwise operations: C expressions over operands that are names or constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack.compiler.text.c import casts
from stack.compiler.text.c.types import SIGNED, is_literal, register, unsigned, wide
from stack.compiler.text.c.writer import Writer

Operation = Callable[[Writer, DType, str, str], str]


def _wrapped(out: Writer, dtype: DType, text: Callable[[str], str]) -> str:
    """An integer expression computed in an unsigned type of at least 32 bits."""
    d = out.dialect
    return f"({register(d, dtype)})({text(d.words[max(dtype.bits, 32)])})"


def _plain(sign: str, of_bool: str) -> Operation:
    def operation(out: Writer, dtype: DType, a: str, b: str) -> str:
        if dtype is DType.BOOL:
            return f"({a} {of_bool} {b})"
        if dtype.is_float:
            return out.functions.rounded(dtype, f"({a} {sign} {b})")
        return _wrapped(out, dtype, lambda u: f"({u}){a} {sign} ({u}){b}")

    return operation


def _extreme(relation: str, of_bool: str) -> Operation:
    def operation(out: Writer, dtype: DType, a: str, b: str) -> str:
        if dtype is DType.BOOL:
            return f"({a} {of_bool} {b})"
        # `|`, not `||`: no branch keeps a loop from becoming vector code.
        nan = f"{a} != {a} | " if dtype.is_float else ""
        return f"({nan}{a} {relation} {b} ? {a} : {b})"

    return operation


def _divide(sign: str, of_minus: str) -> Operation:
    """`of_minus` is the result for the divisor -1, whose quotient may overflow."""

    def operation(out: Writer, dtype: DType, a: str, b: str) -> str:
        if dtype.is_float:
            exact = f"({a} / {b})" if sign == "/" else f"fmod({a}, {b})"
            return out.functions.rounded(dtype, exact)
        kind = register(out.dialect, dtype)
        result = f"({kind})({a} {sign} {b})"
        if is_literal(b) and not b.startswith("(") and b.strip("UL") != "0":
            return result
        if dtype in SIGNED:
            negated = unary(out, "neg", dtype, a) if of_minus == "neg" else of_minus
            result = f"{b} == -1 ? {negated} : {result}"
        return f"({b} == 0 ? ({kind})0 : {result})"

    return operation


def _shl(out: Writer, dtype: DType, a: str, b: str) -> str:
    amount = f"({unsigned(out.dialect, dtype)}){b}"
    shifted = _wrapped(out, dtype, lambda u: f"({u}){a} << {amount}")
    return f"({amount} < {dtype.bits} ? {shifted} : ({register(out.dialect, dtype)})0)"


def _shr(out: Writer, dtype: DType, a: str, b: str) -> str:
    kind, amount = register(out.dialect, dtype), f"({unsigned(out.dialect, dtype)}){b}"
    most = f"({kind})({a} >> {dtype.bits - 1})" if dtype in SIGNED else f"({kind})0"
    return f"({amount} < {dtype.bits} ? ({kind})({a} >> {amount}) : {most})"


def _pow(out: Writer, dtype: DType, a: str, b: str) -> str:
    return out.functions.rounded(dtype, f"pow({a}, {b})")


BINARY: Mapping[str, Operation] = {
    "add": _plain("+", "|"),
    "sub": _plain("-", "^"),
    "mul": _plain("*", "&"),
    "div": _divide("/", "neg"),
    "rem": _divide("%", "0"),
    "pow": _pow,
    "min": _extreme("<", "&"),
    "max": _extreme(">", "|"),
    "and": _plain("&", "&"),
    "or": _plain("|", "|"),
    "xor": _plain("^", "^"),
    "shl": _shl,
    "shr": _shr,
}
"""Operations of two operands of one type, by name."""

_RELATION = {"eq": "==", "ne": "!=", "lt": "<", "le": "<="}

_FUNCTION = {
    **{name: f"{name}({{}})" for name in ("exp", "log", "sin", "cos", "tanh", "erf")},
    "rsqrt": "rsqrt({})",
    "neg": "-{}",
    "recip": "(1 / {})",
}
_EXACT = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "rint", "abs": "fabs"}
_WHOLE = frozenset({"abs", "neg", "floor", "ceil", "round"})
"""What gives a narrow float for a narrow float."""


def unary(out: Writer, name: str, dtype: DType, a: str) -> str:
    """An operation of one operand."""
    if name == "not" and dtype is DType.BOOL:
        return f"(!{a})"
    if dtype.is_float:
        result = _of_float(out, name, dtype, a)
        return result if name in _WHOLE else out.functions.rounded(dtype, result)
    if name == "not":
        return f"({register(out.dialect, dtype)})(~{a})"
    negated = _wrapped(out, dtype, lambda u: f"0U - ({u}){a}")
    if name == "neg":
        return negated
    return f"({a} < 0 ? {negated} : {a})" if dtype in SIGNED else a


def _of_float(out: Writer, name: str, dtype: DType, a: str) -> str:
    if name in _EXACT:
        return out.functions.exact(_EXACT[name], wide(dtype), a)
    return _FUNCTION[name].format(a)


def fma(out: Writer, dtype: DType, a: str, b: str, c: str) -> str:
    """a * b + c, of floats rounded once."""
    if dtype.is_float:
        return out.functions.rounded(dtype, out.functions.fma(wide(dtype), a, b, c))
    return _wrapped(out, dtype, lambda u: f"({u}){a} * ({u}){b} + ({u}){c}")


def elementwise(out: Writer, n: Node, operands: list[str]) -> str:
    """The expression of an elementwise node."""
    return _RULES[n.op](out, n, *operands)


def _where(out: Writer, n: Node, c: str, a: str, b: str) -> str:
    return f"({c} ? {a} : {b})"


def _cast(out: Writer, n: Node, a: str) -> str:
    return casts.convert(out, a, n.srcs[0].dtype, n.dtype)


def _bitcast(out: Writer, n: Node, a: str) -> str:
    return casts.from_bits(out, casts.to_bits(out, a, n.srcs[0].dtype), n.dtype)


def _fma(out: Writer, n: Node, a: str, b: str, c: str) -> str:
    return fma(out, n.dtype, a, b, c)


def _unary(name: str, out: Writer, n: Node, a: str) -> str:
    return unary(out, name, n.dtype, a)


def _binary(operation: Operation, out: Writer, n: Node, a: str, b: str) -> str:
    return operation(out, n.dtype, a, b)


def _compare(relation: str, out: Writer, n: Node, a: str, b: str) -> str:
    return f"({a} {relation} {b})"


_RULES: Mapping[str, Callable[..., str]] = {
    **{name: partial(_unary, name) for name in (*_FUNCTION, *_EXACT, "not")},
    **{name: partial(_binary, operation) for name, operation in BINARY.items()},
    **{name: partial(_compare, relation) for name, relation in _RELATION.items()},
    "fma": _fma,
    "where": _where,
    "cast": _cast,
    "bitcast": _bitcast,
}
