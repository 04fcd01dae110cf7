"""Operators of torchvision that find objects: it has a kernel of each for each of its devices, and
no formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.bridge.torch.kernels import call
from stack.bridge.torch.rows import inlined, pulled
from stack.bridge.torch.tape import Row
from stack.framework.expr import contract
from stack.framework.expr import elementwise as e
from stack.framework.expr import reduce as r

# Boxes that are found several times

_TOGETHER = 4
"""How many rounds are recorded before somebody looks whether the last one changed anything."""


def nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """i64: which boxes have no better one that is kept and that they share more of their area with,
    the best first. Each round lets go what a kept one of the last round covers: the n best are
    right after n rounds, all mostly after few."""
    if boxes.dim() != 2 or boxes.shape[1] != 4 or scores.shape != boxes.shape[:1]:
        raise RuntimeError(
            f"nms takes boxes of [n, 4] and scores of [n], not {list(boxes.shape)} and "
            f"{list(scores.shape)}"
        )
    if not boxes.numel():
        return torch.empty(0, dtype=torch.int64, device=boxes.device)
    order = scores.sort(stable=True, dim=0, descending=True)[1]
    x1, y1, x2, y2 = boxes[order].unbind(1)
    area = (x2 - x1) * (y2 - y1)
    wide = (torch.minimum(x2[:, None], x2) - torch.maximum(x1[:, None], x1)).clamp(min=0)
    high = (torch.minimum(y2[:, None], y2) - torch.maximum(y1[:, None], y1)).clamp(min=0)
    shared = wide * high
    covered = (shared / (area[:, None] + area - shared) > threshold).tril(-1)
    kept = torch.ones_like(order, dtype=torch.bool)
    while True:
        for _ in range(_TOGETHER):
            before, kept = kept, ~(covered & kept).any(1)
        if before.equal(kept):
            return order[kept]


# Parts of an image at another size


def _column(x: Node, i: int) -> Node:
    return g.reshape(g.slice_axis(x, 1, i, i + 1), (x.shape[0],))


def _here(x: Node, axis: int, axes: int) -> Node:
    """A row as one axis of several."""
    return g.reshape(x, tuple([x.shape[0] if a == axis else 1 for a in range(axes)]))


def _taps(begin: Node, extent: Node, bins: int, samples: int, size: int) -> tuple[Node, Node, Node]:
    """Of the regions of an axis of `size` elements, in so many bins: where each sample of a bin
    lies, i64[regions, bins, 2 samples], between two elements; how much it takes of them, which is
    nothing outside; how many samples a bin has, if they are as many as elements (`samples` < 0: no
    bin has more than -samples)."""
    step = e.div(extent, bins)
    most = abs(samples)
    each = e.ceil(step) if samples < 0 else g.full_like(step, samples)
    begin, step, count = (_here(v, 0, 3) for v in (begin, step, each))
    at_bin, at_sample = (_here(g.arange(n, begin.dtype), a, 3) for a, n in ((1, bins), (2, most)))
    at = e.add(e.add(begin, e.mul(at_bin, step)), e.div(e.mul(e.add(at_sample, 0.5), step), count))
    inside = g.and_(e.ge(at, -1.0), e.le(at, float(size)))
    within = e.logical_and(inside, e.lt(at_sample, count))
    at = e.clamp(at, min=0.0, max=float(size))
    low = e.clamp(g.cast(at, DType.I64), max=size - 1)
    part = e.where(e.ge(low, size - 1), 0.0, e.sub(at, low))
    places = g.concat([low, e.clamp(e.add(low, 1), max=size - 1)], 2)
    shares = [e.where(within, v, 0.0) for v in (e.sub(1.0, part), part)]
    return places, g.concat(shares, 2), each


def _align(
    x: Node, rois: Node, scale: float, high: int, wide: int, samples: tuple[int, int],
    aligned: bool,
) -> Node:  # fmt: skip
    """[regions, channels, high, wide]: the mean of each bin's samples."""
    n, c, h, w = x.shape
    dtype = x.dtype.computed_in
    corners = e.sub(e.mul(g.cast(rois, dtype), scale), 0.5 if aligned else 0.0)
    x1, y1, x2, y2 = (_column(corners, i) for i in (1, 2, 3, 4))
    across, down = e.sub(x2, x1), e.sub(y2, y1)
    if not aligned:
        across, down = e.clamp(across, min=1.0), e.clamp(down, min=1.0)
    ys, shares_y, count_y = _taps(y1, down, high, samples[0], h)
    xs, shares_x, count_x = _taps(x1, across, wide, samples[1], w)
    first = e.mul(_here(g.cast(_column(rois, 0), DType.I64), 0, 3), h)
    columns = (rois.shape[0], high, 1, ys.shape[2], 1)
    rows = (rois.shape[0], 1, wide, 1, xs.shape[2])
    at = e.add(g.reshape(e.mul(e.add(first, ys), w), columns), g.reshape(xs, rows))
    share = e.mul(g.reshape(shares_y, columns), g.reshape(shares_x, rows))
    # Together, since whole pixels are read: each many times, and from places far apart else.
    pixels = g.contiguous(g.permute(g.cast(x, dtype), (0, 2, 3, 1)))
    pixels = g.reshape(pixels, (n * h * w, c))
    taken = e.mul(g.gather(pixels, at, 0), g.reshape(share, (*share.shape, 1)))
    count = _here(e.clamp(e.mul(count_y, count_x), min=1.0), 0, 4)
    made = e.div(r.sum(taken, (3, 4)), count)
    return g.cast(g.permute(made, (0, 3, 1, 2)), x.dtype)


def _align_backward(d: Node, rois: Node, shape: Any, *rest: Any) -> Node | None:
    x = g.full(tuple(shape), 0, d.dtype)  # the gradient does not depend on the image
    return pulled(lambda v: _align(v, rois, *rest), [x], d)[0]


_ALIGN = Row("roi_align", inlined(_align))
_ALIGN_BACKWARD = Row("_roi_align_backward", inlined(_align_backward))


def _samples(
    rois: Tensor, scale: float, high: int, wide: int, samples: int, aligned: bool
) -> tuple[int, int]:
    """How many samples a bin has along each axis; without a number (0) as many as elements, at most
    the negative of what is given here, for which the regions' sizes are waited for."""
    if samples > 0:
        return samples, samples
    if not rois.numel():
        return -1, -1
    sizes = ((rois[:, 3:] - rois[:, 1:3]) * scale).amax(0).tolist()
    least = 0.0 if aligned else 1.0
    found = [max(size, least) / bins for size, bins in zip(sizes, (wide, high), strict=True)]
    across, down = (-max(1, int(n) + 1) for n in found)
    return down, across


def _checked(x: Tensor, rois: Tensor) -> None:
    if x.dim() != 4 or rois.dim() != 2 or rois.shape[1] != 5:
        raise RuntimeError(
            f"roi_align takes images of [n, c, h, w] and regions of [k, 5], not {list(x.shape)} "
            f"and {list(rois.shape)}"
        )


def roi_align(
    x: Tensor, rois: Tensor, scale: float, high: int, wide: int, sampling_ratio: int, aligned: bool
) -> Tensor:
    _checked(x, rois)
    if not x.numel() or not rois.numel():
        return x.new_zeros(rois.shape[0], x.shape[1], high, wide)
    samples = _samples(rois, scale, high, wide, sampling_ratio, aligned)
    return call(_ALIGN, (x, rois, scale, high, wide, samples, aligned), {})[0]


def roi_align_backward(
    grad: Tensor, rois: Tensor, scale: float, high: int, wide: int, batch: int, channels: int,
    height: int, width: int, sampling_ratio: int, aligned: bool,
) -> Tensor:  # fmt: skip
    shape = (batch, channels, height, width)
    if not grad.numel():
        return grad.new_zeros(shape)
    samples = _samples(rois, scale, high, wide, sampling_ratio, aligned)
    args = (grad, rois, shape, scale, high, wide, samples, aligned)
    return call(_ALIGN_BACKWARD, args, {})[0]


# Convolutions whose windows are moved element by element


def _moved(
    x: Node,
    offset: Node,
    size: tuple[int, int],
    stride: Any,
    padding: Any,
    dilation: Any,
    sets: int,
) -> Node:
    """[n, sets, window, out_h, out_w, channels of a set]: what each element of a window reads
    between four elements, of which those outside are 0."""
    n, c, h, w = x.shape
    out_h, out_w = offset.shape[2:]
    count, axes = size[0] * size[1], 5
    moves = g.reshape(offset, (n, sets, count, 2, out_h, out_w))
    window = g.arange(count)
    at = []
    for a, (place, out) in enumerate(
        ((e.floor_divide(window, size[1]), out_h), (e.remainder(window, size[1]), out_w))
    ):
        begin = e.sub(e.mul(g.arange(out), stride[a]), padding[a])
        own = e.add(_here(begin, 3 + a, axes), _here(e.mul(place, dilation[a]), 2, axes))
        move = g.reshape(g.slice_axis(moves, 3, a, a + 1), (n, sets, count, out_h, out_w))
        at.append(e.add(move, g.cast(own, move.dtype)))
    pixels = g.contiguous(g.permute(g.reshape(x, (n, sets, c // sets, h, w)), (0, 1, 3, 4, 2)))
    pixels = g.reshape(pixels, (n * sets * h * w, c // sets))
    first = g.reshape(e.mul(g.arange(n * sets), h * w), (n, sets, 1, 1, 1))
    floors = [g.floor(v) for v in at]
    parts = [e.sub(v, f) for v, f in zip(at, floors, strict=True)]
    total: Node | None = None
    for down in (0, 1):
        for right in (0, 1):
            y, z = (
                e.add(g.cast(f, DType.I64), by) for f, by in zip(floors, (down, right), strict=True)
            )
            within = g.and_(g.and_(e.ge(y, 0), e.lt(y, h)), g.and_(e.ge(z, 0), e.lt(z, w)))
            place = e.where(within, e.add(first, e.add(e.mul(y, w), z)), -1)
            shares = [
                v if by else e.sub(1.0, v) for v, by in zip(parts, (down, right), strict=True)
            ]
            share = e.mul(*shares)
            one = e.mul(g.gather(pixels, place, 0), g.reshape(share, (*share.shape, 1)))
            total = one if total is None else e.add(total, one)
    assert total is not None, "there are four"
    return total


def _deformed(
    x: Node, weight: Node, offset: Node, mask: Node, bias: Node, stride: Any, padding: Any,
    dilation: Any, groups: int, sets: int, masked: bool,
) -> Node:  # fmt: skip
    dtype = x.dtype.computed_in
    n, c = x.shape[:2]
    filters, each, *size = weight.shape
    out = offset.shape[2:]
    read = _moved(
        g.cast(x, dtype), g.cast(offset, dtype), (size[0], size[1]), stride, padding, dilation, sets
    )
    if masked:
        read = e.mul(read, g.reshape(g.cast(mask, dtype), (*read.shape[:-1], 1)))
    count = size[0] * size[1]
    columns = g.reshape(
        g.permute(read, (0, 1, 5, 2, 3, 4)), (n, groups, c // groups * count, out[0] * out[1])
    )
    kernel = g.reshape(g.cast(weight, dtype), (groups, filters // groups, each * count))
    made = g.reshape(contract.matmul(kernel, columns), (n, filters, *out))
    made = e.add(made, g.reshape(g.cast(bias, dtype), (filters, 1, 1)))
    return g.cast(made, x.dtype)


def _deformed_backward(d: Node, *rest: Any) -> list[Node]:
    given, options = rest[:5], rest[5:]
    found = pulled(lambda *v: _deformed(*v, *options), given, d)
    return [g.full_like(v, 0) if f is None else f for v, f in zip(given, found, strict=True)]


_DEFORMED = Row("deform_conv2d", inlined(_deformed))
_DEFORMED_BACKWARD = Row("_deform_conv2d_backward", inlined(_deformed_backward))


def _options(
    stride_h: int, stride_w: int, pad_h: int, pad_w: int, dilation_h: int, dilation_w: int,
    groups: int, sets: int, masked: bool,
) -> tuple[Any, ...]:  # fmt: skip
    return (
        (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w), groups, sets, masked
    )  # fmt: skip


def deform_conv2d(
    x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, *rest: Any
) -> Tensor:
    return call(_DEFORMED, (x, weight, offset, mask, bias, *_options(*rest)), {})[0]


def deform_conv2d_backward(
    grad: Tensor, x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    args = (grad, x, weight, offset, mask, bias, *_options(*rest))
    return tuple(call(_DEFORMED_BACKWARD, args, {}))


KERNELS: dict[str, Callable[..., Any]] = {
    "nms": nms,
    "roi_align": roi_align,
    "_roi_align_backward": roi_align_backward,
    "deform_conv2d": deform_conv2d,
    "_deform_conv2d_backward": deform_conv2d_backward,
}
"""By torchvision's operator."""
