"""What a device says about itself: plain facts, the same for a laptop's CPU and a supercomputer's
core group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from hal.core.dtypes import DType
from hal.core.facts import dataclass

CONTRACT_VERSION = 1
"""The version of the contract in this package. A plugin declares the inclusive range that it
speaks."""


FUNCTIONS = ("add", "mul", "div", "sqrt", "fma", "exp", "log", "sin", "cos", "tanh", "erf", "pow")
"""The float32 functions whose error a `NumericProfile` bounds."""

LARGE_NBYTES = 16 << 20
"""The size of one buffer in the bandwidths of `PERFORMANCE`."""

PERFORMANCE: Mapping[str, str] = {
    "launch_s": "seconds from `launch` to its return, an empty program on an idle timeline",
    "round_trip_s": "seconds from `launch` of an empty program to the end of `wait` for it",
    "alloc_s": "seconds of `alloc` of 64 KiB and its `free`",
    "load_s": "seconds of `load` of a new text of the vector addition, an element by an instance, "
    "no cache directory",
    "host_to_device": "bytes/s of `copy` from host memory of LARGE_NBYTES, to the end of its wait",
    "device_to_host": "bytes/s of `copy` to host memory of LARGE_NBYTES, to the end of its wait",
    "device_to_device": "bytes/s of `copy` from buffer to buffer of LARGE_NBYTES, to the end",
    "queue_depth": "operations that can be submitted to one timeline behind an unreached wait",
    "overlap": "time of a copy and a vector addition, each of LARGE_NBYTES, one after the other, "
    "over that on two timelines",
    "all_reduce": "bytes/s per rank, LARGE_NBYTES of float32 sums over every device of the plugin",
}
"""What each key of `DeviceInfo.declared` means.

A time or bandwidth is the median of at least 9 tries, each on freshly allocated buffers that were
written once before. A measured figure MUST be at most 30 % worse than the declared one and at most
twice as good [declared.performance]. A device leaves out what it has not, such as `all_reduce` with
one device or `overlap` with one queue. A `queue_depth` beyond twice the declared one counts as
twice.
"""


GUESSED = "not confirmed"
"""The key of `DeviceInfo.facts` under which a description names those of its numbers, with ", "
between them, that nobody has confirmed for the device."""


class Feature(Enum):
    """Optional parts of the contract. A device raises `Unsupported` for what it does not
    declare."""

    MAP = "map"
    IMPORT_HOST = "import-host"
    IPC = "ipc"
    GRAPH = "graph"
    HOST_CALL = "host-call"
    TIMESTAMPS = "timestamps"
    STATS = "stats"
    RESET = "reset"
    SUBSCRIBE = "subscribe"
    INJECT = "inject"
    PEER_COPY = "peer-copy"
    COLLECTIVES = "collectives"
    GROUP_IPC = "group-ipc"
    OPERATORS = "operators"


class SpaceKind(Enum):
    """GLOBAL is what `alloc` serves by default; SCRATCHPAD is private to a program instance and
    managed by software; HOST is host memory that the device reaches directly."""

    GLOBAL = "global"
    SCRATCHPAD = "scratchpad"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class MemorySpace:
    """A memory of the device. `nbytes` is its size; `granularity` the alignment in bytes of every
    allocation; `dma_only` says that instances reach global memory from it by `copy` statements
    alone; `bandwidth` the bytes/s that all instances together can read and write, and `latency`
    the seconds of a `copy` from it to a scratchpad besides its bytes, 0 where not known."""

    name: str
    kind: SpaceKind
    nbytes: int
    granularity: int
    host_visible: bool = False
    coherent: bool = True
    dma_only: bool = False
    bandwidth: float = 0.0
    latency: float = 0.0


@dataclass(frozen=True, slots=True)
class MatrixUnit:
    """A matrix instruction: a (m, k) by (k, n) product of `inputs` elements accumulated in
    `accumulate`."""

    m: int
    n: int
    k: int
    inputs: DType
    """The left operand's type."""
    accumulate: DType
    right: DType | None = None
    """The right operand's type; None: `inputs`."""
    together: int = 1
    """Neighbours along k that lie side by side where the unit reads its operands, in rows of the
    left and in columns of the right; it divides k."""
    rate: float = 0.0
    """Operations/s of the whole device, a multiplication and an addition being two; 0: unknown."""
    denormals: bool = True
    """Whether denormals among operands and sums are kept. A `dot` that the unit may compute takes
    them for zero where they are not."""
    call: str = ""
    """The function by which a program in the first of `DeviceInfo.formats` asks for it, "" where
    none does. With m = 1 and `together` = k it takes n sums, the left operand's k elements n times
    over, and the right one's n columns of k, and gives n sums. With a `register` it takes m,
    the bytes of a row of sums, those of a row of the left operand (as i16), the sums and both
    operands in registers of that type, and gives the sums."""
    register: str = ""
    """The type, in such a program, of tile registers, of which each holds m rows of n sums, m rows
    of k elements of the left operand, or k / `together` rows of n groups of `together` elements of
    the right one; "": the unit works on no such registers."""
    registers: int = 0
    """How many tile registers there are at a time: with a `register` at least three, for sums and
    both operands."""
    clear: str = ""
    """The function that gives a tile register of zeros: of how many rows, of how many bytes each
    (as i16)."""
    load: str = ""
    """The function that reads one: the same two, where its first row is in memory, and the bytes
    from one row to the next (as i64)."""
    store: str = ""
    """The function that writes one: the same four, and the register."""

    @property
    def right_inputs(self) -> DType:
        """The right operand's type."""
        return self.right or self.inputs


@dataclass(frozen=True, slots=True)
class NumericProfile:
    """How the device rounds. `ulp` bounds the error of each function of `FUNCTIONS` in units in the
    last place of float32; `sub` is bounded as `add`, `recip` as `div`, `rsqrt` by `div` plus twice
    `sqrt`. On float16 and bfloat16 one rounding comes after it. `accumulate` gives the type in
    which `dot` adds products of each element type. `denormals` says that float32 denormals are
    kept, but for a `dot` that a matrix unit without them may compute, `fma` that a multiplication
    and an addition may be fused, `deterministic` that equal work
    gives equal bits."""

    ulp: Mapping[str, float]
    denormals: bool
    fma: bool
    accumulate: Mapping[DType, DType]
    deterministic: bool = True


@dataclass(frozen=True, slots=True)
class Link:
    """A way to another device: bandwidth in bytes/s and latency in s as declared, 0 where not
    known."""

    peer: str
    kind: str
    bandwidth: float
    latency: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Hard limits. A call at the limit works; one past it raises `InvalidCall` (`OutOfMemory` for
    sizes).

    `queues` is how many device timelines there may be at once; host-driven ones do not count.
    `instances` is how many program instances run at once; `vector_nbytes` the width of one SIMD
    register (0: there is none) and `masked_nbytes` that of the least elements that its loads and
    stores leave out by a mask, where they do; `lanes` the most threads that run one program
    instance together (1: one core does it alone); `registers` the vector registers of a core;
    `caches` the bytes of each data-cache level that an instance can use, nearest first. `mesh` is
    the rows and columns in which the cores of `instances` lie where a core can pass a tile to all
    of its row or of its column ((1, 1): it cannot). `progress_s` is the time without progress after
    which an operation counts as hanging (0: the device does not watch for hangs); a device whose
    work waits for processors of the host counts the time that it had them.
    """

    grid: tuple[int, int, int]
    args: int
    alloc_nbytes: int
    queues: int
    instances: int
    vector_nbytes: int = 0
    registers: int = 0
    lanes: int = 1
    caches: tuple[int, ...] = ()
    mesh: tuple[int, int] = (1, 1)
    progress_s: float = 0.0
    masked_nbytes: int = 4


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Everything that the stack may know about a device. Immutable while the device is open.

    `name` is "plugin:index"; `fingerprint` identifies the code generation target (equal
    fingerprints may share compiled programs); `formats` lists accepted program formats, preferred
    first; `dtypes` maps each element type usable in kernels to its peak rate in operations/s (0:
    works, rate unknown); `declared` holds measured or vendor-declared performance, in the units and
    by the method of `PERFORMANCE`; `facts` whatever else `hal info` should show. `scale` is the
    function by which a program in the first of `formats` multiplies the float32 numbers of a vector
    register by powers of two, rounding once, "" where none does: it takes the numbers, the powers
    as whole float32, the numbers again for lanes that are not chosen, a bit for each lane, and 4
    (as i32), and gives the products.
    """

    name: str
    plugin: str
    description: str
    fingerprint: str
    contract: int
    limits: Limits
    spaces: tuple[MemorySpace, ...]
    dtypes: Mapping[DType, float]
    numeric: NumericProfile
    formats: tuple[str, ...]
    features: frozenset[Feature]
    matrix_units: tuple[MatrixUnit, ...] = ()
    scale: str = ""
    links: tuple[Link, ...] = ()
    declared: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)

    def space(self, kind: SpaceKind) -> MemorySpace | None:
        """The first memory space of that kind, or None."""
        return next((s for s in self.spaces if s.kind is kind), None)


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """One row of a plugin's enumeration: the index that `open_device` takes, and a line for
    people."""

    index: int
    description: str
