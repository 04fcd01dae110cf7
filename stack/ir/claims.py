"""Which element types each operation takes: the one definition behind type rules, records and
tests."""

from __future__ import annotations

from collections.abc import Mapping

from hal.core.dtypes import DType

FLOATS = frozenset(d for d in DType if d.is_float)
INTS = frozenset(d for d in DType if d.is_int)
SIGNED = frozenset(d for d in DType if d.kind == "i")
HALVES = frozenset({DType.F16, DType.BF16})
NUMBERS = FLOATS | INTS
BITS = INTS | {DType.BOOL}
ALL = frozenset(DType)
INDEX = frozenset({DType.I32, DType.I64})
PRODUCT = FLOATS | INDEX

LEAVES = ("input", "const", "arange")
FLOAT_UNARY = (
    *("exp", "log", "sin", "cos", "tanh", "erf", "sqrt", "rsqrt", "recip"),
    *("floor", "ceil", "round"),
)
ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod", "min", "max")
COMPARISONS = ("eq", "ne", "lt", "le")
MOVEMENT = (
    *("reshape", "permute", "expand", "slice", "flip", "pad", "window", "concat"),
    "contiguous",
)
KINDS = ("sum", "prod", "min", "max")


def _claims() -> dict[str, frozenset[DType]]:
    claims = dict.fromkeys(("neg", "abs", *ARITHMETIC, "lt", "le"), NUMBERS)
    claims |= dict.fromkeys((*FLOAT_UNARY, "div", "pow"), FLOATS)
    claims |= dict.fromkeys(("and", "or", "xor", "not"), BITS)
    claims |= dict.fromkeys(("shl", "shr"), INTS)
    claims |= dict.fromkeys(("input", "const", "eq", "ne", "where", "cast", *MOVEMENT), ALL)
    claims |= {"reduce": ALL}
    claims |= dict.fromkeys(
        ("arange", "argmax", "argmin", "scan", "scatter_add", "overlap_add", "all_reduce"), NUMBERS
    )
    claims |= {
        "bitcast": NUMBERS,
        "philox": frozenset({DType.U64}),
        "matmul": PRODUCT,
        "gather": ALL,
    }
    return claims


CLAIMS: Mapping[str, frozenset[DType]] = _claims()
"""The element types of the data operands (not of where's condition, nor of an index) of every graph
operation."""
