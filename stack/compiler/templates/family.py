"""The templates by which kernels are made for a kind of machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic

from hal.core.description import DeviceInfo, MatrixUnit
from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.core.values import Grid
from hal.tile.build import Builder
from hal.tile.node import Node
from stack.compiler.graph.attention import Attention
from stack.compiler.graph.prepare import NOWHERE, Across
from stack.compiler.graph.windows import Reading
from stack.compiler.templates.blocking import MatmulShape, part_beyond, part_of_run, round_up
from stack.compiler.templates.emission import Emission, Work
from stack.compiler.templates.product import Product
from stack.compiler.templates.schedule import LoopStyle, S, Schedule

UnitsOf = Callable[[DType, DType, DType, DeviceInfo], Sequence[MatrixUnit]]
"""The matrix units for operands and sums of these types."""


@dataclass(frozen=True, slots=True)
class Search(Generic[S]):
    """The schedules that a product may have."""

    schedule: type[S]
    """What a schedule is."""
    cost: Callable[[MatmulShape, DeviceInfo], float]
    """What a model says that the rules' schedule costs."""
    costs: Callable[[MatmulShape, DeviceInfo], Mapping[Schedule, float]]
    """Every candidate with its cost, the rules' own first."""


@dataclass(frozen=True, slots=True)
class ProductTemplate(Generic[S]):
    """How products are computed."""

    emit: Callable[[Builder, Product, DeviceInfo, S | None], Grid]
    """Emit a product by a schedule (None: the rules') and give its launch grid, with a 0 where C is
    empty."""
    search: Search[S] | None = None
    """None where the rules alone decide."""
    units: UnitsOf = lambda *_: ()
    """The matrix units for operands and sums of these types that it can use, the best first."""
    packed: Callable[[int, int], bool] = lambda m, k: True
    """Whether a right operand is packed for a unit of floats where so many rows of so many elements
    are multiplied by it."""
    across: Callable[[DeviceInfo], Across] = lambda info: NOWHERE
    """By which matrices a row is multiplied so, too."""
    uneven_rows: bool = False
    """Whether of two operands the one that lies unevenly is better the left one, whose elements are
    used one by one: tiles of it may have any number of rows."""
    panels: Callable[[Node, DeviceInfo], int] | None = None
    """The width of the panels in which a right operand that many products share is best kept, for a
    product of the graph (0: as it is); None: it is read in any order."""

    def reading(self, info: DeviceInfo) -> Reading:
        """How products of a graph are read."""

        def units(n: Node) -> Sequence[MatrixUnit]:
            left, right = n.srcs
            return self.units(left.dtype, right.dtype, n.dtype.computed_in, info)

        def in_place(n: Node, run: int, columns: int) -> int:
            total, found = n.dtype.computed_in, units(n)
            plain = found[0].inputs if found else total
            fits = all(s.dtype is plain for s in n.srcs) and not any(u.register for u in found)
            lanes = max(1, info.limits.vector_nbytes // total.nbytes)
            if not (self.uneven_rows and fits):
                return 0
            if part_of_run(run, columns, lanes, info):
                return run
            part = part_beyond(run, columns, lanes, info)
            return round_up(run, part) if part else 0

        return Reading(lambda n: max((u.together for u in units(n)), default=1), in_place)


@dataclass(frozen=True, slots=True)
class Templates:
    """How the kernels of a kind of machine are made."""

    product: ProductTemplate[Any]
    loops: LoopStyle
    attention: Callable[[Attention, Work, Emission], Grid] | None = None
    """How softmax(scores) @ v is computed as one kernel; None: as products and loops."""
    suits: Callable[[Node, DeviceInfo], bool] = lambda n, info: True
    """Whether an attention is better so than as products and loops."""
    gradients: bool = False
    """Whether that has a kernel for gradients, too."""
    sizes: bool = False
    """Whether sizes may be data."""
