"""Operations that move elements and compute nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import RangeError, TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr.operand import (
    Number,
    axes,
    axis,
    broadcast_shape,
    common_dtype,
    real_axis,
    text,
)
from stack.framework.expr.public import layer, operator
from stack.framework.expr.windows import each, windowed


@operator(shares=True, sizes=True, aten="reshape", onnx="Reshape")
def reshape(x: Node, shape: Sequence[int]) -> Node:
    """x's elements in row-major order under another shape; one -1 stands for what remains."""
    known = math.prod(n for n in shape if n != -1)
    if list(shape).count(-1) == 1 and known and x.type.size % known == 0:
        shape = [x.type.size // known if n == -1 else n for n in shape]
    if any(n < 0 for n in shape) or math.prod(shape) != x.type.size:
        raise TensorError(f"{x.type.size} elements do not fill the shape {list(shape)}")
    return g.reshape(x, tuple(shape))


@operator(shares=True, sizes=True, aten="permute", onnx="Transpose")
def permute(x: Node, dims: Sequence[int]) -> Node:
    """Axis i of the result is axis dims[i] of x."""
    order = [axis(d, len(x.shape)) for d in dims]
    if sorted(order) != list(range(len(x.shape))):
        raise TensorError(f"{list(dims)} is not an order of {len(x.shape)} axes")
    return g.permute(x, order)


_UNSIGNED = {8: DType.U8, 16: DType.U16, 32: DType.U32, 64: DType.U64}


def read_as(x: Node, dtype: DType) -> Node:
    """x's bits, in the order of memory, as another element type: the last axis grows or shrinks by
    the quotient of the widths."""
    if x.dtype is dtype:
        return x
    source = g.cast(x, DType.U8) if x.dtype is DType.BOOL else x
    before, after = source.dtype.bits, 8 if dtype is DType.BOOL else dtype.bits
    if before == after:
        bits = source
    elif not x.shape:
        raise TensorError(f"a 0-d {x.dtype.numpy} tensor has no view as {dtype.numpy}")
    elif before > after:
        count, narrow = before // after, _UNSIGNED[after]
        whole = g.bitcast(source, _UNSIGNED[before])
        parts = [g.cast(e.shift_right(whole, after * i), narrow) for i in range(count)]
        bits = g.reshape(stack(parts, -1), (*x.shape[:-1], x.shape[-1] * count))
    else:
        count, wide = after // before, _UNSIGNED[after]
        if x.shape[-1] % count:
            raise TensorError(
                f"a view as {dtype.numpy} needs a multiple of {count} elements of "
                f"{x.dtype.numpy} on the last axis, got {x.shape[-1]}"
            )
        grouped = g.reshape(
            g.cast(g.bitcast(source, _UNSIGNED[before]), wide),
            (*x.shape[:-1], x.shape[-1] // count, count),
        )
        bits = select(grouped, -1, 0)
        for i in range(1, count):
            bits = g.or_(bits, e.shift_left(select(grouped, -1, i), before * i))
    return e.ne(bits, 0) if dtype is DType.BOOL else g.bitcast(bits, dtype)


def strided(x: Node, size: Sequence[int], stride: Sequence[int], offset: int) -> Node:
    """The elements of x in a row that lie at `offset` and the products of strides and places."""
    if len(size) != len(stride):
        raise TensorError(f"as_strided: {len(size)} sizes and {len(stride)} strides")
    places = g.const(offset, DType.I64)
    for a, (n, by) in enumerate(zip(size, stride, strict=True)):
        shape = (1,) * a + (n,) + (1,) * (len(size) - 1 - a)
        places = e.add(places, e.mul(g.reshape(g.arange(n), shape), by))
    last = offset + sum((n - 1) * by for n, by in zip(size, stride, strict=True))
    if 0 not in size and not 0 <= last < x.type.size:
        raise TensorError(
            f"as_strided: sizes {list(size)}, strides {list(stride)} and offset {offset} reach "
            f"element {last} of a memory of {x.type.size}"
        )
    return g.gather(g.reshape(x, (x.type.size,)), g.broadcast(places, tuple(size)), 0)


@operator(shares=True, aliases=("swapaxes", "swapdims"),
          named=(("axis0", "dim0"), ("axis1", "dim1")), aten="transpose")  # fmt: skip
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
    gone = () if dim == () else axes(dim, len(x.shape))
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


@operator(aliases=("concat", "concatenate"), method=False, aten="cat", onnx="Concat")
def cat(parts: Sequence[Node], dim: int = 0) -> Node:
    """The parts one after the other along an axis, in their common element type."""
    _check_parts(parts)
    if not parts:
        raise TensorError("cat needs at least one tensor")
    dtype = common_dtype(*parts)
    parts = [p for p in parts if p.shape != (0,)] or parts[:1]  # as PyTorch leaves them out
    a = axis(dim, len(parts[0].shape))
    if any(_without(p, a) != _without(parts[0], a) for p in parts) or not parts[0].shape:
        listed = ", ".join(map(text, parts))
        raise TensorError(f"shapes must be equal but on dim {dim}, and have axes: {listed}")
    return g.concat([g.cast(p, dtype) for p in parts], a)


def _check_parts(parts: Any) -> None:
    """Raise TensorError for what is not a list of tensors."""
    if isinstance(parts, Node):
        raise TensorError(f"takes a list of tensors, got one: {text(parts)}")
    for i, part in enumerate(parts):
        if not isinstance(part, Node):
            raise TensorError(
                f"takes a list of tensors; element {i} of it is of type {type(part).__name__}"
            )


def _without(x: Node, a: int) -> tuple[int, ...]:
    return (len(x.shape), *x.shape[:a], *x.shape[a + 1 :])


@operator(method=False, aten="stack")
def stack(parts: Sequence[Node], dim: int = 0) -> Node:
    """The parts, all of one shape, one after the other along a new axis."""
    _check_parts(parts)
    if any(p.shape != parts[0].shape for p in parts):
        raise TensorError(f"shapes must be equal: {', '.join(map(text, parts))}")
    return cat(
        [unsqueeze(p, dim) for p in parts], axis(dim, len(parts[0].shape) + 1) if parts else 0
    )


@operator(
    shares=True,
    aliases=("unsafe_split", "unsafe_split_with_sizes"),
    named=(("tensor", "x"), ("split_size", "size"), ("split_size_or_sections", "size"),
           ("split_sizes", "size")),
    aten="split",
    onnx="Split",
)  # fmt: skip
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


@operator(shares=True, aliases=("unsafe_chunk",), aten="chunk")
def chunk(x: Node, chunks: int, dim: int = 0) -> list[Node]:
    """x in at most `chunks` pieces of one size along an axis; the last may be smaller."""
    if chunks < 1:
        raise TensorError(f"needs at least 1 chunk, got {chunks}")
    return split(x, max(1, -(-x.shape[real_axis(dim, x, "split")] // chunks)), dim)


@layer(aten="pad", onnx="Pad")
def pad(
    input: Node, pad: Sequence[int], mode: str = "constant", value: Number | None = None
) -> Node:
    """x with more around it: `pad` is (before, after) of the last axis, then of the one before it,
    ...: `value` (0), or by mode "reflect", "replicate" or "circular" of its own elements.

    Negative padding cuts off.
    """
    rank = len(input.shape)
    if len(pad) % 2 or len(pad) > 2 * rank:
        raise TensorError(f"padding {list(pad)} must hold a pair for at most {rank} axes")
    pairs = [(0, 0)] * (rank - len(pad) // 2)
    pairs += [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    sizes = zip(input.shape, pairs, strict=True)
    if any(n + min(lo, 0) + min(hi, 0) < 0 for n, (lo, hi) in sizes):
        raise TensorError(f"padding {list(pad)} cuts off more than {text(input)} has")
    start = [max(-lo, 0) for lo, _ in pairs]
    stop = [n - max(-hi, 0) for n, (_, hi) in zip(input.shape, pairs, strict=True)]
    lows, highs = [max(lo, 0) for lo, _ in pairs], [max(hi, 0) for _, hi in pairs]
    if mode == "constant":
        return g.pad(g.slice(input, start, stop), lows, highs, 0 if value is None else value)
    if mode not in _AROUND or value is not None:
        known = ", ".join(_AROUND)
        raise TensorError(f"mode is constant, {known}, got {mode!r}, value {value!r}")
    x = input
    if mode == "circular":
        x, pairs = g.slice(x, start, stop), [(max(lo, 0), max(hi, 0)) for lo, hi in pairs]
    for a in range(rank):
        if lows[a] or highs[a]:
            x = _AROUND[mode](x, a, lows[a], highs[a])
    lo = [max(-lo, 0) for lo, _ in pairs]
    hi = [n - max(-h, 0) for n, (_, h) in zip(x.shape, pairs, strict=True)]
    return g.slice(x, lo, hi)


def _reflected(x: Node, a: int, lo: int, hi: int) -> Node:
    n = x.shape[a]
    if max(lo, hi) >= n:
        raise TensorError(f"an axis of {n} cannot be reflected by {max(lo, hi)}")
    before = g.flip(g.slice_axis(x, a, 1, 1 + lo), a)
    after = g.flip(g.slice_axis(x, a, n - 1 - hi, n - 1), a)
    return g.concat([p for p in (before, x, after) if p.shape[a]], a)


def _replicated(x: Node, a: int, lo: int, hi: int) -> Node:
    n = x.shape[a]
    if not n:
        raise TensorError(f"{text(x)} has no element to repeat")

    def ends(at: int, many: int) -> Node:
        return g.expand(g.slice_axis(x, a, at, at + 1), (*x.shape[:a], many, *x.shape[a + 1 :]))

    return g.concat([p for p in (ends(0, lo), x, ends(n - 1, hi)) if p.shape[a]], a)


def _around(x: Node, a: int, lo: int, hi: int) -> Node:
    n = x.shape[a]
    if max(lo, hi) > n:
        raise TensorError(f"an axis of {n} cannot go round by {max(lo, hi)}")
    pieces = (g.slice_axis(x, a, n - lo, n), x, g.slice_axis(x, a, 0, hi))
    return g.concat([p for p in pieces if p.shape[a]], a)


_AROUND = {"reflect": _reflected, "replicate": _replicated, "circular": _around}


@operator(in_place=True, aten="tril", onnx="Trilu")
def tril(x: Node, diagonal: int = 0) -> Node:
    """x with 0 above the diagonal of its last two axes."""
    return e.where(_below(x, diagonal), x, g.const(0, x.dtype))


@operator(in_place=True, aten="triu", onnx="Trilu")
def triu(x: Node, diagonal: int = 0) -> Node:
    """x with 0 below the diagonal of its last two axes."""
    return e.where(g.not_(_below(x, diagonal - 1)), x, g.const(0, x.dtype))


def _below(x: Node, diagonal: int) -> Node:
    """Whether column <= row + diagonal."""
    if len(x.shape) < 2:
        raise TensorError(f"needs at least 2 axes, got {text(x)}")
    return lower(x.shape[-2], x.shape[-1], diagonal)


def lower(rows: int, columns: int, diagonal: int = 0) -> Node:
    """bool[rows, columns]: whether column <= row + diagonal."""
    row = e.add(g.reshape(g.arange(rows), (rows, 1)), diagonal)
    return e.le(g.arange(columns), row)


# other arrangements


@operator(sizes=True, function=False, aten="repeat", onnx="Tile")
def repeat(x: Node, repeats: Sequence[int]) -> Node:
    """x as often along each axis; more numbers than axes add leading ones."""
    lead = len(repeats) - len(x.shape)
    if lead < 0 or min(repeats, default=0) < 0:
        raise TensorError(f"{list(repeats)} is not a number for each axis of {text(x)}")
    own = (1,) * lead + x.shape
    apart = g.reshape(x, [n for size in own for n in (1, size)])
    grown = g.expand(apart, [n for r, size in zip(repeats, own, strict=True) for n in (r, size)])
    return g.reshape(grown, [r * size for r, size in zip(repeats, own, strict=True)])


@operator(sizes=True, aten="tile", onnx="Tile")
def tile(x: Node, dims: Sequence[int]) -> Node:
    """x as often along each of its last axes."""
    return repeat(x, (*[1] * (len(x.shape) - len(dims)), *dims))


@operator(aten="roll")
def roll(x: Node, shifts: Any, dims: Any = None) -> Node:
    """x with its elements `shifts` places on along axes, the last ones first again."""
    if dims is None or dims == ():
        return g.reshape(roll(g.reshape(x, (x.type.size,)), shifts, 0), x.shape)
    moves, along = ([v] if isinstance(v, int) else list(v) for v in (shifts, dims))
    if len(moves) != len(along):
        raise TensorError(f"{len(moves)} shifts for {len(along)} dims")
    for shift, dim in zip(moves, along, strict=True):
        a = real_axis(dim, x, "roll")
        if x.shape[a]:
            cut = -shift % x.shape[a]
            pieces = [g.slice_axis(x, a, cut, x.shape[a]), g.slice_axis(x, a, 0, cut)]
            x = g.concat(pieces, a) if cut else x
    return x


@operator(shares=True, aliases=("moveaxis",), aten="movedim")
def movedim(x: Node, source: Any, destination: Any) -> Node:
    """x with the axes `source` at `destination`, the others in order."""
    rank = len(x.shape)
    here, there = (
        [axis(d, rank) for d in ([v] if isinstance(v, int) else v)] for v in (source, destination)
    )
    if len(here) != len(there) or len(set(here)) != len(here) or len(set(there)) != len(there):
        raise TensorError(f"axes {source} cannot go to {destination}")
    rest = iter(i for i in range(rank) if i not in here)
    return g.permute(x, [here[there.index(i)] if i in there else next(rest) for i in range(rank)])


@operator(shares=True, aten="adjoint")
def adjoint(x: Node) -> Node:
    """x with its last two axes exchanged."""
    return transpose(x, -2, -1)


@operator(shares=True, aten="unflatten")
def unflatten(x: Node, dim: int, sizes: Sequence[int]) -> Node:
    """x with an axis as several ones; one -1 stands for what remains."""
    a = real_axis(dim, x, "unflatten")
    known = math.prod(n for n in sizes if n != -1)
    whole = [x.shape[a] // max(1, known) if n == -1 else n for n in sizes]
    if math.prod(whole) != x.shape[a]:
        raise TensorError(f"sizes {list(sizes)} do not fill dim {dim} of {text(x)}")
    return g.reshape(x, (*x.shape[:a], *whole, *x.shape[a + 1 :]))


@operator(shares=True, aten="narrow")
def narrow(x: Node, dim: int, start: int | Node, length: int) -> Node:
    """`length` slices of an axis from `start` on."""
    a = real_axis(dim, x, "narrow")
    if isinstance(start, Node):
        place = e.where(e.lt(start, 0), e.add(start, x.shape[a]), start)
        return g.gather(x, e.add(g.cast(place, DType.I64), g.arange(length)), a)
    first = start + x.shape[a] if start < 0 else start
    if not 0 <= first <= first + length <= x.shape[a]:
        raise TensorError(f"{start}:{start + length} is not within dim {dim} of {text(x)}")
    return g.slice_axis(x, a, first, first + length)


@operator(shares=True, aten="select")
def select(x: Node, dim: int, index: int) -> Node:
    """One slice of an axis, without it."""
    a = real_axis(dim, x, "select from")
    if not -x.shape[a] <= index < x.shape[a]:
        raise RangeError(f"index {index} is out of range for dim {dim} of {text(x)}")
    one = g.slice_axis(x, a, index % x.shape[a], index % x.shape[a] + 1)
    return g.reshape(one, (*x.shape[:a], *x.shape[a + 1 :]))


@operator(shares=True, aten="unbind")
def unbind(x: Node, dim: int = 0) -> list[Node]:
    """The slices along an axis, without it."""
    return [select(x, dim, i) for i in range(x.shape[real_axis(dim, x, "unbind")])]


@operator(shares=True, aten="broadcast_to", onnx="Expand")
def broadcast_to(x: Node, size: Sequence[int]) -> Node:
    """x repeated to a shape by the rules of broadcasting."""
    return expand(x, size)


@operator(method=False, aten="broadcast_tensors")
def broadcast_tensors(*tensors: Node) -> list[Node]:
    """The tensors in their common shape."""
    shape = broadcast_shape(x.shape for x in tensors)
    return [g.broadcast(x, shape) for x in tensors]


@operator(shares=True, aten="split_with_sizes")
def split_with_sizes(x: Node, split_sizes: Sequence[int], dim: int = 0) -> list[Node]:
    """Pieces of these sizes along an axis."""
    return split(x, split_sizes, dim)


def tensor_split(x: Node, indices_or_sections: Any, dim: int = 0) -> list[Node]:
    """x in so many pieces along an axis, the first ones longer by one, or cut at these places."""
    a = real_axis(dim, x, "split")
    n = x.shape[a]
    if isinstance(indices_or_sections, int):
        many = indices_or_sections
        sizes = [n // many + (i < n % many) for i in range(many)]
        cuts = [sum(sizes[:i]) for i in range(many + 1)]
    else:
        given = [min(max(i + n if i < 0 else i, 0), n) for i in indices_or_sections]
        cuts = [0, *given, n]
    return [g.slice_axis(x, a, lo, max(lo, hi)) for lo, hi in pairwise(cuts)]


@operator(shares=True, aten="hsplit")
def hsplit(x: Node, indices_or_sections: Any) -> list[Node]:
    """tensor_split along axis 1, of one axis along it."""
    return _even_split(x, indices_or_sections, 0 if len(x.shape) == 1 else 1, 1)


@operator(shares=True, aten="vsplit")
def vsplit(x: Node, indices_or_sections: Any) -> list[Node]:
    """tensor_split along axis 0."""
    return _even_split(x, indices_or_sections, 0, 2)


@operator(shares=True, aten="dsplit")
def dsplit(x: Node, indices_or_sections: Any) -> list[Node]:
    """tensor_split along axis 2."""
    return _even_split(x, indices_or_sections, 2, 3)


def _even_split(x: Node, cuts: Any, dim: int, least: int) -> list[Node]:
    if len(x.shape) < least or (isinstance(cuts, int) and x.shape[dim] % cuts):
        raise TensorError(f"{text(x)} has no {cuts} equal pieces along dim {dim}")
    return tensor_split(x, cuts, dim)


@operator(method=False, aliases=("row_stack",), aten="vstack")
def vstack(tensors: Sequence[Node]) -> Node:
    """The tensors, of at least two axes, one after the other along axis 0."""
    return cat([_at_least(x, 2) for x in tensors], 0)


@operator(method=False, aten="hstack")
def hstack(tensors: Sequence[Node]) -> Node:
    """The tensors one after the other along axis 1, of one axis along it."""
    parts = [_at_least(x, 1) for x in tensors]
    return cat(parts, 0 if len(parts[0].shape) == 1 else 1)


@operator(method=False, aten="dstack")
def dstack(tensors: Sequence[Node]) -> Node:
    """The tensors, of at least three axes, one after the other along axis 2."""
    return cat([_at_least(x, 3) for x in tensors], 2)


@operator(method=False, aten="column_stack")
def column_stack(tensors: Sequence[Node]) -> Node:
    """Tensors of one axis as columns, others as they are, beside each other."""
    return cat([x if len(x.shape) > 1 else g.reshape(x, (x.type.size, 1)) for x in tensors], 1)


def _at_least(x: Node, rank: int) -> Node:
    """x with new axes of size 1: the row first, then one behind."""
    if rank == 3 and len(x.shape) < 3:
        return unsqueeze(_at_least(x, 2), 2)
    return x if len(x.shape) >= rank else g.reshape(x, (1,) * (rank - len(x.shape)) + x.shape)


def _publish_at_least(rank: int) -> None:
    def at_least(*tensors: Any) -> Any:
        parts = tensors[0] if isinstance(tensors[0], list | tuple) else tensors
        grown = [_at_least(x, rank) for x in parts]
        return grown[0] if isinstance(tensors[0], Node) and len(tensors) == 1 else grown

    at_least.__doc__ = f"Each tensor with at least {rank} axes."
    operator(f"atleast_{rank}d", method=False, aten=f"atleast_{rank}d")(at_least)


for _rank in (1, 2, 3):
    _publish_at_least(_rank)


@operator(shares=True, aten="ravel")
def ravel(x: Node) -> Node:
    """x as one axis."""
    return g.reshape(x, (x.type.size,))


@operator(aten="fliplr")
def fliplr(x: Node) -> Node:
    """x with axis 1 reversed."""
    return flip(x, (1,))


@operator(aten="flipud")
def flipud(x: Node) -> Node:
    """x with axis 0 reversed."""
    return flip(x, (0,))


@operator(aten="rot90")
def rot90(x: Node, k: int = 1, dims: Sequence[int] = (0, 1)) -> Node:
    """x turned k times by 90 degrees in the plane of two axes, from the first to the second."""
    a, b = (axis(d, len(x.shape)) for d in dims)
    if a == b:
        raise TensorError(f"dims {list(dims)} are one axis")
    match k % 4:
        case 1:
            return g.flip(g.transpose(x, a, b), a)
        case 2:
            return g.flip(x, (a, b))
        case 3:
            return g.flip(g.transpose(x, a, b), b)
    return x


@operator(method=False, aten="meshgrid")
def meshgrid(*tensors: Any, indexing: str = "ij") -> list[Node]:
    """The coordinates of a grid: each tensor of one axis along an axis of its own; "xy" exchanges
    the first two."""
    parts = list(tensors[0] if isinstance(tensors[0], list | tuple) else tensors)
    if indexing not in ("ij", "xy"):
        raise TensorError(f'indexing is "ij" or "xy", got {indexing!r}')
    swap = indexing == "xy" and len(parts) > 1
    parts[:2] = parts[1::-1] if swap else parts[:2]
    shape = [p.type.size for p in parts]
    found = [
        g.broadcast(g.reshape(p, [p.type.size if j == i else 1 for j in range(len(parts))]), shape)
        for i, p in enumerate(parts)
    ]
    return [found[1], found[0], *found[2:]] if swap else found


@operator(method=False, aten="cartesian_prod")
def cartesian_prod(*tensors: Node) -> Node:
    """All combinations of one element of each tensor of one axis, as rows."""
    if len(tensors) == 1:
        return tensors[0]
    columns = [g.reshape(m, (m.type.size, 1)) for m in meshgrid(*tensors)]
    return cat(columns, 1)


@operator(method=False, aten="block_diag")
def block_diag(*tensors: Node) -> Node:
    """Matrices one after the other on the diagonal, zeros elsewhere."""
    parts = [g.reshape(x, (1,) * (2 - len(x.shape)) + x.shape) for x in tensors]
    width, before, rows = sum(p.shape[1] for p in parts), 0, []
    dtype = common_dtype(*parts)
    for p in parts:
        rows.append(g.pad(g.cast(p, dtype), (0, before), (0, width - before - p.shape[1])))
        before += p.shape[1]
    return g.concat(rows, 0)


# diagonals


@operator(shares=True, aten="diagonal")
def diagonal(x: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    """The elements of two axes at (i, i + offset), as a new last axis."""
    rank = len(x.shape)
    a, b = axis(dim1, rank), axis(dim2, rank)
    if a == b or rank < 2:
        raise TensorError(f"dims {dim1} and {dim2} of {text(x)} are not two axes")
    x = movedim(x, (a, b), (rank - 2, rank - 1))
    rows, columns = x.shape[-2:]
    top, left = max(0, -offset), max(0, offset)
    n = max(0, min(rows - top, columns - left))
    x = g.slice_axis(g.slice_axis(x, -2, min(top, rows), min(top, rows) + n), -1,
                     min(left, columns), min(left, columns) + n)  # fmt: skip
    flat = g.reshape(x, (*x.shape[:-2], n * n))
    return g.slice_axis(flat, -1, 0, n * n, n + 1)


@operator(aten="diag_embed")
def diag_embed(x: Node, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Node:
    """Matrices in two new axes with x's last axis on the diagonal, zeros elsewhere."""
    n, rank = x.shape[-1], len(x.shape) + 1
    size = n + abs(offset)
    spread = g.pad(g.reshape(x, (*x.shape, 1)), (0,) * rank, (*[0] * (rank - 1), n))
    flat = g.slice_axis(g.reshape(spread, (*x.shape[:-1], n * (n + 1))), -1, 0, n * n)
    square = g.reshape(flat, (*x.shape[:-1], n, n))
    lo = (*[0] * (rank - 2), max(0, -offset), max(0, offset))
    hi = (*[0] * (rank - 2), max(0, offset), max(0, -offset))
    square = g.pad(square, lo, hi)
    assert square.shape[-1] == size
    return movedim(square, (rank - 2, rank - 1), (axis(dim1, rank), axis(dim2, rank)))


@operator(aten="diag")
def diag(x: Node, diagonal: int = 0) -> Node:
    """A matrix with x on a diagonal; of a matrix its diagonal."""
    if len(x.shape) == 1:
        return diag_embed(x, diagonal)
    return _diagonal(x, diagonal)


_diagonal = diagonal


@operator(aten="diagflat")
def diagflat(x: Node, offset: int = 0) -> Node:
    """A matrix with all elements of x on a diagonal."""
    return diag_embed(ravel(x), offset)


@operator(linalg=True, aten="trace")
def trace(x: Node) -> Node:
    """The sum of a matrix's diagonal."""
    v = diagonal(x)
    wide = v if v.dtype.is_float else g.cast(v, DType.I64)
    return g.reshape(g.reduce("sum", wide, 0), ())


def _placed(x: Node, src: Node, cut: Callable[[Node], Node]) -> Node:
    """x with src in the place of what `cut` takes from it."""
    number = g.reshape(g.arange(x.type.size), x.shape)
    places = cut(number)
    if places.shape != src.shape:
        raise TensorError(f"{text(src)} does not fill a place of {list(places.shape)}")
    flat = g.reshape(g.cast(src, x.dtype), (src.type.size,))
    at = g.reshape(places, (places.type.size,))
    return g.reshape(g.scatter("set", ravel(x), at, flat, 0), x.shape)


@operator(aten="diagonal_scatter")
def diagonal_scatter(x: Node, src: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    """x with src as its diagonal."""
    return _placed(x, src, lambda v: diagonal(v, offset, dim1, dim2))


@operator(aten="select_scatter")
def select_scatter(x: Node, src: Node, dim: int, index: int) -> Node:
    """x with src as one slice of an axis."""
    return _placed(x, src, lambda v: select(v, dim, index))


@operator(aten="slice_scatter")
def slice_scatter(
    x: Node,
    src: Node,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Node:
    """x with src as the slice start:end:step of an axis."""
    a = axis(dim, len(x.shape))
    lo, hi, by = slice(start, end, step).indices(x.shape[a])
    return _placed(x, src, lambda v: g.slice_axis(v, a, lo, max(lo, hi), by))


# windows and pictures


@operator("unfold", function=False, aten="unfold")
def _unfold(x: Node, dimension: int, size: int, step: int) -> Node:
    """The windows of an axis, `step` apart, as a new last axis of `size`."""
    if not x.shape:
        return g.reshape(x, (size,))
    a = axis(dimension, len(x.shape))
    return movedim(g.window(x, a, size, step), a + 1, -1)


@layer("unfold", aten="im2col", onnx="")
def unfold_planes(
    input: Node,
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> Node:
    """The windows of planes [N, C, H, W] as columns: [N, C * window, windows]."""
    x = input if len(input.shape) == 4 else g.reshape(input, (1, *input.shape))
    taps, apart, edges, steps = (
        each(v, 2, name)
        for v, name in (
            (kernel_size, "kernel_size"),
            (dilation, "dilation"),
            (padding, "padding"),
            (stride, "stride"),
        )
    )
    x = windowed(g.pad(x, (0, 0, *edges), (0, 0, *edges)), 2, taps, steps, apart)
    n, c, rows, _, columns, _ = x.shape
    x = g.permute(x, (0, 1, 3, 5, 2, 4))
    x = g.reshape(x, (n, c * math.prod(taps), rows * columns))
    return x if len(input.shape) == 4 else g.reshape(x, x.shape[1:])


@layer(aten="col2im", onnx="Col2Im")
def fold(
    input: Node,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> Node:
    """Columns as unfold gives them, added up where they came from in planes of output_size."""
    x = input if len(input.shape) == 3 else g.reshape(input, (1, *input.shape))
    size, taps, apart, edges, steps = (
        each(v, 2, name)
        for v, name in (
            (output_size, "output_size"),
            (kernel_size, "kernel_size"),
            (dilation, "dilation"),
            (padding, "padding"),
            (stride, "stride"),
        )
    )
    whole = [s + 2 * p for s, p in zip(size, edges, strict=True)]
    counts = [
        (w - (k - 1) * a - 1) // s + 1 for w, k, a, s in zip(whole, taps, apart, steps, strict=True)
    ]
    n, c = x.shape[0], x.shape[1] // math.prod(taps)
    if x.shape[1:] != (c * math.prod(taps), math.prod(counts)):
        raise TensorError(f"{text(input)} is not {counts} windows of {taps}")
    x = g.permute(g.reshape(x, (n, c, *taps, *counts)), (0, 1, 4, 2, 5, 3))
    x = g.overlap_add(x, 2, whole[0], steps[0], apart[0])
    x = g.overlap_add(x, 3, whole[1], steps[1], apart[1])
    stop = [w - p for w, p in zip(whole, edges, strict=True)]
    x = g.slice(x, (0, 0, *edges), (n, c, *stop))
    return x if len(input.shape) == 3 else g.reshape(x, x.shape[1:])


@operator(layer=True, method=False, aten="pixel_shuffle", onnx="DepthToSpace")
def pixel_shuffle(input: Node, upscale_factor: int) -> Node:
    """[..., C * r * r, H, W] to [..., C, H * r, W * r]."""
    *lead, c, h, w = input.shape
    r, n = upscale_factor, len(lead)
    if c % (r * r):
        raise TensorError(f"{c} channels of {text(input)} are no multiple of {r} squared")
    x = g.reshape(input, (*lead, c // (r * r), r, r, h, w))
    x = g.permute(x, (*range(n + 1), n + 3, n + 1, n + 4, n + 2))
    return g.reshape(x, (*lead, c // (r * r), h * r, w * r))


@operator(layer=True, method=False, aten="pixel_unshuffle", onnx="SpaceToDepth")
def pixel_unshuffle(input: Node, downscale_factor: int) -> Node:
    """[..., C, H * r, W * r] to [..., C * r * r, H, W]."""
    *lead, c, h, w = input.shape
    r, n = downscale_factor, len(lead)
    if h % r or w % r:
        raise TensorError(f"{h} x {w} of {text(input)} are no multiples of {r}")
    x = g.reshape(input, (*lead, c, h // r, r, w // r, r))
    x = g.permute(x, (*range(n + 1), n + 2, n + 4, n + 1, n + 3))
    return g.reshape(x, (*lead, c * r * r, h // r, w // r))


@operator(layer=True, method=False, aten="channel_shuffle")
def channel_shuffle(input: Node, groups: int) -> Node:
    """Channels, axis 1, of `groups` groups in turn."""
    n, c, *rest = input.shape
    if c % groups:
        raise TensorError(f"{c} channels of {text(input)} are no {groups} groups")
    x = g.reshape(input, (n, groups, c // groups, *rest))
    return g.reshape(g.transpose(x, 1, 2), input.shape)
