"""How a kernel is cut into instances and tiles: the problem that this is chosen for, the schedule
that is chosen, and the choices that take the place of the rules.

A schedule never changes what a kernel computes, only the order of its sums, so that results may
differ by roundings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TypeVar

from hal.core.description import DeviceInfo
from hal.core.facts import dataclass
from stack.compiler.templates.blocking import Blocks, MatmulShape


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
class Block:
    """What an instance of a product by groups of lanes computes, rows by columns, in steps of
    `depth` along k."""

    rows: int
    columns: int
    depth: int


@dataclass(frozen=True, slots=True)
class LoopSizes:
    """Sizes of a loop nest: `unroll` vector registers of one value that a pass works on at once, to
    hide the latency of arithmetic; from `rows_on_grid` rows on further parallel axes become loops
    of one instance; an instance of an elementwise kernel computes `chunk` elements; short rows that
    take several passes are made `turns` at a time, pass by pass."""

    unroll: int = 4
    rows_on_grid: int = 256
    chunk: int = 1 << 13
    turns: int = 2


@dataclass(frozen=True, slots=True)
class LoopStyle:
    """How loop nests are cut on a kind of machine."""

    lanes: Callable[[DeviceInfo, int], int]
    """lanes(info, nbytes): the elements of so many bytes that an instance computes in step."""
    sizes: LoopSizes
    """The sizes that the rules choose."""
    transfers: bool = False
    """Whether DMA fills the scratchpads of cores, for which neighbouring instances are merged."""
    squares: bool = False
    """Whether tiles have two axes where some elements lie along one and some along the other."""
    shares: bool = False
    """Whether the texts compute once what neighbours share, in fewer registers than the rest."""


Problem = MatmulShape | LoopProblem
Schedule = Blocks | Block | LoopSizes


S = TypeVar("S", bound=Schedule)


@dataclass(frozen=True, slots=True)
class Choices:
    """The schedules of problems for which the rules are not to decide.

    Raises TypeError for a schedule of another family than its problem.
    """

    schedules: Mapping[Problem, Schedule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for problem, schedule in self.schedules.items():
            if isinstance(problem, LoopProblem) is not isinstance(schedule, LoopSizes):
                raise TypeError(f"{schedule!r} is no schedule for {problem!r}")

    def get(self, problem: Problem, kind: type[S]) -> S | None:
        """The schedule of a problem, if one of this kind was chosen."""
        found = self.schedules.get(problem)
        return found if isinstance(found, kind) else None


NO_CHOICES = Choices()
