"""Handles and command values of the contract. Handles are opaque: `native` belongs to the plugin
that made it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import Any

from hal.core.dtypes import DType
from hal.core.errors import Failure
from hal.core.facts import dataclass

LLVM_IR = "llvm-ir/1"
OPENCL_C = "opencl-c/1"
ATHREAD_C = "athread-c/1"
CUDA_C = "cuda-c/1"
PTX = "ptx/1"
HAL_TILE = "hal-tile/1"


class ParamKind(Enum):
    BUFFER = "buffer"
    SCALAR = "scalar"


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a program. `writes` and `reads` say what the program does to a buffer."""

    name: str
    kind: ParamKind
    dtype: DType
    reads: bool = True
    writes: bool = False


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A program as text in a named, versioned format, with the signature of its entry point.

    `options` are build options that the format's documentation names; they are part of the cache
    key. `beside` are the sources, this one among them, that are loaded one after the other or at a
    time: a device may build them together. Nothing of a program follows from it, and sources are
    equal that differ in it alone.
    """

    format: str
    text: str
    entry: str
    params: tuple[Param, ...]
    options: tuple[tuple[str, str], ...] = ()
    beside: tuple[KernelSource, ...] = field(default=(), compare=False, repr=False)

    def __hash__(self) -> int:
        return hash((self.format, self.text, self.entry))  # all else follows from the text


@dataclass(frozen=True, slots=True, eq=False)
class Handle:
    """A resource of an open device: the device's name, the epoch in which it was made, the plugin's
    payload."""

    device: str
    epoch: int
    native: Any = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Buffer(Handle):
    """`nbytes` of device memory in the space named `space`."""

    nbytes: int
    space: str

    def region(self, offset: int = 0, nbytes: int | None = None) -> Region:
        """The sub-range of `nbytes` from `offset` (the rest of the buffer without `nbytes`)."""
        return Region(self, offset, self.nbytes - offset if nbytes is None else nbytes)


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes [offset, offset + nbytes) of a buffer."""

    buffer: Buffer
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Program(Handle):
    """A loaded program: its source's entry name and parameters."""

    entry: str
    params: tuple[Param, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """A placeholder argument of a recorded launch, given at each `replay` (`Graph.slots` of
    them)."""

    index: int


Argument = Buffer | Region | int | float | bool | Slot
"""What a program parameter takes: a buffer, a part of one, a scalar, or a slot of a graph."""

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Launchable(Handle):
    """A program bound to its arguments."""

    program: Program


@dataclass(frozen=True, slots=True, eq=False)
class Graph(Handle):
    """A recorded list of commands that one call replays; `slots` arguments are given at replay."""

    commands: int
    slots: int


@dataclass(frozen=True, slots=True, eq=False)
class Timeline(Handle):
    """An ordered queue with a counter that only grows. See `create_timeline`."""

    host_driven: bool


@dataclass(frozen=True, slots=True)
class Point:
    """A value of a timeline's counter: reached once the counter is at least `value`, or failed."""

    timeline: Timeline
    value: int


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """Launch in a graph. `after` names earlier commands by index; None means all earlier ones."""

    launchable: Launchable
    grid: Grid
    after: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class CopyCommand:
    """Copy between device regions in a graph."""

    dst: Region
    src: Region
    after: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class FillCommand:
    """Fill of a region in a graph; `pattern` as in `fill`."""

    dst: Region
    pattern: bytes
    after: tuple[int, ...] | None = None


Command = LaunchCommand | CopyCommand | FillCommand


@dataclass(frozen=True, slots=True)
class AllocOptions:
    """`space` names a memory space (empty: the first GLOBAL one); `zero` asks for zeroed bytes;
    `shareable` for memory that `export_buffer` can hand to another process; `label` names the owner
    in out-of-memory reports."""

    space: str = ""
    zero: bool = False
    shareable: bool = False
    label: str = ""


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """`cache_dir` is where the plugin may keep compiled programs (empty: nowhere); `settings` are
    the plugin's own, documented by it and refused when unknown."""

    cache_dir: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SharedHandle:
    """A buffer as another process can import it: `kind` names the mechanism ("memfd"), `token` what
    it needs (for "memfd" the exporter's process id and descriptor number), `nbytes` the size."""

    kind: str
    token: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Raw allocations of one space: bytes now, most at once, and the number of `alloc` calls since
    open."""

    live_nbytes: int
    peak_nbytes: int
    allocations: int
    live_buffers: int


@dataclass(frozen=True, slots=True)
class Span:
    """When a device operation ran, in ns of the host's monotonic clock; `lane` is the device's own
    unit. `device_ns` is how long it took by a clock of the device's own, where time is not the
    host's: that of an emulated chip. None: there is no such clock."""

    name: str
    start_ns: int
    end_ns: int
    lane: int = 0
    device_ns: float | None = None


class HealthState(Enum):
    OK = "ok"
    HANGING = "hanging"
    LOST = "lost"
    RESET_REQUIRED = "reset-required"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Health:
    """A device's state; `cause` is the first failure if there is one, `epoch` counts resets."""

    state: HealthState
    epoch: int
    cause: Failure | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to inject: `failure` happens at the `nth` next call (1: the next one) of the hook
    named `hook`."""

    failure: Failure
    hook: str
    nth: int = 1


class CollectiveKind(Enum):
    """What a collective call does, for n ranks and `count` elements each.

    ALL_REDUCE, REDUCE (to the root) and BROADCAST (from the root) take and give `count` elements.
    ALL_GATHER and GATHER (to the root) take `count` and give n * count, in rank order.
    REDUCE_SCATTER and SCATTER (from the root) take n * count and give the rank's `count`.
    ALL_TO_ALL takes and gives n * count: part j of rank i becomes part i of rank j. ALL_TO_ALL_V
    is the same with parts of `Collective.counts`. Regions that a rank does not use (`dst` of
    REDUCE and GATHER off the root, `src` of BROADCAST and SCATTER off the root) may be empty and
    are not touched. A BARRIER moves nothing; its regions are empty or ignored.
    """

    ALL_REDUCE = "all-reduce"
    REDUCE = "reduce"
    BROADCAST = "broadcast"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    ALL_TO_ALL_V = "all-to-all-v"
    GATHER = "gather"
    SCATTER = "scatter"
    BARRIER = "barrier"


class ReduceKind(Enum):
    """How the ranks' elements are combined: floats in any order, the same for the result of every
    rank. Integers wrap. NaN wins in MIN and MAX.

    AVG is SUM divided by the number of ranks; for integers it is cut off towards zero. Of bools SUM
    and MAX are "or", PROD and MIN are "and", and there is no average (InvalidCall).
    """

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"
    AVG = "avg"


@dataclass(frozen=True, slots=True, eq=False)
class Group(Handle):
    """A device's membership in a communicator: its rank and the group's size."""

    rank: int
    size: int


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """`key` is equal on all members and unique per group; `peers` are the members' device names in
    rank order."""

    key: str
    rank: int
    peers: tuple[str, ...]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective call: `count` elements of `dtype` per rank, `root` where the kind has one.

    `counts` is for ALL_TO_ALL_V alone and equal on all ranks: row i has the elements that rank i
    sends to each rank. `src` of rank i has sum(counts[i]) elements, `dst` the sum of column i;
    `count` is 0.

    `parts` are the elements of each rank's part where they differ, equal on all ranks, of
    ALL_GATHER, GATHER, REDUCE_SCATTER and SCATTER; `count` is 0 then. A group that knows equal
    parts alone refuses them with Unsupported. `name` is what all ranks call the call, for messages:
    no group has to compare names.
    """

    kind: CollectiveKind
    dtype: DType
    count: int
    reduce: ReduceKind = ReduceKind.SUM
    root: int = 0
    counts: tuple[tuple[int, ...], ...] = ()
    parts: tuple[int, ...] = ()
    name: str = ""

    def __str__(self) -> str:
        name = f" ({self.name})" if self.name else ""
        return f"{self.kind.value} of {self.count} {self.dtype.short}{name}"

    def elements(self, rank: int, size: int) -> tuple[int | None, int | None]:
        """The elements of `dst` and `src` on a rank of `size`; None for one that it does not use.
        Raises IndexError for counts or parts of another number of ranks."""
        one = self.parts[rank] if self.parts else self.count
        whole = sum(self.parts) if self.parts else size * self.count
        root = rank == self.root
        match self.kind:
            case CollectiveKind.ALL_REDUCE:
                return one, one
            case CollectiveKind.REDUCE:
                return one if root else None, one
            case CollectiveKind.BROADCAST:
                return one, one if root else None
            case CollectiveKind.ALL_GATHER:
                return whole, one
            case CollectiveKind.GATHER:
                return whole if root else None, one
            case CollectiveKind.REDUCE_SCATTER:
                return one, whole
            case CollectiveKind.SCATTER:
                return one, whole if root else None
            case CollectiveKind.ALL_TO_ALL:
                return whole, whole
            case CollectiveKind.ALL_TO_ALL_V:
                return sum(row[rank] for row in self.counts), sum(self.counts[rank])
            case CollectiveKind.BARRIER:
                return None, None


@dataclass(frozen=True, slots=True)
class Operator:
    """A vendor operator: a named computation with the signature of a program.

    `conditions` maps each shape constant that `load_operator` takes to the number that it must be a
    multiple of. Names in use: "matmul" (c[m, n] = a[m, k] @ b[k, n], row-major, constants m, n, k),
    launched over the grid (1, 1, 1).
    """

    name: str
    params: tuple[Param, ...]
    conditions: Mapping[str, int] = field(default_factory=dict)


HostFunction = Callable[[], None]
Waits = Sequence[Point]
HostMemory = bytes | bytearray | memoryview
