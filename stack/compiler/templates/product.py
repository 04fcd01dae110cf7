"""A product as its templates see it: sizes, elements, and how tiles are loaded and stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.build import Builder, Operand, binary, cast, index, transpose, where
from hal.tile.kernel import Memory
from hal.tile.node import Node
from hal.tile.size import is_one
from stack.compiler.templates.blocking import MatmulShape
from stack.compiler.templates.edges import Limits

Place = Node | tuple[Node, Node]
"""A number along a group of axes, or the numbers along all but the innermost and along that one."""

LoadTile = Callable[[Builder, Node, Node, Place, tuple[int, int], Limits], Node]
"""load(builder, batch, row, column, shape, limits): the tile of the operand at (row, column), zero
from the limits on (None: all of it is inside), in the operand's element type or already in the
accumulator's."""

Epilogue = Callable[[Builder, Node, Node, Place, Node, Limits], None]
"""epilogue(builder, tile, batch, m, n, limits): store the tile of C at (m, n), up to the limits."""


@dataclass(frozen=True, slots=True)
class Elements:
    """What a product's operands are of."""

    stored: DType
    """The wider of their types in memory."""
    multiplied: DType
    """The type that is multiplied."""
    values: int = 0
    """Tiles that the epilogue reads and computes."""


class ByPieces(Protocol):
    """An operand that lies unevenly, whose tiles are copied piece by piece."""

    @property
    def dtype(self) -> DType:
        """The type of an element in memory."""

    def tile(
        self,
        panel: Memory,
        batch: Node,
        starts: tuple[Node, Node],
        shape: tuple[int, int],
        limits: Limits,
    ) -> Node:
        """The tile at (row, column) by way of a panel of its size in scratch memory; zero from the
        limits on."""


@dataclass(frozen=True, slots=True)
class Steady:
    """The depth of an operand as two numbers, outer * count + inner, along one of which its
    elements lie evenly and none is left out: where the others are is found once for all of it."""

    count: int
    along: int
    """Which of the two it is: 0 or 1."""
    load: Callable[[Builder, Node, Node, tuple[Node, Node], int, Node | None, Node | None], Node]
    """load(builder, batch, row, depth, rows, most, skip): the column of A of so many rows from a
    row on, as a row, zero from the `most`th on and before the `skip`th one; what is between is of
    one run."""


@dataclass(frozen=True, slots=True)
class InPlace:
    """Columns of A within a run of rows, of which no element is left out, as they lie in memory."""

    sizes: tuple[int, ...]
    """Those of the axes that k counts, without the one of neighbours that a unit takes together."""
    load: Callable[[Builder, Node, Node, Sequence[Node], tuple[int, int]], Node]
    """load(builder, batch, row, depth, shape): from a row and the numbers along those axes on."""


@dataclass(frozen=True, slots=True)
class Inner:
    """Tiles of an operand of which no element is left out."""

    holds: Callable[[Node, Node, Place, tuple[int, int]], Node | None]
    """holds(batch, row, column, shape): whether the tile is one; None where that is not known."""
    load: LoadTile
    """For such tiles."""


@dataclass(frozen=True, slots=True)
class Product:
    """C = A @ B, to be emitted. The epilogue is called for tiles that cover C once."""

    shape: MatmulShape
    elements: Elements
    load_a: LoadTile
    """For tiles at (m, k)."""
    load_b: LoadTile
    """For tiles at (k, n)."""
    epilogue: Epilogue
    a_uneven: bool = False
    """Whether rows of A lie unevenly, or columns where its elements are neighbours along m: then
    they are better loaded one by one."""
    b_uneven: bool = False
    """Whether rows of B do."""
    b_panels: int = 0
    """How wide the panels are in which B lies in memory as it is packed: so many columns of a row
    are neighbours, and the row of the same columns at the next k follows; 0: it lies otherwise."""
    pieces_a: ByPieces | None = None
    """How tiles of A come where they are no blocks of its memory."""
    pieces_b: ByPieces | None = None
    """How tiles of B do."""
    steady_a: Steady | None = None
    """How columns of A are packed that lie unevenly."""
    in_place_a: InPlace | None = None
    """How columns of A are read that need not be packed."""
    inner_a: Inner | None = None
    """How tiles of A are loaded that no edge cuts, where some are cut."""
    a_plain: bool = False
    """Whether an element of A is one of memory, wherever its tiles are: these may be asked for
    before they are loaded."""
    is_there: Callable[[Node], Node] | None = None
    """Whether a batch has operands: where not, C is zero there, and they need not be read. None:
    every batch has."""


def kept(tile: Node, dtype: DType) -> Node:
    """The tile in the type of packed operands: what was read in it and widened, as it was read."""
    if tile.op == "cast" and tile.srcs[0].dtype is dtype:
        return tile.srcs[0]
    if tile.op == "transpose":
        return transpose(kept(tile.srcs[0], dtype), tile["perm"])
    return cast(tile, dtype)


def divided(i: Node, n: int) -> tuple[Node, Node]:
    """Quotient and remainder."""
    return (i, index(0)) if is_one(n) else (binary("div", i, n), binary("rem", i, n))


def depth_of(p: Product, batch: Node) -> Operand:
    """Where the loop over the depth of a batch ends: at once where it has no operands."""
    depth = p.shape.k
    return depth if p.is_there is None else where(p.is_there(batch), index(depth), 0)
