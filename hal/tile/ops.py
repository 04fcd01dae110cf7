"""Every operation of tile expressions, as data for verifier, text, interpreter and renderers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from hal.core.dtypes import DType
from hal.core.facts import dataclass


class OpClass(Enum):
    """How an operation's type follows from its operands.

    UNARY, BINARY and TERNARY keep the type of their operands, COMPARE gives bool of their shape,
    SELECT is `where`, CONVERT changes the element type only, SHAPE the shape only, REDUCE removes
    an axis, SCAN keeps the type.
    """

    LEAF = "leaf"
    UNARY = "unary"
    BINARY = "binary"
    TERNARY = "ternary"
    COMPARE = "compare"
    SELECT = "select"
    CONVERT = "convert"
    SHAPE = "shape"
    REDUCE = "reduce"
    SCAN = "scan"
    DOT = "dot"


@dataclass(frozen=True, slots=True)
class Op:
    """One operation: `arity` operands whose element types are of one of `kinds` (see `DType.kind`;
    for a leaf its own type), and the names of its attributes, sorted."""

    name: str
    group: OpClass
    arity: int
    kinds: str
    attrs: tuple[str, ...] = ()

    def takes(self, dtype: DType) -> bool:
        """Whether operands may have this element type."""
        return dtype.kind in self.kinds


ANY = "fiub"
NUMBER = "fiu"
FLOAT = "f"
INT = "iu"
BITS = "iub"


def _rows() -> tuple[Op, ...]:
    leaf, unary, binary = OpClass.LEAF, OpClass.UNARY, OpClass.BINARY
    return (
        Op("const", leaf, 0, ANY, ("value",)),
        Op("var", leaf, 0, ANY, ("id",)),
        Op("scalar", leaf, 0, ANY, ("name",)),
        Op("program_id", leaf, 0, INT, ("axis",)),
        Op("num_programs", leaf, 0, INT, ("axis",)),
        Op("arange", leaf, 0, NUMBER),
        *(Op(name, unary, 1, NUMBER) for name in ("neg", "abs")),
        *(Op(name, unary, 1, FLOAT) for name in MATH),
        Op("not", unary, 1, BITS),
        *(Op(name, binary, 2, NUMBER) for name in ("add", "sub", "mul", "div", "rem")),
        Op("pow", binary, 2, FLOAT),
        *(Op(name, binary, 2, ANY) for name in ("min", "max")),
        *(Op(name, binary, 2, BITS) for name in ("and", "or", "xor")),
        *(Op(name, binary, 2, INT) for name in ("shl", "shr")),
        *(Op(name, OpClass.COMPARE, 2, ANY) for name in ("eq", "ne", "lt", "le")),
        Op("fma", OpClass.TERNARY, 3, NUMBER),
        Op("where", OpClass.SELECT, 3, ANY),
        Op("cast", OpClass.CONVERT, 1, ANY),
        Op("bitcast", OpClass.CONVERT, 1, NUMBER),
        Op("broadcast", OpClass.SHAPE, 1, ANY),
        Op("reshape", OpClass.SHAPE, 1, ANY),
        Op("transpose", OpClass.SHAPE, 1, ANY, ("perm",)),
        Op("reduce", OpClass.REDUCE, 1, ANY, ("axis", "kind")),
        Op("scan", OpClass.SCAN, 1, ANY, ("axis", "kind")),
        Op("dot", OpClass.DOT, 3, NUMBER),
    )


TRANSCENDENTAL = ("exp", "log", "sin", "cos", "tanh", "erf", "rsqrt")
"""Unary functions whose last place a device may choose (`NumericProfile.ulp`), as for `pow`."""

MATH = (*TRANSCENDENTAL, "sqrt", "recip", "floor", "ceil", "round")

OPS: Mapping[str, Op] = MappingProxyType({op.name: op for op in _rows()})
"""Every operation by name."""

COMBINE: Mapping[str, str] = MappingProxyType(
    {"sum": "add", "prod": "mul", "min": "min", "max": "max"}
)
"""The binary operation behind each kind of `reduce` and `scan`."""

ATOMICS: Mapping[str, str | None] = MappingProxyType(
    {"add": "add", "min": "min", "max": "max", "exchange": None}
)
"""The binary operation behind each kind of `Atomic`; None keeps the new value."""


def _named(*groups: OpClass) -> frozenset[str]:
    return frozenset(op.name for op in OPS.values() if op.group in groups)


LEAVES = _named(OpClass.LEAF)
UNARY = _named(OpClass.UNARY)
BINARY = _named(OpClass.BINARY)
COMPARE = _named(OpClass.COMPARE)
ELEMENTWISE = _named(
    OpClass.UNARY, OpClass.BINARY, OpClass.TERNARY, OpClass.COMPARE, OpClass.SELECT, OpClass.CONVERT
)
