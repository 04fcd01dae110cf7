"""Tile values as LLVM vectors, computed piece by piece when they are first asked for.

A tile of shape [..., c] is `rows` rows of c elements; a row is pieces of `lanes` elements and a
narrower tail. A piece of one element is a scalar. Asking late keeps few values alive: a store walks
its pieces and each walks back to the loads. What was computed is kept for the scope (loop body,
branch) in which it was computed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import field
from functools import cache

from hal.core.description import MatrixUnit
from hal.core.facts import dataclass
from hal.tile.kernel import Gather, Load, Store
from hal.tile.node import Node
from hal.tile.ops import ELEMENTWISE
from stack.compiler.text.llvm.arith import HAS
from stack.compiler.text.llvm.bounds import Range
from stack.compiler.text.llvm.choices import words_of
from stack.compiler.text.llvm.types import is_constant, register, splat_constant, vector
from stack.compiler.text.llvm.writer import LlvmWriter
from stack.compiler.text.math import FUNCTIONS
from stack.compiler.text.primitive import SCALE, definition


@cache
def rows(shape: tuple[int, ...]) -> int:
    """The number of rows of a tile."""
    count = 1
    for d in shape[:-1]:
        count *= d
    return count


def columns(shape: tuple[int, ...]) -> int:
    """The number of elements of a row."""
    return shape[-1] if shape else 1


@cache
def widths(count: int, lanes: int) -> tuple[int, ...]:
    """The widths of the pieces of a row of `count` elements."""
    tail = count % lanes
    return (lanes,) * (count // lanes) + ((tail,) if tail else ())


@dataclass(slots=True)
class Environment:
    """What names mean: the pointers of memories, scalar parameters and program indices, the
    statement behind each loaded variable, the unit in whose tile registers a node is, the limits
    known to reach a size, and of stores that may go past the caches whether the launch writes
    enough for that. `steps` and `extents` are what `lines` has found out about positions; `ahead`
    says by how many bytes loads ask ahead, `asked` which ones do nothing else."""

    pointers: dict[str, str] = field(default_factory=dict)
    scalars: dict[str, str] = field(default_factory=dict)
    program: tuple[str, ...] = ()
    grid: tuple[str, ...] = ()
    loads: dict[Node, Load | Gather] = field(default_factory=dict)
    aliases: dict[Node, Node] = field(default_factory=dict)
    turned: dict[Node, Node | None] = field(default_factory=dict)
    tiled: dict[Node, MatrixUnit] = field(default_factory=dict)
    ranges: dict[Node, Range] = field(default_factory=dict)
    assumed: dict[Node, int] = field(default_factory=dict)
    streamed: dict[Store, str] = field(default_factory=dict)
    steps: dict[Node, int | None] = field(default_factory=dict)
    extents: dict[Node, float] = field(default_factory=dict)
    ahead: Mapping[Load, int] = field(default_factory=dict)
    asked: Set[Load] = frozenset()


_STEPS = ELEMENTWISE | {SCALE}


def _steps(root: Node, definition: Callable[[Node], Node | None]) -> Iterator[Node]:
    """The elementwise operations of an expression, each after those that it needs."""
    stack, seen = [(root, False)], set()
    while stack:
        n, ready = stack.pop()
        if ready:
            yield n
        elif n.op in _STEPS and n not in seen:
            seen.add(n)
            stack.append((n, True))
            simpler = definition(n)
            below = n.srcs if simpler is None else (simpler,)
            if words_of(n):  # of tiles with other pieces
                below = ()
            stack.extend((s, False) for s in reversed(below))


Rule = Callable[["TileValues", Node, int, int], str]
"""Computes the piece (row, piece index), or the element (row, column), of a node."""

_ROW = 1 << 20


class TileValues:
    """The values of tile nodes, with one rule for each operator.

    `piece_rules` must have every operator; `element_rules` those whose single elements are cheaper
    than a piece. `unit_of` gives the matrix unit that computes a product, `scale` is the function
    that multiplies by powers of two (`DeviceInfo.scale`), "" where there is none, and how many.
    `masked` are the bytes of the least elements that hardware leaves out by a mask.
    """

    def __init__(
        self,
        out: LlvmWriter,
        lanes: int,
        registers: int,
        interleave: int,
        piece_rules: Mapping[str, Rule],
        element_rules: Mapping[str, Rule],
        unit_of: Callable[[Node], MatrixUnit | None] = lambda _: None,
        scale: tuple[str, int] = ("", 0),
        masked: int = 4,
    ) -> None:
        self.out = out
        self.lanes = lanes
        self.registers = registers
        self.interleave = interleave
        self.env = Environment()
        self.unit_of = unit_of
        self.scale, self.masked = scale, masked
        self._has = HAS | {SCALE} if scale[0] else HAS
        self._piece_rules = piece_rules
        self._element_rules = element_rules
        self._pieces: dict[Node, dict[int, str]] = {}
        self._elements: dict[Node, dict[int, str]] = {}
        self._memo: dict[Hashable, str] = {}
        self._definitions: dict[Node, Node | None] = {}
        self._orders: dict[Node, tuple[Node, ...]] = {}
        self._trail: list[tuple[dict[int, str], int] | None] = []
        self._keys: list[Hashable] = []

    @property
    def masked_loads(self) -> int:
        """The bytes of the least elements that loads leave out by a mask. Where there are masks for
        halves, there are some for bytes; stores do without these (`store_some`)."""
        return self.masked if self.masked > 2 else 1

    # scopes

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Forget at the end what was computed inside: it does not dominate what follows."""
        mark = len(self._trail)
        yield
        while len(self._trail) > mark:
            last = self._trail.pop()
            if last is None:
                del self._memo[self._keys.pop()]
            else:
                del last[0][last[1]]

    def once(self, key: Hashable, make: Callable[[], str]) -> str:
        """The operand kept under a key in this scope, made at the first call."""
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = make()
            self._keys.append(key)
            self._trail.append(None)
        return found

    # values

    def widths(self, n: Node) -> tuple[int, ...]:
        """The widths of a row's pieces."""
        return widths(columns(n.type.shape), self.lanes)

    def define(self, n: Node, row: int, piece: int, value: str) -> None:
        """Say what a piece is."""
        cells = self._pieces.setdefault(n, {})
        key = row * _ROW + piece
        if key not in cells:
            self._trail.append((cells, key))
        cells[key] = value

    def piece(self, n: Node, row: int, piece: int) -> str:
        """The operand of a piece."""
        cells = self._pieces.get(n)
        if cells is None:
            cells = self._pieces[n] = {}
        key = row * _ROW + piece
        found = cells.get(key)
        if found is None:
            found = self._piece_rules[n.op](self, n, row, piece)
            if key not in cells:
                cells[key] = found
                self._trail.append((cells, key))
        return found

    def has_piece(self, n: Node, row: int, piece: int) -> bool:
        """Whether the piece is computed."""
        return row * _ROW + piece in self._pieces.get(n, ())

    def scalar(self, n: Node) -> str:
        """The operand of a scalar node."""
        return self.piece(n, 0, 0)

    def definition(self, n: Node) -> Node | None:
        """The expression that a function is computed by, step by step; None for all else."""
        if n.op not in FUNCTIONS:
            return None
        if n not in self._definitions:
            self._definitions[n] = definition(n, self._has)
        return self._definitions[n]

    def together(self, n: Node, places: Sequence[tuple[int, int]]) -> None:
        """Compute pieces (row, piece), `self.interleave` at a time operation by operation: a core
        then has that many independent chains to work on."""
        # The elementwise operations that a piece of an expression takes, in order.
        order = self._orders.get(n)
        if order is None:
            order = self._orders[n] = tuple(_steps(n, self.definition))
        for i in range(0, len(places), self.interleave):
            group = places[i : i + self.interleave]
            for step in order:
                for row, piece in group:
                    self.piece(step, row, piece)

    def beside(self, n: Node, row: int, piece: int) -> str:
        """The operand of a piece, which is computed together with those beside it."""
        if n.op in ELEMENTWISE and not self.has_piece(n, row, piece):
            places = self.places(n)
            first = row * len(self.widths(n)) + piece
            first -= first % self.interleave
            self.together(n, places[first : first + self.interleave])
        return self.piece(n, row, piece)

    def places(self, n: Node) -> list[tuple[int, int]]:
        """Where the pieces of a tile are, row by row."""
        count = len(self.widths(n))
        return [(r, j) for r in range(rows(n.shape)) for j in range(count)]

    def pieces(self, n: Node) -> list[str]:
        """All pieces, row by row."""
        places = self.places(n)
        self.together(n, places)
        return [self.piece(n, r, j) for r, j in places]

    def piece_types(self, n: Node) -> list[str]:
        """The LLVM types of `pieces`."""
        scalar = register(n.dtype)
        return [vector(scalar, w) for w in self.widths(n)] * rows(n.shape)

    def define_all(self, n: Node, values: list[str]) -> None:
        """Say what all pieces are, in the order of `pieces`."""
        count = len(self.widths(n))
        for i, value in enumerate(values):
            self.define(n, i // count, i % count, value)

    def element(self, n: Node, row: int, column: int) -> str:
        """The operand of a single element."""
        if columns(n.shape) == 1:
            return self.piece(n, row, 0)
        cells = self._elements.setdefault(n, {})
        key = row * _ROW + column
        found = cells.get(key)
        if found is None:
            rule = self._element_rules.get(n.op)
            if rule is not None and not self.has_piece(n, row, column // self.lanes):
                found = rule(self, n, row, column)
            else:
                found = self.extract(n, row, column)
            cells[key] = found
            self._trail.append((cells, key))
        return found

    def extract(self, n: Node, row: int, column: int) -> str:
        """An element taken out of its piece."""
        j, lane = divmod(column, self.lanes)
        piece = self.piece(n, row, j)
        width = self.widths(n)[j]
        if width == 1:
            return piece
        kind = vector(register(n.dtype), width)
        return self.out.put(f"extractelement {kind} {piece}, i64 {lane}")

    def splat(self, scalar: str, value: str, width: int) -> str:
        """A scalar operand of LLVM type `scalar` repeated over `width` lanes."""
        if width == 1:
            return value
        if is_constant(value):
            return splat_constant(scalar, value, width)
        return self.once(("splat", value, width), lambda: self.repeated(scalar, value, width))

    def repeated(self, scalar: str, value: str, width: int) -> str:
        """The same by instructions of its own: for an operand that is asked for once."""
        kind = vector(scalar, width)
        first = self.out.put(f"insertelement {kind} poison, {scalar} {value}, i64 0")
        return self.out.put(
            f"shufflevector {kind} {first}, {kind} poison, <{width} x i32> zeroinitializer"
        )

    def register(self, n: Node, piece: int) -> tuple[str, int]:
        """The LLVM scalar type and the width of a piece."""
        return register(n.dtype), self.widths(n)[piece]
