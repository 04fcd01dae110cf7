"""Products of tiles that no registers hold: operands and sums lie on the stack, and loops go over
register tiles of the result. Written out, their text would take LLVM seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hal.core.description import MatrixUnit
from hal.tile.node import Node
from stack.compiler.text.llvm import arith, units
from stack.compiler.text.llvm.tiles import TileValues, columns, rows
from stack.compiler.text.llvm.types import register, vector
from stack.compiler.text.llvm.writer import LlvmWriter


def dot(t: TileValues, n: Node, unit: MatrixUnit | None, row: int, piece: int) -> str:
    """All pieces of the product; gives one of them."""
    a, b, acc = n.srcs
    m, depth, count = rows(n.shape), columns(a.shape), len(t.widths(n))
    across = 2 if count % 2 == 0 else 1
    # rows of a register tile, spread evenly over the tiles that the size needs
    tiles = -(-m // max(1, (max(t.registers, 8) - 3) // across))
    down = -(-m // tiles)
    kind, line = register(n.dtype), count * t.lanes
    taken, word = (unit.k, units.word_of(unit)) if unit else (1, kind)
    steps = depth // taken
    left = _Stacked(t, register(a.dtype), _up(m, down), depth)
    right = _Stacked(t, word, steps, line)
    sums = _Stacked(t, kind, _up(m, down), line)
    for r in range(m):
        for j in range(len(t.widths(a))):
            left.write(r, j, t.widths(a)[j], t.piece(a, r, j))
        for j, width in enumerate(t.widths(n)):
            sums.write(r, j, width, t.piece(acc, r, j))
    for k in range(steps):
        for j, width in enumerate(t.widths(n)):
            value = units.columns_of(t, unit, b, k * taken, j) if unit else t.piece(b, k, j)
            right.write(k, j, width, value)
    vectors = vector(kind, t.lanes)

    def tile(i: str, j: str) -> None:
        places = [(r, c) for r in range(down) for c in range(across)]
        at = [sums.at(t.out, (i, r), (j, c * t.lanes)) for r, c in places]
        first = [t.out.put(f"load {vectors}, ptr {p}, align {sums.align}") for p in at]

        def step(k: str, totals: Sequence[str]) -> list[str]:
            found = list(totals)
            beside = [
                _loaded(t.out, right, vector(word, t.lanes), (k, 0), (j, c * t.lanes))
                for c in range(across)
            ]
            elements = k if taken == 1 else t.out.put(f"mul i64 {k}, {taken}")
            for x, (r, c) in enumerate(places):
                if c == 0:
                    one = _loaded(t.out, left, word, (i, r), (elements, 0))
                    many = t.repeated(word, one, t.lanes)
                if unit is None:
                    found[x] = arith.fma(t.out, n.dtype, t.lanes, many, beside[c], found[x])
                else:
                    found[x] = units.call(t, unit, n.dtype, many, beside[c], found[x])
            return found

        totals = _loop(t.out, steps, 1, vectors, first, step)
        for p, total in zip(at, totals, strict=True):
            t.out.do(f"store {vectors} {total}, ptr {p}, align {sums.align}")

    def over_rows(j: str, _: Sequence[str]) -> list[str]:
        def one(i: str, _: Sequence[str]) -> list[str]:
            tile(i, j)
            return []

        return _loop(t.out, _up(m, down), down, vectors, [], one)

    _loop(t.out, line, across * t.lanes, vectors, [], over_rows)
    for r in range(m):
        for j, width in enumerate(t.widths(n)):
            place = sums.at(t.out, ("0", r), ("0", j * t.lanes))
            value = t.out.put(f"load {vector(kind, width)}, ptr {place}, align {sums.align}")
            t.define(n, r, j, value)
    return t.piece(n, row, piece)


class _Stacked:
    """A matrix of elements of an LLVM type on the stack. What is not written is not used."""

    def __init__(self, t: TileValues, kind: str, height: int, width: int) -> None:
        self.t, self.kind, self.width = t, kind, width
        self.align = {"double": 8, "float": 4, "half": 2}.get(kind) or int(kind[1:]) // 8
        self.base = t.out.alloca(kind, height * width, 64)

    def at(self, out: LlvmWriter, row: tuple[str, int], column: tuple[str, int]) -> str:
        """The place of an element, each of whose coordinates is the sum of two."""
        first = out.put(f"mul i64 {row[0]}, {self.width}")
        first = out.put(f"add i64 {first}, {column[0]}")
        far = out.put(f"add i64 {first}, {row[1] * self.width + column[1]}")
        return out.put(f"getelementptr {self.kind}, ptr {self.base}, i64 {far}")

    def write(self, row: int, piece: int, width: int, value: str) -> None:
        place = self.at(self.t.out, ("0", row), ("0", piece * self.t.lanes))
        kind = vector(self.kind, width)
        self.t.out.do(f"store {kind} {value}, ptr {place}, align {self.align}")


def _loaded(
    out: LlvmWriter, of: _Stacked, kind: str, row: tuple[str, int], column: tuple[str, int]
) -> str:
    return out.put(f"load {kind}, ptr {of.at(out, row, column)}, align {of.align}")


def _loop(
    out: LlvmWriter,
    stop: int,
    step: int,
    kind: str,
    first: Sequence[str],
    body: Callable[[str, Sequence[str]], list[str]],
) -> list[str]:
    """body(index, values) for 0, step, ... below stop, at least once; gives the last values."""
    before, label, after = out.block, out.label("body"), out.label("after")
    out.jump(label)
    out.begin(label)
    index, names = out.name(), [out.name() for _ in first]
    places = [out.hole() for _ in (index, *names)]
    last = body(index, names)
    following = out.put(f"add nsw i64 {index}, {step}")
    again = out.put(f"icmp slt i64 {following}, {stop}")
    end = out.block
    out.branch(again, label, after)
    values = [("i64", "0", following), *((kind, a, b) for a, b in zip(first, last, strict=True))]
    for place, name, (of, a, b) in zip(places, (index, *names), values, strict=True):
        out.fill(place, f"{name} = phi {of} [{a}, %{before}], [{b}, %{end}]")
    out.begin(after)
    return last


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
