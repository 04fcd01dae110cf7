"""Convolutions of one to three axes as windows and products. float16 and bfloat16 accumulate in
float32."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr.contract import product_operands
from stack.framework.expr.operand import text
from stack.framework.expr.public import operator
from stack.framework.expr.windows import Sizes, each, windowed

Padding = str | int | Sequence[int]


def _convolution(
    d: int,
    input: Node,
    weight: Node,
    bias: Node | None,
    stride: Sizes,
    padding: Padding,
    dilation: Sizes,
    groups: int,
) -> Node:
    x, batched = _batched(d, input, weight)
    outer, inner, *taps = weight.shape
    if groups < 1 or x.shape[1] != groups * inner or outer % groups:
        raise TensorError(
            f"{x.shape[1]} channels in {groups} groups do not fit weight {text(weight)}"
        )
    steps, apart = each(stride, d, "stride"), each(dilation, d, "dilation")
    # Zeros before and after each axis
    if padding == "valid":
        edges = [(0, 0)] * len(taps)
    elif padding == "same":
        if any(s != 1 for s in steps):
            raise TensorError(f'padding "same" needs stride 1, got {list(steps)}')
        spans = [(k - 1) * a for k, a in zip(taps, apart, strict=True)]
        edges = [(span // 2, span - span // 2) for span in spans]
    else:
        if isinstance(padding, str):
            raise TensorError(f'padding is "valid", "same" or numbers, got {padding!r}')
        edges = [(p, p) for p in each(padding, len(taps), "padding")]
    x, w = product_operands(x, weight)
    n, sizes = x.shape[0], x.shape[2:]
    x = g.reshape(x, (n, groups, inner, *sizes))
    x = g.pad(x, (0, 0, 0, *(a for a, _ in edges)), (0, 0, 0, *(b for _, b in edges)))
    x = windowed(x, 3, taps, steps, apart)
    counts = x.shape[3::2]
    columns = g.permute(x, (0, 1, 2, *range(4, 4 + 2 * d, 2), *range(3, 3 + 2 * d, 2)))
    columns = g.reshape(columns, (n, groups, inner * prod(taps), prod(counts)))
    rows = g.reshape(w, (1, groups, outer // groups, inner * prod(taps)))
    product = g.matmul(g.expand(rows, (n, *rows.shape[1:])), columns)
    return _finished(g.reshape(product, (n, outer, *counts)), bias, batched)


def _transposed(
    d: int,
    input: Node,
    weight: Node,
    bias: Node | None,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    groups: int,
    dilation: Sizes,
) -> Node:
    x, batched = _batched(d, input, weight)
    channels, outer, *taps = weight.shape
    if groups < 1 or x.shape[1] != channels or channels % groups:
        raise TensorError(
            f"{x.shape[1]} channels in {groups} groups do not fit weight {text(weight)}"
        )
    steps, apart = each(stride, d, "stride"), each(dilation, d, "dilation")
    edges, more = each(padding, d, "padding"), each(output_padding, d, "output_padding")
    if any(m >= max(s, a) for m, s, a in zip(more, steps, apart, strict=True)):
        raise TensorError(f"output_padding {more} must be below stride {steps} or {apart}")
    x, w = product_operands(x, weight)
    n, sizes, inner = x.shape[0], x.shape[2:], channels // groups
    rows = g.permute(x, (0, *range(2, 2 + d), 1))
    rows = g.reshape(rows, (n * prod(sizes), groups, inner))
    w = g.permute(g.reshape(w, (groups, inner, outer, prod(taps))), (0, 1, 3, 2))
    w = g.reshape(w, (groups, inner, prod(taps) * outer))
    y = g.matmul(g.permute(rows, (1, 0, 2)), w)
    y = g.reshape(y, (groups, n, *sizes, *taps, outer))
    pairs = [axis for i in range(d) for axis in (2 + i, 2 + d + i)]
    y = g.permute(y, (1, *pairs, 0, 2 + 2 * d))
    for i in range(d):
        length = (sizes[i] - 1) * steps[i] + (taps[i] - 1) * apart[i] + 1
        y = g.overlap_add(y, 1 + i, length, steps[i], apart[i])
    y = g.permute(y, (0, 1 + d, 2 + d, *range(1, 1 + d)))
    y = g.reshape(y, (n, groups * outer, *y.shape[3:]))
    y = g.pad(y, (0,) * (2 + d), (0, 0, *more))
    stop = [size - edge for size, edge in zip(y.shape[2:], edges, strict=True)]
    if any(hi <= lo for lo, hi in zip(edges, stop, strict=True)):
        raise TensorError(f"padding {edges} leaves nothing of {list(y.shape[2:])}")
    return _finished(g.slice(y, (0, 0, *edges), (*y.shape[:2], *stop)), bias, batched)


def _batched(d: int, input: Node, weight: Node) -> tuple[Node, bool]:
    """The images with a batch axis, and whether they had it."""
    rank = len(input.shape)
    if rank not in (d + 1, d + 2) or len(weight.shape) != d + 2:
        raise TensorError(
            f"input [N, C, {d} axes] or [C, {d} axes] and weight of {d + 2} axes are due, got "
            f"{text(input)} and {text(weight)}"
        )
    return (input, True) if rank == d + 2 else (g.reshape(input, (1, *input.shape)), False)


def _finished(y: Node, bias: Node | None, batched: bool) -> Node:
    if bias is not None:
        line = g.reshape(g.cast(bias, y.dtype), (1, bias.type.size, *[1] * (len(y.shape) - 2)))
        y = g.add(y, g.expand(line, y.shape))
    return y if batched else g.reshape(y, y.shape[1:])


def _publish(d: int) -> None:
    def conv(
        input: Node,
        weight: Node,
        bias: Node | None = None,
        stride: int | Sequence[int] = 1,
        padding: str | int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> Node:
        return _convolution(d, input, weight, bias, stride, padding, dilation, groups)

    def conv_transpose(
        input: Node,
        weight: Node,
        bias: Node | None = None,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        output_padding: int | Sequence[int] = 0,
        groups: int = 1,
        dilation: int | Sequence[int] = 1,
    ) -> Node:
        return _transposed(
            d, input, weight, bias, stride, padding, output_padding, groups, dilation
        )

    axes = ("L", "H, W", "D, H, W")[d - 1]
    conv.__doc__ = (
        f"The products of weight [out, C / groups, windows] with the windows of input [N, C, "
        f"{axes}] or [C, {axes}], added up, plus bias. Padding is zeros; "
        '"same" keeps the sizes.'
    )
    conv_transpose.__doc__ = (
        f"The adjoint of conv{d}d: input [N, C, {axes}] or [C, {axes}] times weight "
        "[C, out / groups, windows], added up where the windows lie, plus bias."
    )
    conv.__name__, conv_transpose.__name__ = f"conv{d}d", f"conv_transpose{d}d"
    operator(method=False, layer=True, aten=f"conv{d}d", onnx="Conv")(conv)
    aten = f"conv_transpose{d}d" + (".input" if d > 1 else "")
    operator(method=False, layer=True, aten=aten, onnx="ConvTranspose")(conv_transpose)


for _d in (1, 2, 3):
    _publish(_d)
