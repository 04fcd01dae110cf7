"""Matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.dtypes import wider
from stack.framework.errors import TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr.movement import diagonal
from stack.framework.expr.operand import Number, Operand, axis, broadcast_shape, text
from stack.framework.expr.public import layer, operator
from stack.framework.expr.reduce import norm
from stack.framework.expr.reduce import sum as sum_
from stack.framework.expr.steps import ruled
from stack.framework.modes import autocast_dtype
from stack.framework.store import barrier


@operator(symbol="@", aten="matmul", onnx="MatMul")
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
    if len(right.shape) == 2:
        result = _flat(left, right)
    else:
        batch = broadcast_shape([left.shape[:-2], right.shape[:-2]])
        left, right = (g.broadcast(n, (*batch, *n.shape[-2:])) for n in (left, right))
        result = g.matmul(left, right)
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


def _flat(a: Node, b: Node, dtype: DType | None = None) -> Node:
    """a[..., k] @ b[k, n] as one product of two matrices."""
    if len(a.shape) == 2:
        return g.matmul(a, b, dtype)
    rows = a.type.size // a.shape[-1] if a.shape[-1] else math.prod(a.shape[:-1])
    flat = g.matmul(g.reshape(a, (rows, a.shape[-1])), b, dtype)
    return g.reshape(flat, (*a.shape[:-1], b.shape[-1]))


@operator(function=False, method=False, layer=True, aten="linear", onnx="Gemm")
def linear(x: Node, weight: Node, bias: Node | None = None) -> Node:
    """x @ weight.T + bias; weight is [out, in]. Under autocast the result has its element type."""
    if len(weight.shape) != 2 or not x.shape or x.shape[-1] != weight.shape[1]:
        raise TensorError(f"input {text(x)} does not fit weight {text(weight)}")
    a, b = product_operands(x, weight)
    turned = g.permute(b, (1, 0))
    rows = a if len(a.shape) > 1 else g.reshape(a, (1, *a.shape))
    if bias is None:
        result = _flat(rows, turned)
    else:  # rounded once, after the bias
        total = _flat(rows, turned, a.dtype.computed_in)
        added = g.cast(g.cast(bias, a.dtype), total.dtype)
        result = g.cast(g.add(total, g.broadcast(added, total.shape)), a.dtype)
    return g.reshape(result, (*a.shape[:-1], weight.shape[0]))


# products by other names


@operator(aten="mm", onnx="MatMul")
def mm(x: Node, mat2: Node) -> Node:
    """The product of two matrices."""
    return _of_ranks(x, mat2, 2, 2)


@operator(aten="bmm")
def bmm(x: Node, mat2: Node) -> Node:
    """The products of two batches of matrices."""
    return _of_ranks(x, mat2, 3, 3)


@layer()
def grouped_matmul(x: Node, weight: Node, group: Node) -> Node:
    """x[N, K]'s rows, each times the matrix of its group: row n times weight[group[n]] of
    weight[G, K, M]. [N, M]; a row whose group is out of range gives 0. The work is that of the
    rows and of less than a block more for each group."""
    if len(x.shape) != 2 or len(weight.shape) != 3 or len(group.shape) != 1:
        raise TensorError(
            f"takes [rows, depth], [groups, depth, width] and [rows], not {text(x)}, "
            f"{text(weight)} and {text(group)}"
        )
    if group.dtype.is_float or group.dtype is DType.BOOL:
        raise TensorError(f"groups are integers, not {group.dtype.short}")
    return g.grouped_matmul(*product_operands(x, weight), g.cast(group, DType.I64))


@layer(aten="_grouped_mm")
def grouped_mm(
    mat_a: Node, mat_b: Node, *, offs: Node | None = None, bias: Node | None = None
) -> Node:
    """Products of groups: of mat_a[N, K]'s rows that end at `offs` with mat_b[G, K, M]; of
    mat_a[G, M, K] with mat_b[K, N]'s columns that end there; of mat_a[M, N]'s columns with
    mat_b[N, K]'s rows, [G, M, K]; or of both in batches, without `offs`. What lies behind the last
    end gives 0."""
    a, b = product_operands(mat_a, mat_b)
    ranks = len(a.shape), len(b.shape)
    if ranks == (3, 3) and offs is None:
        found = g.matmul(a, b)
    elif offs is None or set(ranks) not in ({2}, {2, 3}):
        raise TensorError(
            f"takes matrices, or batches of them, and where groups of matrices' rows end: "
            f"{text(mat_a)} and {text(mat_b)} with offs={None if offs is None else text(offs)}"
        )
    elif ranks == (2, 3):
        found = g.grouped_matmul(a, b, _groups(a.shape[0], offs))
    elif ranks == (3, 2):
        turned = g.grouped_matmul(g.transpose(b), g.transpose(a), _groups(b.shape[1], offs))
        found = g.transpose(turned)
    else:
        group = _groups(b.shape[0], offs)
        found = g.grouped_outer(g.transpose(a), b, group, offs.shape[0])
    return found if bias is None else e.add(found, bias)


def _groups(rows: int, ends: Node) -> Node:
    """i64[rows], how many groups end before each row."""
    shape = (rows, ends.shape[0])
    row = g.expand(g.reshape(g.arange(rows), (rows, 1)), shape)
    end = g.expand(g.reshape(g.cast(ends, DType.I64), (1, shape[1])), shape)
    return g.reshape(g.reduce("sum", g.cast(g.le(end, row), DType.I64), (1,)), (rows,))


@operator(aten="mv")
def mv(x: Node, vec: Node) -> Node:
    """The product of a matrix and a vector."""
    return _of_ranks(x, vec, 2, 1)


@operator(aten="dot")
def dot(x: Node, other: Node) -> Node:
    """The sum of the products of two vectors."""
    return _of_ranks(x, other, 1, 1)


@operator(aten="vdot")
def vdot(x: Node, other: Node) -> Node:
    """dot."""
    return _of_ranks(x, other, 1, 1)


def _of_ranks(x: Node, y: Node, a: int, b: int) -> Node:
    if (len(x.shape), len(y.shape)) != (a, b):
        raise TensorError(f"operands have {a} and {b} axes, got {text(x)} and {text(y)}")
    return matmul(x, y)


@operator(aten="inner")
def inner(x: Node, other: Node) -> Node:
    """The sums of products over the last axis of both."""
    if not x.shape or not other.shape:
        return e.mul(x, other)
    return tensordot(x, other, ([-1], [-1]))


@operator(linalg=True, aliases=("ger",), aten="outer")
def outer(x: Node, vec2: Node) -> Node:
    """Each element of a vector times each of another."""
    return e.mul(g.reshape(x, (x.type.size, 1)), vec2)


@operator(aten="kron")
def kron(x: Node, other: Node) -> Node:
    """Each element of x times all of other, in its place."""
    rank = max(len(x.shape), len(other.shape))
    a, b = ((1,) * (rank - len(v.shape)) + v.shape for v in (x, other))
    left = g.reshape(x, [n for size in a for n in (size, 1)])
    right = g.reshape(other, [n for size in b for n in (1, size)])
    return g.reshape(e.mul(left, right), [m * n for m, n in zip(a, b, strict=True)])


def _added(input: Node, product: Node, beta: Number, alpha: Number) -> Node:
    scaled = product if alpha == 1 else e.mul(product, alpha)
    return e.add(e.mul(input, beta), scaled)


@operator(in_place=True, aten="addmm", onnx="Gemm")
def addmm(x: Node, mat1: Node, mat2: Node, *, beta: Number = 1, alpha: Number = 1) -> Node:
    """beta * x + alpha * mat1 @ mat2."""
    product = mm(mat1, mat2)
    wide, dtype = product.dtype.computed_in, wider(x.dtype, product.dtype)
    if not dtype.is_float or wide is product.dtype:
        return _added(x, product, beta, alpha)
    product = g.matmul(*product_operands(mat1, mat2), wide)  # rounded once, as in `linear`
    return g.cast(_added(g.cast(x, wide), product, beta, alpha), dtype)


@operator(in_place=True, aten="addmv")
def addmv(x: Node, mat: Node, vec: Node, *, beta: Number = 1, alpha: Number = 1) -> Node:
    """beta * x + alpha * mat @ vec."""
    return _added(x, mv(mat, vec), beta, alpha)


@operator(in_place=True, aten="addr")
def addr(x: Node, vec1: Node, vec2: Node, *, beta: Number = 1, alpha: Number = 1) -> Node:
    """beta * x + alpha * outer(vec1, vec2)."""
    return _added(x, outer(vec1, vec2), beta, alpha)


@operator(in_place=True, aten="baddbmm")
def baddbmm(x: Node, batch1: Node, batch2: Node, *, beta: Number = 1, alpha: Number = 1) -> Node:
    """beta * x + alpha * batch1 @ batch2."""
    return _added(x, matmul(batch1, batch2), beta, alpha)


@operator(in_place=True, aten="addbmm")
def addbmm(x: Node, batch1: Node, batch2: Node, *, beta: Number = 1, alpha: Number = 1) -> Node:
    """beta * x + alpha * the sum over the batch of batch1 @ batch2."""
    product = matmul(batch1, batch2)
    return _added(x, g.reshape(g.reduce("sum", product, 0), product.shape[1:]), beta, alpha)


@operator(linalg=True, method=False, aten="tensordot")
def tensordot(a: Node, b: Node, dims: Any = 2) -> Node:
    """The sums of products over axes of both: the last of a and first of b, or two lists."""
    if isinstance(dims, int):
        left, right = list(range(len(a.shape) - dims, len(a.shape))), list(range(dims))
    else:
        left, right = (
            [axis(d, len(v.shape)) for d in each] for v, each in zip((a, b), dims, strict=True)
        )
    for i, j in zip(left, right, strict=True):  # an axis of one element goes with any
        if a.shape[i] == 1 != b.shape[j]:
            b = g.reduce("sum", b, j)
        elif b.shape[j] == 1 != a.shape[i]:
            a = g.reduce("sum", a, i)
    if [a.shape[i] for i in left] != [b.shape[i] for i in right]:
        raise TensorError(f"sizes of dims {left} of {text(a)} and {right} of {text(b)} differ")
    rows = [i for i in range(len(a.shape)) if i not in left]
    columns = [i for i in range(len(b.shape)) if i not in right]
    depth = math.prod(a.shape[i] for i in left)
    one = g.reshape(g.permute(a, [*rows, *left]), (math.prod(a.shape[i] for i in rows), depth))
    width = math.prod(b.shape[i] for i in columns)
    two = g.reshape(g.permute(b, [*right, *columns]), (depth, width))
    shape = [*(a.shape[i] for i in rows), *(b.shape[i] for i in columns)]
    return g.reshape(matmul(one, two), shape)


@operator(method=False, aten="einsum", onnx="Einsum")
def einsum(equation: str, *operands: Any) -> Node:
    """The sums of products that an equation such as "bik,bkj->bij" says; an ellipsis stands for
    axes that broadcast. Operands are taken pair by pair from the left."""
    nodes = list(operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple)
                 else operands)  # fmt: skip
    inputs, output = _equation(equation, nodes)
    sizes: dict[str, int] = {}
    for names, x in zip(inputs, nodes, strict=True):
        for name, n in zip(names, x.shape, strict=True):
            if sizes.setdefault(name, n) not in (1, n) and n != 1:
                raise TensorError(f"{equation}: {name} is {sizes[name]} and {n}")
            sizes[name] = max(sizes[name], n) if 0 not in (sizes[name], n) else 0
    if lost := [n for n in output if n not in sizes]:
        raise TensorError(f"{equation!r} gives {lost[0]!r}, which no operand has")
    terms = [_diagonals(list(names), x) for names, x in zip(inputs, nodes, strict=True)]
    have, x = terms[0]
    for place, (own, y) in enumerate(terms[1:], 1):
        later = {n for rest, _ in terms[place + 1 :] for n in rest} | set(output)
        have, x = _pair(have, x, own, y, later, sizes)
    gone = [i for i, n in enumerate(have) if n not in output]
    x = g.reshape(g.reduce("sum", x, gone), [s for i, s in enumerate(x.shape) if i not in gone])
    have = [n for n in have if n in output]
    x = g.permute(x, [have.index(n) for n in output])
    return g.expand(x, [sizes[n] for n in output])


def _equation(equation: str, nodes: Sequence[Node]) -> tuple[list[str], str]:
    """The names of the operands' axes and of the result's; those of ellipses are digits."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    given = left.split(",")
    if len(given) != len(nodes):
        raise TensorError(f"{equation!r} is of {len(given)} operands, got {len(nodes)}")
    inputs, most = [], 0
    for names, x in zip(given, nodes, strict=True):
        free = len(x.shape) - len(names.replace("...", ""))
        if free < 0 or (free and "..." not in names):
            raise TensorError(f"{names!r} of {equation!r} does not fit {text(x)}")
        most = max(most, free)
        inputs.append(names.replace("...", "".join(chr(0x2460 + i) for i in range(free))[::-1]))
    dots = "".join(chr(0x2460 + i) for i in range(most))[::-1]
    if arrow:
        return inputs, right.replace("...", dots)
    every = "".join(inputs)
    once = sorted(n for n in set(every) if every.count(n) == 1 and n not in dots)
    return inputs, dots + "".join(once)


def _diagonals(names: list[str], x: Node) -> tuple[list[str], Node]:
    """x with one axis for each name: of equal names the diagonal."""
    for name in dict.fromkeys(names):
        while names.count(name) > 1:
            a = names.index(name)
            b = names.index(name, a + 1)
            x = diagonal(x, 0, a, b)
            names = [n for i, n in enumerate(names) if i not in (a, b)] + [name]
    return names, x


def _pair(
    have: list[str], x: Node, names: list[str], y: Node, later: set[str], sizes: dict[str, int]
) -> tuple[list[str], Node]:
    """The product of two operands, summed over the names that nothing needs later."""
    x = g.expand(x, [sizes[n] for n in have])
    y = g.expand(y, [sizes[n] for n in names])
    shared = [n for n in have if n in names]
    batch = [n for n in shared if n in later]
    depth = [n for n in shared if n not in later]
    rows, columns = [n for n in have if n not in shared], [n for n in names if n not in shared]

    def sides(v: Node, own: Sequence[str], *groups: Sequence[str]) -> Node:
        order = [own.index(n) for group in groups for n in group]
        merged = [math.prod(sizes[n] for n in k) for k in groups[1:]]
        return g.reshape(g.permute(v, order), [*(sizes[n] for n in groups[0]), *merged])

    product = matmul(sides(x, have, batch, rows, depth), sides(y, names, batch, depth, columns))
    result = [*batch, *rows, *columns]
    return result, g.reshape(product, [sizes[n] for n in result])


@layer(aten="bilinear")
def bilinear(input1: Node, input2: Node, weight: Node, bias: Node | None = None) -> Node:
    """y[..., o] = input1[..., i] * weight[o, i, j] * input2[..., j], plus bias."""
    y = einsum("...i,oij,...j->...o", input1, weight, input2)
    return y if bias is None else e.add(y, bias)


BY_PRODUCT = 25
"""Rows of either side beyond which Euclidean distances come from a product where nothing else is
asked for: PyTorch's number."""

_IF_MANY = "use_mm_for_euclid_dist_if_necessary"
CDIST_MODES = (_IF_MANY, "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")


@operator(method=False, aten="cdist")
def cdist(x1: Node, x2: Node, p: float = 2.0, compute_mode: str | None = _IF_MANY) -> Node:
    """The p-norms of the differences of all rows of both. Euclidean ones of more than 25 rows come
    from a product, as PyTorch's do: rows that are near each other beside their size have distances
    of few digits. `compute_mode` "donot_use_mm_for_euclid_dist" takes differences."""
    mode = compute_mode or _IF_MANY
    if mode not in CDIST_MODES:
        raise TensorError(f"compute_mode is one of {', '.join(CDIST_MODES)}, got {compute_mode!r}")
    many = max(x1.shape[-2], x2.shape[-2]) > BY_PRODUCT
    dtype = wider(x1.dtype, x2.dtype)
    exact = p != 2 or dtype not in (DType.F32, DType.F64) or not x1.shape[-1]
    if not exact and (mode == CDIST_MODES[1] or (mode == _IF_MANY and many)):
        batch = broadcast_shape([x1.shape[:-2], x2.shape[:-2]])
        a, b = (g.broadcast(g.cast(x, dtype), (*batch, *x.shape[-2:])) for x in (x1, x2))
        return ruled(_distances(barrier(a), barrier(b)), [a, b], partial(_distances_slope, a, b))
    a = g.reshape(x1, (*x1.shape[:-1], 1, x1.shape[-1]))
    b = g.reshape(x2, (*x2.shape[:-2], 1, *x2.shape[-2:]))
    return norm(e.sub(a, b), p, -1)


def _distances(a: Node, b: Node) -> Node:
    """By (a - b)**2 = a**2 + b**2 - 2 a b."""
    size_a, size_b = (sum_(e.square(x), -1, keepdim=True) for x in (a, b))
    both = e.add(size_a, g.transpose(size_b))
    square = e.sub(both, e.mul(g.matmul(a, g.transpose(b)), 2.0))
    return g.sqrt(e.where(e.lt(square, 0), 0.0, square))


def _distances_slope(a: Node, b: Node, value: Node, d: Node) -> list[Node]:
    """That of equal rows is 0."""
    is_zero = e.eq(value, 0)
    ratio = e.where(is_zero, 0.0, e.div(d, e.where(is_zero, 1.0, value)))
    turned = g.transpose(ratio)
    return [
        e.sub(e.mul(x, sum_(by, -1, keepdim=True)), g.matmul(by, y))
        for x, y, by in ((a, b, ratio), (b, a, turned))
    ]


@layer(aten="pdist")
def pdist(input: Node, p: float = 2.0) -> Node:
    """The p-norms of the differences of all pairs of rows, each once."""
    n = input.shape[0]
    count = n * (n - 1) // 2
    if not count:
        return g.full((0,), 0, input.dtype)
    row, pair = g.arange(n), g.arange(count)
    ends = e.floor_divide(e.mul(e.add(row, 1), e.sub(2 * n - 2, row)), 2)
    passed = e.le(ends, g.reshape(pair, (count, 1)))
    first = sum_(g.cast(passed, DType.I64), -1)
    begin = e.floor_divide(e.mul(first, e.sub(2 * n - 1, first)), 2)
    second = e.add(e.add(e.sub(pair, begin), first), 1)
    return norm(g.sub(g.gather(input, first, 0), g.gather(input, second, 0)), p, 1)


@operator(aten="dist")
def dist(x: Node, other: Node, p: float = 2.0) -> Node:
    """The p-norm of x - other."""
    return norm(e.sub(x, other), p)
