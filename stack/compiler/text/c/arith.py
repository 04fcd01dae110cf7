"""Operations as C expressions over operands that are names or constants: how what is primitive is
spelled, by the kind of its operands. What is not is a nested expression, or a C function where that
would say something twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from hal.core.dtypes import DType
from hal.tile.build import binary, cast
from hal.tile.node import Node, Type, node, toposort
from stack.compiler.text.c import casts
from stack.compiler.text.c.types import literal, register, wide_word
from stack.compiler.text.c.writer import CWriter
from stack.compiler.text.primitive import computed, definition

_WRAPPED = {name: f"({{0}})(({{1}}){{2}} {sign} ({{1}}){{3}})" for name, sign in (
    ("add", "+"), ("sub", "-"), ("mul", "*"), ("and", "&"), ("or", "|"), ("xor", "^"),
)}  # fmt: skip
"""Of whole numbers: computed in an unsigned type of at least 32 bits."""


def _whole(name: str, text: str) -> dict[str, str]:
    return {"f": text, **dict.fromkeys("iu", _WRAPPED[name])}


_RELATIONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<="}

_TEXTS: Mapping[str, Mapping[str, str]] = {
    "add": _whole("add", "({2} + {3})"),
    "sub": _whole("sub", "({2} - {3})"),
    "mul": _whole("mul", "({2} * {3})"),
    "div": {"f": "({2} / {3})", **dict.fromkeys("iu", "({0})({2} / {3})")},
    "rem": {"f": "fmod({2}, {3})", **dict.fromkeys("iu", "({0})({2} % {3})")},
    "pow": {"f": "pow({2}, {3})"},
    "and": {"b": "({2} & {3})", **_whole("and", "")},
    "or": {"b": "({2} | {3})", **_whole("or", "")},
    "xor": {"b": "({2} ^ {3})", **_whole("xor", "")},
    "shl": dict.fromkeys("iu", "({0})(({1}){2} << {3})"),
    "shr": dict.fromkeys("iu", "({0})({2} >> {3})"),
    "min": dict.fromkeys("iu", "({2} < {3} ? {2} : {3})"),
    "max": dict.fromkeys("iu", "({2} > {3} ? {2} : {3})"),
    **{name: dict.fromkeys("fiub", f"({{2}} {sign} {{3}})") for name, sign in _RELATIONS.items()},
    "where": dict.fromkeys("b", "({2} ? {3} : {4})"),
    "neg": {"f": "-{2}", **dict.fromkeys("iu", "({0})(0U - ({1}){2})")},
    "not": {"b": "(!{2})", **dict.fromkeys("iu", "({0})(~{2})")},
    **{name: {"f": f"{name}({{2}})"} for name in ("exp", "log", "sin", "cos", "tanh", "erf")},
}
"""By the operation and the kind of its first operand, of the type of the result, the unsigned type
in which whole numbers are computed, and the operands."""

_EXACT = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "rint", "abs": "fabs"}


def elementwise(out: CWriter, n: Node, operands: list[str]) -> str:
    """The expression of an elementwise node."""
    if n.op == "cast" and (own := out.dialect.casts.get((n.srcs[0].dtype, n.dtype))):
        return f"{out.functions.define(*own)}({operands[0]})"
    simpler = definition(n, out.dialect.has)
    if simpler is None:
        d, dtype = out.dialect, n.srcs[0].dtype
        if n.op == "cast":
            return f"({register(d, n.dtype)}){operands[0]}"
        if n.op == "bitcast":
            return casts.from_bits(out, casts.to_bits(out, operands[0], dtype), n.dtype)
        if n.op == "fma":
            return out.functions.fma(dtype, *operands)
        if n.op in _EXACT:
            return out.functions.exact(_EXACT[n.op], dtype, operands[0])
        unsigned = wide_word(d, dtype) if dtype.is_int else ""
        return _TEXTS[n.op][dtype.kind].format(register(d, n.dtype), unsigned, *operands)
    known = dict(zip(n.srcs, operands, strict=True))
    if _says_once(simpler, known):
        return _nested(out, simpler, known)
    return f"{_function(out, n)}({', '.join(operands)})"


def _says_once(root: Node, known: Mapping[Node, str]) -> bool:
    """Whether nothing but what is known, and constants, is used twice in an expression."""
    uses: dict[Node, int] = {}
    stack = [root]
    while stack:
        n = stack.pop()
        uses[n] = uses.get(n, 0) + 1
        if n in known or n.op in ("const", "broadcast"):
            continue
        if uses[n] > 1:
            return False
        stack += n.srcs
    return True


def _nested(out: CWriter, n: Node, known: Mapping[Node, str]) -> str:
    if n in known:
        return known[n]
    if n.op == "broadcast":
        return _nested(out, n.srcs[0], known)
    if n.op == "const":
        return literal(n.dtype, n["value"])
    return elementwise(out, n, [_nested(out, s, known) for s in n.srcs])


def _function(out: CWriter, n: Node) -> str:
    """The name of a C function that computes an operation of scalars."""
    source, d = n.srcs[0].dtype, out.dialect
    name = (
        f"hal_{n.dtype.short}_of_{source.short}" if n.op == "cast" else f"hal_{n.op}_{source.short}"
    )
    if out.functions.has(name):
        return name
    given = [node("var", Type((), s.dtype), id=i) for i, s in enumerate(n.srcs)]
    simpler = definition(
        node(n.op, Type((), n.dtype), tuple(given), **dict(n.attrs)), out.dialect.has
    )
    assert simpler is not None
    known = {x: "xyz"[i] for i, x in enumerate(given)}
    lines: list[str] = []
    for step in toposort((simpler,)):
        if step not in known and step.op != "const":
            value = elementwise(out, step, [_nested(out, s, known) for s in step.srcs])
            known[step] = f"v{len(lines)}"
            lines.append(f"    const {register(d, step.dtype)} {known[step]} = {value};\n")
    head = ", ".join(f"{register(d, x.dtype)} {known[x]}" for x in given)
    kind = register(d, n.dtype)
    text = (
        f"{d.function} {kind} {name}({head}) {{\n{''.join(lines)}    return {known[simpler]};\n}}\n"
    )
    return out.functions.define(name, text)


def combined(out: CWriter, op: str, dtype: DType, a: str, b: str) -> str:
    """An operation of two operands of one type."""
    root, x, y = _of_two(op, dtype)
    return _nested(out, root, {x: a, y: b})


@cache
def _of_two(op: str, dtype: DType) -> tuple[Node, Node, Node]:
    """An operation and the two variables that are its operands."""
    x, y = (node("var", Type((), dtype), id=i) for i in range(2))
    return computed(binary(op, x, y)), x, y


def converted(out: CWriter, value: str, source: DType, targets: Iterable[DType]) -> str:
    """A value cast to one type after the other."""
    x = n = node("var", Type((), source), id=0)
    for target in targets:
        n = cast(n, target)
    return _nested(out, n, {x: value})


def fma(out: CWriter, dtype: DType, a: str, b: str, c: str) -> str:
    """a * b + c, of floats rounded once."""
    given = tuple(node("var", Type((), dtype), id=i) for i in range(3))
    return elementwise(out, node("fma", given[0].type, given), [a, b, c])
