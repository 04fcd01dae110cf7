"""Matrices whose rows are another's columns, and the shuffles that turn them."""

from __future__ import annotations

from collections.abc import Sequence

from hal.tile.build import broadcast
from hal.tile.node import Node, node, toposort
from hal.tile.ops import ELEMENTWISE
from stack.compiler.text.llvm.tiles import TileValues
from stack.compiler.text.llvm.types import vector


def turned(t: TileValues, x: Node) -> Node | None:
    """What a matrix is the transpose of, or made of by operations on elements alone; None where it
    is not known to be one."""
    for n in () if x in t.env.turned else toposort([x]):  # deeper than Python calls functions
        if n not in t.env.turned:
            t.env.turned[n] = _turned(t, n)
    return t.env.turned[x]


def straight(t: TileValues, x: Node) -> Node:
    """The same matrix, without the transpose that it is if what that turns is one, too."""
    while x.op == "transpose" and x["perm"] == (1, 0):
        below = turned(t, x.srcs[0])
        if below is None:
            break
        x = below
    return x


def _turned(t: TileValues, x: Node) -> Node | None:
    x = t.env.aliases.get(x, x)
    if x.op == "transpose" and x["perm"] == (1, 0):
        same = turned(t, x.srcs[0])
        return x.srcs[0] if same is None else turned(t, same)
    if len(x.shape) != 2:
        return None
    if x.op == "broadcast" and x.srcs[0].type.size == 1:
        return broadcast(x.srcs[0], x.shape[::-1])
    if x.op not in ELEMENTWISE:
        return None
    below = [turned(t, s) for s in x.srcs]
    found = tuple(s for s in below if s is not None)
    if len(found) < len(below):
        return None
    return node(x.op, x.type.with_shape(x.shape[::-1]), found, **dict(x.attrs))


def shuffle(t: TileValues, kind: str, a: str, b: str, lanes: Sequence[int | None]) -> str:
    """Lanes of the concatenation of two vectors; None: whatever it be."""
    mask = ", ".join("i32 poison" if i is None else f"i32 {i}" for i in lanes)
    return t.out.put(f"shufflevector {kind} {a}, {kind} {b}, <{len(lanes)} x i32> <{mask}>")


def resized(t: TileValues, scalar: str, value: str, old: int, new: int) -> str:
    """A vector with lanes cut off or undefined ones appended."""
    if old == new:
        return value
    if old == 1:
        return t.out.put(f"insertelement {vector(scalar, new)} poison, {scalar} {value}, i64 0")
    kind = vector(scalar, old)
    if new == 1:
        return t.out.put(f"extractelement {kind} {value}, i64 0")
    return shuffle(t, kind, value, "poison", [i if i < old else None for i in range(new)])


def interleaved(t: TileValues, scalar: str, values: Sequence[str], width: int) -> str:
    """The vector of the first elements of up to four vectors, then the second ones, and so on."""
    count = len(values)
    if count > 2:  # two vectors of two each, the last of which may be of one and nothing
        both, kind = range(2 * width), vector(scalar, width)
        pairs = [(values[i], values[i + 1] if i + 1 < count else "poison") for i in (0, 2)]
        values, width = [shuffle(t, kind, a, b, both) for a, b in pairs], 2 * width
    apart = width * len(values) // (count + count % 2)
    lanes = [i % count * apart + i // count for i in range(count * apart)]
    return shuffle(t, vector(scalar, width), values[0], values[1], lanes)


def square(t: TileValues, scalar: str, source: list[str]) -> list[str]:
    """The transposed vectors of a square: inside groups of four lanes by the interleaving that
    hardware has, then by exchanging whole groups."""
    lanes = len(source)
    kind = vector(scalar, lanes)
    values, distance = source, 1
    if lanes >= 4:
        values = [v for i in range(0, lanes, 4) for v in _fours(t, kind, lanes, source[i : i + 4])]
        distance = 4
    while distance < lanes:
        values = _exchange(t, kind, values, distance)
        distance *= 2
    return values


def _fours(t: TileValues, kind: str, lanes: int, values: Sequence[str]) -> list[str]:
    """Transpose the 4 x 4 blocks of four rows."""

    def pick(a: str, b: str, pattern: Sequence[int]) -> str:
        """Of each group of four lanes; 4 and above count in b."""
        picked = [g + (p if p < 4 else lanes + p - 4) for g in range(0, lanes, 4) for p in pattern]
        return shuffle(t, kind, a, b, picked)

    a, b, c, d = values
    low = pick(a, b, (0, 4, 1, 5)), pick(c, d, (0, 4, 1, 5))
    high = pick(a, b, (2, 6, 3, 7)), pick(c, d, (2, 6, 3, 7))
    return [pick(*pair, half) for pair in (low, high) for half in ((0, 1, 4, 5), (2, 3, 6, 7))]


def _exchange(t: TileValues, kind: str, values: list[str], distance: int) -> list[str]:
    """Swap the off-diagonal runs of `distance` lanes between rows that lie `distance` apart."""
    lanes = len(values)
    result = list(values)
    for i in range(lanes):
        if i & distance:
            continue
        a, b = values[i], values[i + distance]
        low = [k if not k & distance else lanes + k - distance for k in range(lanes)]
        high = [k + distance if not k & distance else lanes + k for k in range(lanes)]
        result[i] = shuffle(t, kind, a, b, low)
        result[i + distance] = shuffle(t, kind, a, b, high)
    return result
