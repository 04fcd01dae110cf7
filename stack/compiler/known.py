"""What was compiled for a device before: a graph that has parts of earlier ones, as the second step
of a training has, which makes its optimizer's state no more, compiles the others alone."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

from hal.core.facts import dataclass
from hal.core.values import Grid, KernelSource

if TYPE_CHECKING:
    from hal.tile.kernel import Kernel

KERNELS = 512
"""How many kernels that were met last are known at least, and twice as many at most."""

T = TypeVar("T")


class Recent(Generic[T]):
    """Values by their keys, of which those that were met last are kept. Several threads may ask and
    put."""

    def __init__(self, least: int = KERNELS) -> None:
        self._least = least
        self._now: dict[Hashable, T] = {}
        self._before: dict[Hashable, T] = {}

    def get(self, key: Hashable) -> T | None:
        """What was put there last, or None."""
        found = self._now.get(key)
        if found is None and (found := self._before.get(key)) is not None:
            self.put(key, found)
        return found

    def put(self, key: Hashable, value: T) -> None:
        """Keep a value."""
        if len(self._now) >= self._least:
            self._before, self._now = self._now, {}
        self._now[key] = value


@dataclass(frozen=True, slots=True)
class Emitted:
    """A kernel, its grid, the number of the place of each of its buffers, and its sizes."""

    kernel: Kernel
    grid: Grid
    numbers: tuple[int, ...]
    sizes: tuple[int, ...]


class Known:
    """The kernels of a device and of one set of choices, by what they compute, and their sources.
    Those whose sizes are data are not among them: the conditions that were found when they were
    made belong to their graph."""

    def __init__(self) -> None:
        self.kernels: Recent[Emitted] = Recent()
        self.sources: Recent[KernelSource] = Recent()
