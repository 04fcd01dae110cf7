"""What the tuning process and the process that measures say to each other: values, pickled."""

from __future__ import annotations

from enum import Enum

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.core.values import Grid, KernelSource


class Stage(Enum):
    """Where a candidate was refused."""

    BUILD = "build"
    LAUNCH = "launch"
    RESULT = "result"
    HANG = "hang"
    CRASH = "crash"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a candidate cannot be chosen. `lasting` tells that the process which said so may be
    damaged and must not measure any more."""

    stage: Stage
    reason: str
    lasting: bool = False

    def __str__(self) -> str:
        return f"{self.stage.value}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Extent:
    """A buffer of a problem; `written` tells that its bytes are a result, `index` that its numbers
    may say where others are."""

    nbytes: int
    dtype: DType
    written: bool
    index: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate's program, its grid, and the number of the buffer of each parameter."""

    source: KernelSource
    grid: Grid
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BeginProblem:
    """Forget the problem before and make the buffers of another one."""

    extents: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class Prepare:
    """Build candidate `number`, run it and compare its results with those of candidate 0, which is
    prepared first. Answered with the least seconds of further runs, or a refusal."""

    number: int
    trial: Trial


@dataclass(frozen=True, slots=True)
class Repeat:
    """Run a prepared candidate `repeats` times, a few times over. Answered with the seconds of one
    run when it went fastest."""

    number: int
    repeats: int


Order = BeginProblem | Prepare | Repeat
Answer = float | Refusal
