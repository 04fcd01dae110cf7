"""The facts that the emission of a kernel starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.build import Builder
from hal.tile.kernel import Memory
from hal.tile.node import Node
from stack.compiler.graph.access import Affine, Axis
from stack.compiler.graph.cluster import Nest
from stack.compiler.graph.roots import Home
from stack.compiler.templates.schedule import LoopStyle


def compute_dtype(dtype: DType) -> DType:
    """The type in which a kernel holds values of an element type."""
    return dtype.computed_in


@dataclass(frozen=True, slots=True)
class TileAxis:
    """A loop axis, or some that count as one, as a tile dimension: elements base .. base + width -
    1, those from `limit` on not valid. Where axes count as one, `base` is a multiple of `width`."""

    axis: Axis
    """The innermost one."""
    base: Node
    width: int
    limit: Node | None = None
    outer: tuple[Axis, ...] = ()
    """Those around it, outermost first."""
    within: bool = False
    """Whether elements up to the limit are of one row of the innermost axis, wherever the base
    is."""
    skip: Node | None = None
    """How many elements from the base on are not valid, where not all are: those behind them are of
    one row."""
    at: tuple[Node, ...] = ()
    """Where the base is along each of the axes, if that is known already."""

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.outer, self.axis)


@dataclass(frozen=True, slots=True)
class Position:
    """An affine value: scalar part, step along each tile dimension, and a data-dependent tile or
    None."""

    scalar: Node
    steps: tuple[int, ...]
    dynamic: Node | None


@dataclass(frozen=True, slots=True)
class Emission:
    """What all scopes of one kernel share."""

    b: Builder
    memory: Callable[[Home, Affine], tuple[Memory, int]]
    """The memory of a root for accesses at these offsets, and the offset at which it begins."""
    homes: Mapping[Node, Home]
    own: frozenset[Node]
    """The roots that this kernel computes: not to be read before they are."""
    info: DeviceInfo
    loops: LoopStyle

    def lanes(self, dtype: DType) -> int:
        """The elements of a type that an instance computes in step."""
        return self.loops.lanes(self.info, dtype.nbytes)


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel computes, and which of its roots something outside of their own loop reads."""

    nest: Nest
    stored: frozenset[Node]
