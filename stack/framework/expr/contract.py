"""Matrix products."""

from __future__ import annotations

import math

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.dtypes import wider
from stack.framework.errors import TensorError
from stack.framework.expr.operand import Operand, broadcast_shape, text
from stack.framework.expr.public import operator
from stack.framework.mode import autocast_dtype


@operator(aliases=("mm", "bmm"), symbol="@", aten="matmul", onnx="MatMul")
def matmul(x: Operand, y: Operand) -> Node:
    """x @ y: vectors, matrices, and batches of matrices that broadcast. Under autocast in its
    element type."""
    if not (isinstance(x, Node) and isinstance(y, Node) and x.shape and y.shape):
        raise TensorError(f"needs at least 1 axis on both sides: {text(x)} @ {text(y)}")
    a, b = product_operands(x, y)
    left = a if len(a.shape) > 1 else g.reshape(a, (1, *a.shape))
    right = b if len(b.shape) > 1 else g.reshape(b, (*b.shape, 1))
    if left.shape[-1] != right.shape[-2]:
        raise TensorError(f"inner sizes differ: {text(x)} @ {text(y)}")
    result = _flat(left, right) if len(right.shape) == 2 else _batched(left, right)
    rows = result.shape[-2:-1] if len(a.shape) > 1 else ()
    columns = result.shape[-1:] if len(b.shape) > 1 else ()
    return g.reshape(result, (*result.shape[:-2], *rows, *columns))


def product_operands(x: Node, y: Node) -> tuple[Node, Node]:
    """Both in one element type: autocast's for floats when it is on."""
    dtype = wider(x.dtype, y.dtype)
    cast = autocast_dtype()
    if cast is not None and dtype.is_float and dtype is not DType.F64:
        dtype = cast
    return g.cast(x, dtype), g.cast(y, dtype)


def _flat(a: Node, b: Node) -> Node:
    """a[..., k] @ b[k, n] as one product of two matrices."""
    if len(a.shape) == 2:
        return g.matmul(a, b)
    rows = a.type.size // a.shape[-1] if a.shape[-1] else math.prod(a.shape[:-1])
    return g.reshape(g.matmul(g.reshape(a, (rows, a.shape[-1])), b), (*a.shape[:-1], b.shape[-1]))


def _batched(a: Node, b: Node) -> Node:
    batch = broadcast_shape([a.shape[:-2], b.shape[:-2]])
    return g.matmul(
        g.broadcast(a, (*batch, *a.shape[-2:])), g.broadcast(b, (*batch, *b.shape[-2:]))
    )


@operator(function=False, method=False, layer=True, aten="linear", onnx="Gemm")
def linear(x: Node, weight: Node, bias: Node | None = None) -> Node:
    """x @ weight.T + bias; weight is [out, in]. Under autocast the result has its element type."""
    if len(weight.shape) != 2 or not x.shape or x.shape[-1] != weight.shape[1]:
        raise TensorError(f"input {text(x)} does not fit weight {text(weight)}")
    a, b = product_operands(x, weight)
    result = _flat(a, g.permute(b, (1, 0))) if len(a.shape) > 1 else matmul(b, a)
    if bias is None:
        return result
    return g.add(result, g.broadcast(g.cast(bias, result.dtype), result.shape))
