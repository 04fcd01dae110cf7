"""How a kernel is cut into instances and tiles: the problem that this is chosen for, the schedule
that is chosen, and the choices that take the place of the rules.

A schedule never changes what a kernel computes, only the order of its sums, so that results may
differ by roundings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hal.core.description import DeviceInfo
from stack.compiler.blocking import Blocks, MatmulShape
from stack.compiler.group_matmul import Block
from stack.compiler.lanes import by_transfers, in_groups


@dataclass(frozen=True, slots=True)
class LoopProblem:
    """A loop nest: its kernel's name, a digest of its signature, the elements of its domain, those
    of its parallel axes but for the innermost one, and those of the innermost axis if it is
    parallel too."""

    name: str
    digest: str
    elements: int
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class LoopSizes:
    """Sizes of a loop nest: `unroll` vector registers of one value that a pass works on at once, to
    hide the latency of arithmetic; from `rows_on_grid` rows on further parallel axes become loops
    of one instance; an instance of an elementwise kernel computes `chunk` elements."""

    unroll: int = 4
    rows_on_grid: int = 256
    chunk: int = 1 << 13


DEFAULT_SIZES = LoopSizes()
GROUP_SIZES = LoopSizes(rows_on_grid=1 << 16, chunk=1 << 11)
"""For groups of lanes, of which a device wants many at once."""


TRANSFER_SIZES = LoopSizes(rows_on_grid=1 << 20, chunk=1 << 10)
"""For cores whose scratchpads are filled by DMA: the lowering makes one transfer for many instances
of a core, so that they may be small, and all cores have some."""


def default_sizes(info: DeviceInfo) -> LoopSizes:
    """The sizes that the rules choose for a device."""
    if in_groups(info):
        return GROUP_SIZES
    return TRANSFER_SIZES if by_transfers(info) else DEFAULT_SIZES


Problem = MatmulShape | LoopProblem
Schedule = Blocks | Block | LoopSizes


@dataclass(frozen=True, slots=True)
class Choices:
    """The schedules of problems for which the rules are not to decide."""

    products: Mapping[MatmulShape, Blocks] = field(default_factory=dict)
    group_products: Mapping[MatmulShape, Block] = field(default_factory=dict)
    loops: Mapping[LoopProblem, LoopSizes] = field(default_factory=dict)

    @classmethod
    def of(cls, pairs: Mapping[Problem, Schedule]) -> Choices:
        """Each schedule with its family. Raises TypeError for one of another family than its
        problem."""
        products: dict[MatmulShape, Blocks] = {}
        group_products: dict[MatmulShape, Block] = {}
        loops: dict[LoopProblem, LoopSizes] = {}
        for problem, schedule in pairs.items():
            match problem, schedule:
                case MatmulShape(), Blocks():
                    products[problem] = schedule
                case MatmulShape(), Block():
                    group_products[problem] = schedule
                case LoopProblem(), LoopSizes():
                    loops[problem] = schedule
                case _:
                    raise TypeError(f"{schedule!r} is no schedule for {problem!r}")
        return cls(products, group_products, loops)


NO_CHOICES = Choices()
