"""What operations mean, as tile expressions over what every machine has.

Primitive are the arithmetic of f32, f64 and of whole numbers that wrap, comparisons, `where`, and
conversions; `div` and `rem` of whole numbers only where the divisor is never 0 nor -1, shifts only
by less than the width, casts of floats to integers only of what the integer type holds. Everything
else has a definition here, whose interpreted value is that of the operation bit by bit. Writers of
text print what is primitive and know no other meaning.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping

from hal.core.dtypes import DType
from hal.tile.build import add, binary, bitcast, cast, const, mul, sub, unary, where
from hal.tile.kernel import Kernel
from hal.tile.node import Node, node, rebuild
from hal.tile.numeric import bounds, constant, quiet
from hal.tile.ops import BINARY, COMPARE, UNARY
from hal.tile.walk import map_nodes
from stack.compiler.text.math import FUNCTIONS, erf_and_one, scaled_exp

SATURATION = "saturation"
"""A format that has it prints every cast of a float to an integer."""

HALVES = "halves"
"""A format that has it prints casts between f16 and f32."""

EXTREMES = "extremes"
"""A format that has it prints the minimum and the maximum of floats, NaN where one is."""

SCALE = "scale"
"""A format that has it prints `scale`, which no kernel has: a float of 32 bits times 2 to the power
of another, which is whole, rounded once."""


def definition(n: Node, has: Collection[str] = ()) -> Node | None:
    """The value of a node by simpler operations; None for what is primitive to a format that `has`
    these operations beside what every machine has."""
    if n.op == "exp" and n.dtype is DType.F32 and SCALE in has:
        return scaled_exp(*n.srcs)
    if is_written_out(n, has):
        return FUNCTIONS[n.op](*n.srcs)
    rule = _RULES.get(n.op)
    return None if rule is None else rule(n, has)


def is_written_out(n: Node, has: Collection[str] = ()) -> bool:
    """Whether a node is a function that the format has not. Functions of f64 are those of the
    machine's library, but for the one that two operations make."""
    if n.op not in FUNCTIONS or n.op in has:
        return False
    return n.dtype is not DType.F64 or n.op == "rsqrt"


# narrow floats


def computed_in(kernel: Kernel, kept: Callable[[Node], bool] = lambda _: False) -> Kernel:
    """The kernel with every operation on a narrow float done in the type that it is computed in,
    between casts: what remains of narrow floats are moves, choices, casts from and to that
    type, and the products that are `kept`. erf(x) + 1 of f32 is one function."""
    done: dict[Node, Node] = {}

    def change(root: Node) -> Node:
        stack = [root]
        while stack:
            n = stack[-1]
            left = [s for s in n.srcs if s not in done] if n not in done else ()
            if left:
                stack += left
                continue
            stack.pop()
            if n not in done:
                same = rebuild(n, tuple([done[s] for s in n.srcs]))
                done[n] = same if n.op == "dot" and kept(same) else _joined(computed(same))
        return done[root]

    return map_nodes(kernel, change)


def _joined(n: Node) -> Node:
    """erf(x) + 1 of f32, which takes less than the two operations; all else as it is."""
    if n.op == "add" and n.dtype is DType.F32:
        for x, one in (n.srcs, n.srcs[::-1]):
            number = one.srcs[0] if one.op == "broadcast" else one
            if x.op == "erf" and number.op == "const" and number["value"] == 1:
                return erf_and_one(x.srcs[0])
    return n


def computed(n: Node) -> Node:
    """An operation with its narrow operands cast to the type in which it is done, and its result
    rounded once."""
    if n.op == "cast":
        return _between(n)
    if n.op == "dot":
        a, b, acc = (cast(x, n.dtype.computed_in) for x in n.srcs)
        return cast(node("dot", acc.type, (a, b, acc)), n.dtype)
    dtype = n.srcs[0].type.dtype if n.srcs else n.type.dtype
    if not dtype.is_narrow or n.op not in _ARITHMETIC:
        return n
    if n.op in _SIGNS:
        return _SIGNS[n.op](n)
    if n.op in ("min", "max"):
        return _extreme(n, ()) or n
    operands = tuple(cast(x, dtype.computed_in) for x in n.srcs)
    if n.op in COMPARE:
        return node(n.op, n.type, operands)
    found = node(n.op, n.type.with_dtype(dtype.computed_in), operands, **dict(n.attrs))
    if n.op in _KEPT and dtype.exponent == found.dtype.exponent:
        word = binary("shr", bitcast(found, DType.U32), 32 - dtype.bits)
        return bitcast(cast(word, _WORDS[dtype.bits]), dtype)
    return cast(found, n.dtype)


_KEPT = frozenset({"floor", "ceil", "round"})
"""What a narrow float holds without being rounded: its upper bits, where exponents are alike."""
_ARITHMETIC = UNARY | BINARY | COMPARE | {"fma", "reduce", "scan", "arange"}


def _between(n: Node) -> Node:
    """A cast by way of the types in which the two are computed."""
    (x,) = n.srcs
    return cast(cast(cast(x, x.dtype.computed_in), n.dtype.computed_in), n.dtype)


def _signed(op: str, mask: Callable[[int], int]) -> Callable[[Node], Node]:
    """A change of the sign bit alone."""

    def change(n: Node) -> Node:
        word = _WORDS[n.dtype.bits]
        return bitcast(binary(op, bitcast(n.srcs[0], word), mask(n.dtype.bits - 1)), n.dtype)

    return change


_SIGNS = {
    "neg": _signed("xor", lambda bit: 1 << bit),
    "abs": _signed("and", lambda bit: (1 << bit) - 1),
}

_WORDS = {8: DType.U8, 16: DType.U16, 32: DType.U32, 64: DType.U64}
_SINGLE = 23
"""Bits of an f32's significand."""
_INFINITY = 0x7F800000


def _bits(value: float) -> int:
    """The bits of an f32."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def _widened(x: Node) -> Node:
    """The f32 that a narrow float equals."""
    d = x.dtype
    word = cast(bitcast(x, _WORDS[d.bits]), DType.U32)
    if d.exponent == DType.F32.exponent:
        return bitcast(binary("shl", word, 32 - d.bits), DType.F32)
    magnitude = binary("and", word, (1 << d.bits - 1) - 1)
    shifted = binary("shl", magnitude, _SINGLE - d.mantissa)
    usual = add(shifted, DType.F32.bias - d.bias << _SINGLE)
    if d.finite_only:
        nan = binary("eq", magnitude, (1 << d.bits - 1) - 1)
        usual = where(nan, _INFINITY | 1 << _SINGLE - 1, usual)
    else:
        infinite = binary("lt", magnitude, (1 << d.exponent) - 1 << d.mantissa)
        usual = where(infinite, usual, binary("or", shifted, _INFINITY))
    steps = cast(bitcast(magnitude, DType.I32), DType.F32)
    tiny = bitcast(mul(steps, 2.0 ** (1 - d.bias - d.mantissa)), DType.U32)
    value = where(binary("lt", magnitude, 1 << d.mantissa), tiny, usual)
    sign = binary("shl", binary("and", word, 1 << d.bits - 1), 32 - d.bits)
    return bitcast(binary("or", value, sign), DType.F32)


def _narrowed(x: Node, d: DType) -> Node:
    """An f32 rounded to a narrow float, to nearest even."""
    bits = bitcast(x, DType.U32)
    drop = _SINGLE - d.mantissa
    if d.exponent == DType.F32.exponent:
        quiet = where(binary("ne", x, x), _INFINITY | 1 << _SINGLE - 1, const(0, DType.U32))
        found = binary("shr", binary("or", _rounded(bits, drop, 0), quiet), drop)
        return bitcast(cast(found, _WORDS[d.bits]), d)
    sign = binary("and", bits, 1 << 31)
    size = binary("xor", bits, sign)
    usual = binary("shr", _rounded(size, drop, d.bias - DType.F32.bias), drop)
    # To add a number whose last place is the smallest step rounds to such steps.
    rounder = 2.0 ** (1 - d.bias + drop)
    tiny = sub(bitcast(add(bitcast(size, DType.F32), rounder), DType.U32), _bits(rounder))
    found = where(binary("lt", size, 1 - d.bias + DType.F32.bias << _SINGLE), tiny, usual)
    found = binary("or", _beyond(size, found, d), binary("shr", sign, 32 - d.bits))
    return bitcast(cast(found, _WORDS[d.bits]), d)


def _rounded(size: Node, drop: int, bias: int) -> Node:
    """A significand of which the last bits are to be dropped, and an exponent with another bias."""
    odd = binary("and", binary("shr", size, drop), 1)
    return add(add(size, ((1 << drop - 1) - 1 + (bias << _SINGLE)) % 2**32), odd)


def _beyond(size: Node, found: Node, d: DType) -> Node:
    """The code of what is too large for a type, and of NaN."""
    if d.finite_only:
        # Half a step beyond the largest number is a tie, and that number is even.
        limit = d.largest * (1 + 2.0**-d.mantissa / (4 - 4 * 2.0**-d.mantissa))
        return where(binary("lt", _bits(limit), size), (1 << d.bits - 1) - 1, found)
    infinity = (1 << d.exponent) - 1 << d.mantissa
    limit = 2.0 ** (d.bias + 1)
    found = where(binary("lt", size, _bits(limit)), found, infinity)
    return where(binary("lt", _INFINITY, size), infinity | 1 << d.mantissa - 1, found)


# numbers


def _extreme(n: Node, has: Collection[str]) -> Node | None:
    """min or max. A machine's takes the second operand where one is NaN, so that only the first
    needs care; a constant goes there."""
    a, b = n.srcs
    if n.dtype is DType.BOOL:
        return binary({"min": "and", "max": "or"}[n.op], a, b)
    if not n.dtype.is_float:
        return None
    if _is_number(b):
        a, b = b, a
    wide = [cast(x, n.dtype.computed_in) for x in (a, b)]
    first = binary("lt", *(wide if n.op == "min" else wide[::-1]))
    found = where(first, a, b)
    if _is_number(a):
        return found
    is_wide = n.dtype is wide[0].dtype
    if EXTREMES in has and is_wide:
        return None
    # Of scalars LLVM makes branches where both choices are of one value, and of data they are
    # foretold by nothing; a sum is NaN, too.
    nan = binary("add", a, a) if is_wide and not n.shape else a
    return where(binary("ne", wide[0], wide[0]), nan, found)


def _constant(x: Node) -> float | None:
    """The value of a constant, also of one that is repeated."""
    while x.op in ("broadcast", "reshape"):
        x = x.srcs[0]
    value: float | None = x["value"] if x.op == "const" else None
    return value


def _is_number(x: Node) -> bool:
    """Whether x is known not to be NaN."""
    value = _constant(x)
    if value is None:
        return False
    with quiet():
        return bool(constant(value, x.dtype) == constant(value, x.dtype))


def _divide(n: Node, has: Collection[str]) -> Node | None:
    """Divisors 0, and -1, whose quotient may overflow, become 1; then the quotient is mended."""
    a, b = n.srcs
    known = _constant(b)
    is_safe = b.op == "where" and b is _safe(b.srcs[2]) if known is None else known not in (0, -1)
    if n.dtype.is_float or is_safe:
        return None
    found = binary(n.op, a, _safe(b))
    if n.op == "rem":
        return found
    if n.dtype.kind == "i":
        found = where(binary("eq", b, -1), unary("neg", a), found)
    return where(binary("eq", b, 0), 0, found)


def _safe(b: Node) -> Node:
    """A divisor, 1 in place of one that is not safe."""
    odd = binary("eq", b, 0)
    if b.dtype.kind == "i":
        odd = binary("or", odd, binary("eq", b, -1))
    return where(odd, 1, b)


def _shift(n: Node, has: Collection[str]) -> Node | None:
    a, b = n.srcs
    last = n.dtype.bits - 1
    known = _constant(b)
    if known is not None and 0 <= known <= last:
        return None
    if b.op == "where" and b in (_within(b.srcs[1], 0), _within(b.srcs[1], last)):
        return None
    if n.op == "shr" and n.dtype.kind == "i":
        return binary("shr", a, _within(b, last))
    return where(_is_inside(b), binary(n.op, a, _within(b, 0)), 0)


def _is_inside(amount: Node) -> Node:
    """Whether an amount, read as unsigned, is less than the width."""
    bits = amount.dtype.bits
    return binary("lt", bitcast(amount, _WORDS[bits]), bits)


def _within(amount: Node, other: int) -> Node:
    """An amount that is less than the width, or the other."""
    return where(_is_inside(amount), amount, other)


def _cast(n: Node, has: Collection[str]) -> Node | None:
    (x,) = n.srcs
    source, target = x.dtype, n.dtype
    if source is target:
        return x
    if source.is_narrow or target.is_narrow:
        if {source, target} == {DType.F16, DType.F32} and HALVES in has:
            return None
        if source is target.computed_in and source is DType.F32:
            return _narrowed(x, target)
        if target is source.computed_in and target is DType.F32:
            return _widened(x)
        return _between(n)
    if target is DType.BOOL:
        return binary("ne", x, 0)
    if source.is_float and target.is_int and SATURATION not in has:
        # the ends of the type for what lies outside, 0 for NaN
        inner = x.srcs[1] if x.op == "where" else x
        if inner is not x and inner.op == "where" and x is _held(inner.srcs[1], target):
            return None
        _, high = bounds(target)
        return where(binary("le", float(high + 1), x), high, cast(_held(x, target), target))
    return None


def _held(x: Node, target: DType) -> Node:
    """A float that an integer type holds when truncated: the least one for what is less, and 0 for
    what is greater and for NaN."""
    low, high = bounds(target)
    x = where(binary("lt", x, float(high + 1)), x, 0.0)
    return where(binary("lt", float(low), x), x, float(low))


def _abs(n: Node, has: Collection[str]) -> Node | None:
    (x,) = n.srcs
    if n.dtype.is_float:
        return None
    return where(binary("lt", x, 0), unary("neg", x), x) if n.dtype.kind == "i" else x


_RULES: Mapping[str, Callable[[Node, Collection[str]], Node | None]] = {
    "min": _extreme,
    "max": _extreme,
    "div": _divide,
    "rem": _divide,
    "shl": _shift,
    "shr": _shift,
    "abs": _abs,
    "recip": lambda n, has: binary("div", const(1.0, n.dtype, n.shape), n.srcs[0]),
    "fma": lambda n, has: None if n.dtype.is_float else add(mul(*n.srcs[:2]), n.srcs[2]),
    "cast": _cast,
}

DEFINED = frozenset({*_RULES, *FUNCTIONS})
"""The operations that may have a definition."""
