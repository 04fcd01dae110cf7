"""Simplifications of operations that only move elements: chains become one, what changes nothing
goes away."""

from __future__ import annotations

from collections.abc import Iterator

from hal.tile.node import Node
from stack import ops as g
from stack.ir.pattern import capture, constant, number_of, op, same_number
from stack.ir.rewrite import Rows

X = capture("x")


def _full(n: Node, c: Node) -> Node:
    """A repeated constant stays one wherever its elements go."""
    value = number_of(c)
    assert value is not None
    return g.full_like(n, value)


def _plain_full(n: Node, c: Node) -> Node | None:
    """One form for repeated constants: expand of a reshape of the scalar."""
    canonical = _full(n, c)
    return None if canonical is n else canonical


def _permute(n: Node, x: Node) -> Node | None:
    """Moving axes of size 1 moves no element."""
    moved = [p for p in n["perm"] if x.shape[p] != 1]
    return g.reshape(x, n.shape) if moved == sorted(moved) else None


def _flip(n: Node, x: Node) -> Node | None:
    long = [a for a in n["axes"] if x.shape[a] > 1]
    return g.flip(x, long) if len(long) < len(n["axes"]) else None


def _bounds(n: Node) -> Iterator[tuple[int, int, int, int]]:
    """start, stop, step of a slice, and the size of the result, for each axis."""
    return zip(n["start"], n["stop"], n["step"], n.shape, strict=True)


def _slice(n: Node, x: Node) -> Node | None:
    """The whole; or a stop and a step that end with the last element taken."""
    stop = tuple(lo + (size - 1) * by + 1 if size else lo for lo, _, by, size in _bounds(n))
    step = tuple(by if size > 1 else 1 for _, _, by, size in _bounds(n))
    if stop != n["stop"] or step != n["step"] or n.shape == x.shape:
        return g.slice(x, n["start"], stop, step)
    return None


def _slice_chain(n: Node, x: Node, inner: Node) -> Node | None:
    if 0 in n.shape:
        return None
    outer = list(zip(_bounds(inner), _bounds(n), strict=True))
    start = [a[0] + b[0] * a[2] for a, b in outer]
    step = [a[2] * b[2] for a, b in outer]
    stop = [lo + (m - 1) * by + 1 for lo, by, m in zip(start, step, n.shape, strict=True)]
    return g.slice(x, start, stop, step)


def _slice_of_pad(n: Node, x: Node, inner: Node) -> Node | None:
    """A slice that takes no padding."""
    if 0 in n.shape:
        return None
    start = [lo - by for lo, by in zip(n["start"], inner["lo"], strict=True)]
    stop = [hi - by for hi, by in zip(n["stop"], inner["lo"], strict=True)]
    if min(start) < 0 or any(hi > size for hi, size in zip(stop, x.shape, strict=True)):
        return None
    return g.slice(x, start, stop, n["step"])


def _slice_of_concat(n: Node, inner: Node) -> Node | None:
    """A slice that falls into one piece."""
    axis, begin = inner["axis"], 0
    for piece in inner.srcs:
        end = begin + piece.shape[axis]
        if begin <= n["start"][axis] < n["stop"][axis] <= end:
            start, stop = (
                tuple(b - begin if i == axis else b for i, b in enumerate(n[k]))
                for k in ("start", "stop")
            )
            return g.slice(piece, start, stop, n["step"])
        begin = end
    return None


def _slice_of_expand(n: Node, x: Node) -> Node | None:
    """Slice first, repeat afterwards."""
    if 0 in n.shape:
        return None
    bounds = [(0, 1, 1) if m == 1 else b[:3] for m, b in zip(x.shape, _bounds(n), strict=True)]
    start, stop, step = zip(*bounds, strict=True)
    return g.expand(g.slice(x, start, stop, step), n.shape)


def _pad_chain(n: Node, x: Node, inner: Node) -> Node | None:
    if not same_number(n["value"], inner["value"]):
        return None
    lo, hi = ([a + b for a, b in zip(n[k], inner[k], strict=True)] for k in ("lo", "hi"))
    return g.pad(x, lo, hi, n["value"])


def _pad_of_constant(n: Node, c: Node) -> Node | None:
    value = number_of(c)
    return (
        g.full_like(n, n["value"]) if value is not None and same_number(value, n["value"]) else None
    )


def _flat_concat(n: Node) -> Node | None:
    """One concat of all the pieces of nested ones, without empty ones, neighbouring slices
    joined."""
    axis = n["axis"]
    pieces: list[Node] = []
    for s in n.srcs:
        inside = s.srcs if s.op == "concat" and s["axis"] == axis else (s,)
        for piece in inside:
            joined = _joined(pieces[-1], piece, axis) if pieces else None
            if joined is not None:
                pieces[-1] = joined
            elif piece.shape[axis]:
                pieces.append(piece)
    if tuple(pieces) == n.srcs or not pieces:
        return None
    return g.concat(pieces, axis)


def _joined(a: Node, b: Node, axis: int) -> Node | None:
    """Two slices of one tensor as one, where the second goes on where the first stops."""
    if not (a.op == b.op == "slice" and a.srcs == b.srcs):
        return None
    if a["stop"][axis] != b["start"][axis] or a["step"][axis] != 1 or b["step"] != a["step"]:
        return None
    start = tuple(a["start"][i] if i == axis else lo for i, lo in enumerate(b["start"]))
    stop = tuple(b["stop"][i] if i == axis else hi for i, hi in enumerate(a["stop"]))
    if start != a["start"] or stop != b["stop"]:
        return None
    return g.slice(a.srcs[0], start, stop, a["step"])


MOVES: Rows = (
    (op(("reshape", "expand"), constant(name="c"), name="n"), _plain_full),
    (op(("permute", "slice", "flip"), constant(name="c"), name="n"), _full),
    (op("reshape", X, name="n", when=lambda n: n.shape == n.srcs[0].shape), lambda n, x: x),
    (op("reshape", op("reshape", X), name="n"), lambda n, x: g.reshape(x, n.shape)),
    (op("expand", X, name="n", when=lambda n: n.shape == n.srcs[0].shape), lambda n, x: x),
    (op("expand", op("expand", X), name="n"), lambda n, x: g.expand(x, n.shape)),
    (
        op("permute", op("permute", X, name="inner"), name="n"),
        lambda n, x, inner: g.permute(x, [inner["perm"][p] for p in n["perm"]]),
    ),
    (op("permute", X, name="n"), _permute),
    (
        op("flip", op("flip", X, name="inner"), name="n"),
        lambda n, x, inner: g.flip(x, sorted({*n["axes"]} ^ {*inner["axes"]})),
    ),
    (op("flip", X, name="n"), _flip),
    (op("slice", X, name="n"), _slice),
    (op("slice", op("slice", X, name="inner"), name="n"), _slice_chain),
    (op("slice", op("pad", X, name="inner"), name="n"), _slice_of_pad),
    (op("slice", op("concat", name="inner"), name="n"), _slice_of_concat),
    (op("slice", op("expand", X), name="n"), _slice_of_expand),
    (op("pad", X, name="n"), lambda n, x: x if n.shape == x.shape else None),
    (op("pad", constant(name="c"), name="n"), _pad_of_constant),
    (op("pad", op("pad", X, name="inner"), name="n"), _pad_chain),
    (op("concat", name="n"), _flat_concat),
    (op("contiguous", op("contiguous", name="x")), lambda x: x),
)
"""Movement."""
