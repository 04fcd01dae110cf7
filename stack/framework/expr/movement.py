"""Operations that move elements and compute nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr.operand import Number, axes, axis, common_dtype, real_axis, text
from stack.framework.expr.public import operator


@operator(shares=True, sizes=True, aten="reshape", onnx="Reshape")
def reshape(x: Node, shape: Sequence[int]) -> Node:
    """x's elements in row-major order under another shape; one -1 stands for what remains."""
    known = math.prod(n for n in shape if n != -1)
    if list(shape).count(-1) == 1 and known and x.type.size % known == 0:
        shape = [x.type.size // known if n == -1 else n for n in shape]
    if min(shape, default=0) < 0 or math.prod(shape) != x.type.size:
        raise TensorError(f"{x.type.size} elements do not fill the shape {list(shape)}")
    return g.reshape(x, tuple(shape))


@operator(shares=True, sizes=True, aten="permute", onnx="Transpose")
def permute(x: Node, dims: Sequence[int]) -> Node:
    """Axis i of the result is axis dims[i] of x."""
    order = [axis(d, len(x.shape)) for d in dims]
    if sorted(order) != list(range(len(x.shape))):
        raise TensorError(f"{list(dims)} is not an order of {len(x.shape)} axes")
    return g.permute(x, order)


@operator(shares=True, aliases=("swapaxes",), aten="transpose")
def transpose(x: Node, dim0: int, dim1: int) -> Node:
    """x with two axes exchanged."""
    rank = len(x.shape)
    i, j = axis(dim0, rank), axis(dim1, rank)
    return g.transpose(x, i, j) if rank else x


@operator(shares=True, aten="t")
def t(x: Node) -> Node:
    """x of at most two axes, transposed."""
    if len(x.shape) > 2:
        raise TensorError(f"t() takes at most 2 axes, got {text(x)}; use transpose(dim0, dim1)")
    return transpose(x, 0, 1) if len(x.shape) == 2 else x


@operator(shares=True, aten="flatten", onnx="Flatten")
def flatten(x: Node, start_dim: int = 0, end_dim: int = -1) -> Node:
    """x with the axes from start_dim to end_dim made one."""
    rank = len(x.shape)
    a, b = axis(start_dim, rank), axis(end_dim, rank)
    if a > b:
        raise TensorError(f"start_dim {start_dim} lies after end_dim {end_dim}")
    return g.reshape(x, (*x.shape[:a], math.prod(x.shape[a : b + 1]), *x.shape[b + 1 :]))


@operator(shares=True, aten="squeeze", onnx="Squeeze")
def squeeze(x: Node, dim: int | Sequence[int] | None = None) -> Node:
    """x without axes of size 1: all of them, or those among `dim`."""
    gone = axes(dim, len(x.shape))
    return g.reshape(x, [n for i, n in enumerate(x.shape) if i not in gone or n != 1])


@operator(shares=True, aten="unsqueeze", onnx="Unsqueeze")
def unsqueeze(x: Node, dim: int) -> Node:
    """x with a new axis of size 1 at `dim`."""
    a = axis(dim, len(x.shape) + 1)
    return g.reshape(x, (*x.shape[:a], 1, *x.shape[a:]))


@operator(shares=True, function=False, sizes=True, aten="expand", onnx="Expand")
def expand(x: Node, shape: Sequence[int]) -> Node:
    """x with axes of size 1 repeated, and new leading axes; -1 keeps an axis."""
    lead = len(shape) - len(x.shape)
    own = (1,) * lead + x.shape
    wanted = [
        o if n == -1 and i >= lead else n for i, (n, o) in enumerate(zip(shape, own, strict=False))
    ]
    if lead < 0 or any(o not in (1, n) or n < 0 for n, o in zip(wanted, own, strict=True)):
        raise TensorError(f"{text(x)} does not expand to {list(shape)}")
    return g.broadcast(x, wanted)


@operator(sizes=True, aten="flip")
def flip(x: Node, dims: int | Sequence[int]) -> Node:
    """x with these axes reversed."""
    return g.flip(x, axes(dims, len(x.shape))) if x.shape and dims != () else x


@operator(method=False, aten="cat", onnx="Concat")
def cat(parts: Sequence[Node], dim: int = 0) -> Node:
    """The parts one after the other along an axis, in their common element type."""
    if not parts:
        raise TensorError("cat needs at least one tensor")
    a = axis(dim, len(parts[0].shape))
    if any(_without(p, a) != _without(parts[0], a) for p in parts) or not parts[0].shape:
        listed = ", ".join(map(text, parts))
        raise TensorError(f"shapes must be equal but on dim {dim}, and have axes: {listed}")
    dtype = common_dtype(*parts)
    return g.concat([g.cast(p, dtype) for p in parts], a)


def _without(x: Node, a: int) -> tuple[int, ...]:
    return (len(x.shape), *x.shape[:a], *x.shape[a + 1 :])


@operator(method=False, aten="stack")
def stack(parts: Sequence[Node], dim: int = 0) -> Node:
    """The parts, all of one shape, one after the other along a new axis."""
    if any(p.shape != parts[0].shape for p in parts):
        raise TensorError(f"shapes must be equal: {', '.join(map(text, parts))}")
    return cat(
        [unsqueeze(p, dim) for p in parts], axis(dim, len(parts[0].shape) + 1) if parts else 0
    )


@operator(shares=True, aten="split", onnx="Split")
def split(x: Node, size: int | Sequence[int], dim: int = 0) -> list[Node]:
    """Pieces of x along an axis: of `size` each (the last may be less), or of the sizes given."""
    a = real_axis(dim, x, "split")
    n = x.shape[a]
    if isinstance(size, int):
        if size < 1:
            raise TensorError(f"a piece has at least 1 element, got {size}")
        size = [min(size, n - i) for i in range(0, n, size)] or [0]
    if sum(size) != n or min(size, default=0) < 0:
        raise TensorError(f"sizes {list(size)} do not add up to {n}, dim {dim} of {text(x)}")
    ends = [sum(size[: i + 1]) for i in range(len(size))]
    return [g.slice_axis(x, a, end - s, end) for s, end in zip(size, ends, strict=True)]


@operator(shares=True, aten="chunk")
def chunk(x: Node, chunks: int, dim: int = 0) -> list[Node]:
    """x in at most `chunks` pieces of one size along an axis; the last may be smaller."""
    if chunks < 1:
        raise TensorError(f"needs at least 1 chunk, got {chunks}")
    return split(x, max(1, -(-x.shape[real_axis(dim, x, "split")] // chunks)), dim)


@operator(function=False, method=False, layer=True, aten="pad", onnx="Pad")
def pad(x: Node, pad: Sequence[int], value: Number = 0) -> Node:
    """x with `value` around it: `pad` is (before, after) of the last axis, then of the one before
    it, ...

    Negative padding cuts off.
    """
    rank = len(x.shape)
    if len(pad) % 2 or len(pad) > 2 * rank:
        raise TensorError(f"padding {list(pad)} must hold a pair for at most {rank} axes")
    pairs = [(0, 0)] * (rank - len(pad) // 2)
    pairs += [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    sizes = zip(x.shape, pairs, strict=True)
    if any(n + min(lo, 0) + min(hi, 0) < 0 for n, (lo, hi) in sizes):
        raise TensorError(f"padding {list(pad)} cuts off more than {text(x)} has")
    start = [max(-lo, 0) for lo, _ in pairs]
    stop = [n - max(-hi, 0) for n, (_, hi) in zip(x.shape, pairs, strict=True)]
    lows, highs = [max(lo, 0) for lo, _ in pairs], [max(hi, 0) for _, hi in pairs]
    return g.pad(g.slice(x, start, stop), lows, highs, value)


@operator(aten="tril", onnx="Trilu")
def tril(x: Node, diagonal: int = 0) -> Node:
    """x with 0 above the diagonal of its last two axes."""
    return e.where(_below(x, diagonal), x, 0)


@operator(aten="triu", onnx="Trilu")
def triu(x: Node, diagonal: int = 0) -> Node:
    """x with 0 below the diagonal of its last two axes."""
    return e.where(g.not_(_below(x, diagonal - 1)), x, 0)


def _below(x: Node, diagonal: int) -> Node:
    """Whether column <= row + diagonal."""
    if len(x.shape) < 2:
        raise TensorError(f"needs at least 2 axes, got {text(x)}")
    return lower(x.shape[-2], x.shape[-1], diagonal)


def lower(rows: int, columns: int, diagonal: int = 0) -> Node:
    """bool[rows, columns]: whether column <= row + diagonal."""
    row = e.add(g.reshape(g.arange(rows), (rows, 1)), diagonal)
    return e.le(g.arange(columns), row)
