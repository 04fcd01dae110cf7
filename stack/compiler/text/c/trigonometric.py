"""Sines and cosines of tiles: written out, so that loops over them become vector code, and by the
language's functions for the few arguments that are too large for that."""

from __future__ import annotations

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack.compiler.text.c import arith
from stack.compiler.text.c.nest import LoopNest
from stack.compiler.text.c.scope import PrivateArray, Scope
from stack.compiler.text.c.types import literal
from stack.compiler.text.math import FUNCTIONS, TRIGONOMETRIC_LIMIT


def trigonometric(scope: Scope, n: Node) -> PrivateArray:
    """The tile in an array."""
    array = scope.declare(n.type)
    if n.dtype is DType.F64:
        _by_function(scope, n, array, "")
        return array
    far = scope.declare(n.type.with_dtype(DType.I32).with_shape(()))
    scope.out.do(f"{far.name} = 0;")
    (x,) = n.srcs
    nest = LoopNest(scope, n.shape)
    value = nest.element(FUNCTIONS[n.op](x), nest.position)
    size = scope.out.functions.exact("fabs", DType.F32, nest.element(x, nest.position))
    nest.do(f"{far.name} |= {_is_far(size)};")
    nest.do(f"{array.at(nest.position)} = {value};")
    nest.emit()
    with scope.out.block(f"if ({far.name})"):
        _by_function(scope.inner(), n, array, "fabs")
    return array


def _is_far(size: str) -> str:
    """Whether an argument of a size, perhaps NaN, is too large."""
    return f"!({size} <= {literal(DType.F32, TRIGONOMETRIC_LIMIT)})"


def _by_function(scope: Scope, n: Node, array: PrivateArray, size: str) -> None:
    """Compute all elements, or where `size` names a function those that are far."""
    nest, out = LoopNest(scope, n.shape), scope.out
    x = nest.element(n.srcs[0], nest.position)
    value = arith.elementwise(out, n, [x])
    far = f"if ({_is_far(out.functions.exact(size, n.dtype, x))}) " if size else ""
    nest.do(f"{far}{array.at(nest.position)} = {value};")
    nest.emit()
