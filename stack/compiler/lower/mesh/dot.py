"""Products of tiles that lie in the scratchpad, by the inner kernel with sums in registers."""

from __future__ import annotations

from functools import partial

from hal.tile.node import Node
from stack.compiler.lower.mesh.kernel import SumTile, define_multiply
from stack.compiler.text.c import control
from stack.compiler.text.c.contraction import LOOPS
from stack.compiler.text.c.scope import PrivateArray, Rule, Scope


def rule(vector_nbytes: int) -> Rule:
    """What computes `dot`, on cores whose vectors have so many bytes."""
    return partial(_dot, vector_nbytes)


def tile_of(x: Node) -> Node:
    """The tile that a product's operand is, but for how it lies and for becoming wide."""
    while x.op == "transpose" or is_widened(x):
        x = x.srcs[0]
    return x


def is_widened(x: Node) -> bool:
    """Whether a tile is what a narrow one equals in the type that it is computed in."""
    return x.op == "cast" and x.srcs[0].dtype.is_narrow


def _dot(vector_nbytes: int, scope: Scope, n: Node) -> PrivateArray:
    a, b, acc = n.srcs
    if n.shape[1] % 4:
        return LOOPS["dot"](scope, n)
    rows, columns = n.shape
    depth = a.shape[1]
    turned = a.op == "transpose"
    left = _array(scope, a.srcs[0] if turned else a)
    right = _array(scope, b)
    total = control.copied(scope, acc)
    kinds = {tile_of(x).dtype for x in (a, b)}
    sums = SumTile(rows, columns, n.dtype, kinds.pop() if len(kinds) == 1 else n.dtype)
    name = f"hal_dot_{rows}_{columns}_{n.dtype.short}_{sums.multiplied.short}"
    define_multiply(scope.out, name, sums, vector_nbytes)
    down, along = (1, rows) if turned else (depth, 1)
    scope.out.do(
        f"{name}({total.name}, {left.name}, {down}, {along}, {right.name}, "
        f"{columns}, {rows}, {columns}, {depth});"
    )
    return total


def _array(scope: Scope, n: Node) -> PrivateArray:
    """A tile row by row in an array."""
    found = scope.arrays.get(n)
    if found is not None and found.find is None and found.shape == n.shape:
        return found
    if n.op in scope.loops and n not in scope.arrays:
        scope.arrays[n] = scope.loops[n.op](scope, n)
        return scope.arrays[n]
    return control.copied(scope, n)
