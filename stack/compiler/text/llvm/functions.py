"""Rules for functions whose definitions do not reach everywhere: the C library is called there."""

from __future__ import annotations

from collections.abc import Mapping

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack.compiler.text.llvm.tiles import Rule, TileValues
from stack.compiler.text.llvm.turned import resized
from stack.compiler.text.llvm.types import constant, splat_constant, vector
from stack.compiler.text.math import FUNCTIONS, TRIGONOMETRIC_LIMIT
from stack.compiler.text.primitive import SCALE


def _library(t: TileValues, n: Node, row: int, piece: int) -> str:
    """One call of the C library for each lane."""
    scalar, width = t.register(n, piece)
    kind = vector(scalar, width)
    argument, value = t.piece(n.srcs[0], row, piece), "poison"
    name = n.op if n.dtype is DType.F64 else f"{n.op}f"
    for lane in range(width):
        one = argument
        if width > 1:
            one = t.out.put(f"extractelement {kind} {argument}, i64 {lane}")
        result = t.out.call(name, scalar, (scalar, one))
        if width == 1:
            return result
        value = t.out.put(f"insertelement {kind} {value}, {scalar} {result}, i64 {lane}")
    return value


def _trigonometric(t: TileValues, n: Node, row: int, piece: int) -> str:
    """The definition; the library where an argument is too large for it, which is rare."""
    if n.dtype is DType.F64:
        return _function(t, n, row, piece)
    scalar, width = t.register(n, piece)
    kind, mask = vector(scalar, width), vector("i1", width)
    near = t.piece(FUNCTIONS[n.op](*n.srcs), row, piece)
    size = t.out.elementwise("fabs", scalar, width, t.piece(n.srcs[0], row, piece))
    limit = splat_constant(scalar, constant(n.dtype, TRIGONOMETRIC_LIMIT), width)
    large = t.out.put(f"fcmp ogt {kind} {size}, {limit}")
    if width > 1:
        large = t.out.put(f"bitcast {mask} {large} to i{width}")
        large = t.out.put(f"icmp ne i{width} {large}, 0")
    before, far, after = t.out.block, t.out.label("far"), t.out.label("near")
    t.out.branch(large, far, after)
    t.out.begin(far)
    called = _library(t, n, row, piece)
    t.out.jump(after)
    t.out.begin(after)
    return t.out.put(f"phi {kind} [{near}, %{before}], [{called}, %{far}]")


def _function(t: TileValues, n: Node, row: int, piece: int) -> str:
    """Each step of the definition for itself; of f64 an instruction, or what has none a call."""
    simpler = t.definition(n)
    if simpler is not None:
        return t.piece(simpler, row, piece)
    if n.op == "erf":
        return _library(t, n, row, piece)
    scalar, width = t.register(n, piece)
    return t.out.elementwise(n.op, scalar, width, *(t.piece(s, row, piece) for s in n.srcs))


def _scale(t: TileValues, n: Node, row: int, piece: int) -> str:
    """The device's function, which takes a whole register: lanes beyond a piece are not used."""
    scalar, width = t.register(n, piece)
    function, lanes = t.scale
    kind = vector(scalar, lanes)
    x, power = (resized(t, scalar, t.piece(s, row, piece), width, lanes) for s in n.srcs)
    every = (f"i{lanes}", "-1")
    found = t.out.call(function, kind, (kind, x), (kind, power), (kind, x), every, ("i32", "4"))
    return resized(t, scalar, found, lanes, width)


PIECES: Mapping[str, Rule] = {
    **dict.fromkeys(FUNCTIONS, _function),
    **dict.fromkeys(("sin", "cos"), _trigonometric),
    SCALE: _scale,
}
"""Rules of pieces."""
