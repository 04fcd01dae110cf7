"""Operations that only move elements. The compiler's loop nest lowers them as index arithmetic."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np

from hal.tile.node import Node
from hal.tile.numeric import NUMPY
from stack.ir import build as g
from stack.ir.record import Gradient, NDArray, OpKind, OpRecord, Reference
from stack.ops.table import doubled, record, rounded

Arrays = tuple[NDArray, ...]


def _reshape(n: Node, xs: Arrays) -> NDArray:
    return xs[0].reshape(n.shape)


def _permute(n: Node, xs: Arrays) -> NDArray:
    return xs[0].transpose(n["perm"])


def _expand(n: Node, xs: Arrays) -> NDArray:
    return np.broadcast_to(xs[0], n.shape)


def _slice(n: Node, xs: Arrays) -> NDArray:
    bounds = zip(n["start"], n["stop"], n["step"], strict=True)
    return xs[0][tuple(slice(*b) for b in bounds)]


def _flip(n: Node, xs: Arrays) -> NDArray:
    return np.flip(xs[0], n["axes"])


def _pad(n: Node, xs: Arrays) -> NDArray:
    result = np.full(n.shape, n["value"], NUMPY[n.dtype])
    inner = zip(n["lo"], xs[0].shape, strict=True)
    result[tuple(slice(lo, lo + size) for lo, size in inner)] = xs[0]
    return result


def _places(n: Node, count: int, size: int) -> NDArray:
    """[window, element] to the position along the axis."""
    starts = np.arange(count)[:, None] * int(n["stride"])
    return np.asarray(starts + np.arange(size) * int(n["dilation"]))


def _window(n: Node, xs: Arrays) -> NDArray:
    axis: int = n["axis"]
    return np.take(xs[0], _places(n, *n.shape[axis : axis + 2]), axis)


def _overlap_add(n: Node, xs: Arrays) -> NDArray:
    (x,), axis = xs, n["axis"]
    total = np.zeros((n["length"], *x.shape[:axis], *x.shape[axis + 2 :]), doubled(x).dtype)
    windows = np.moveaxis(x, (axis, axis + 1), (0, 1))
    np.add.at(total, _places(n, *x.shape[axis : axis + 2]), windows)
    return rounded(np.moveaxis(total, 0, axis), n.dtype)


def _concat(n: Node, xs: Arrays) -> NDArray:
    return np.concatenate(xs, n["axis"])


def _contiguous(n: Node, xs: Arrays) -> NDArray:
    return np.ascontiguousarray(xs[0]).reshape(n.shape)


def _unreshape(n: Node, d: Node) -> tuple[Node]:
    return (g.reshape(d, n.srcs[0].shape),)


def _unpermute(n: Node, d: Node) -> tuple[Node]:
    return (g.permute(d, np.argsort(n["perm"]).tolist()),)


def _unexpand(n: Node, d: Node) -> tuple[Node]:
    grown = zip(n.srcs[0].shape, n.shape, strict=True)
    return (g.reduce("sum", d, [i for i, (a, b) in enumerate(grown) if a != b]),)


def _unslice(n: Node, d: Node) -> tuple[Node]:
    """Zeros between the elements where the step was more than 1, then zeros around."""
    (x,) = n.srcs
    if 0 in n.shape:
        return (g.full_like(x, 0),)
    for axis, step in enumerate(n["step"]):
        d = g.dilate(d, axis, step)
    hi = [size - lo - m for size, lo, m in zip(x.shape, n["start"], d.shape, strict=True)]
    return (g.pad(d, n["start"], hi),)


def _unflip(n: Node, d: Node) -> tuple[Node]:
    return (g.flip(d, n["axes"]),)


def _unpad(n: Node, d: Node) -> tuple[Node]:
    lo = n["lo"]
    return (g.slice(d, lo, [a + m for a, m in zip(lo, n.srcs[0].shape, strict=True)]),)


def _unwindow(n: Node, d: Node) -> tuple[Node]:
    axis: int = n["axis"]
    return (g.overlap_add(d, axis, n.srcs[0].shape[axis], n["stride"], n["dilation"]),)


def _windows_again(n: Node, d: Node) -> tuple[Node]:
    size = n.srcs[0].shape[n["axis"] + 1]
    return (g.window(d, n["axis"], size, n["stride"], n["dilation"]),)


def _unconcat(n: Node, d: Node) -> tuple[Node, ...]:
    axis = n["axis"]
    ends = accumulate((s.shape[axis] for s in n.srcs), initial=0)
    return tuple(g.slice_axis(d, axis, lo, hi) for lo, hi in pairwise(ends))


def _uncontiguous(n: Node, d: Node) -> tuple[Node]:
    return (d,)


def _moves(name: str, meaning: str, reference: Reference, gradient: Gradient) -> OpRecord:
    return record(name, OpKind.MOVEMENT, meaning, reference, gradient)


MOVEMENT: tuple[OpRecord, ...] = (
    _moves("reshape", "the elements in row-major order under another shape", _reshape, _unreshape),
    _moves("permute", "axis i of the result is axis perm[i] of x", _permute, _unpermute),
    _moves("expand", "axes of size 1 repeated", _expand, _unexpand),
    _moves("slice", "x[start:stop:step] on every axis", _slice, _unslice),
    _moves("flip", "x with axes reversed", _flip, _unflip),
    _moves("pad", "x surrounded by `value`", _pad, _unpad),
    _moves(
        "window",
        "along an axis windows of size elements `dilation` apart, one beginning each stride",
        _window,
        _unwindow,
    ),
    record(
        "overlap_add",
        OpKind.CONTRACT,
        "windows, as `window` gives them, added up where they came from; f16 and bf16 in f32",
        _overlap_add,
        _windows_again,
    ),
    _moves("concat", "the operands one after the other along an axis", _concat, _unconcat),
    _moves("contiguous", "x as a buffer of its own", _contiguous, _uncontiguous),
)
