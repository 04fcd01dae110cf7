"""What a hosted device is run on: the part that a vendor writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from hal.core.errors import Unsupported
from hal.core.facts import dataclass
from hal.core.values import AllocOptions, Collective, Grid, KernelSource, Operator, SharedHandle


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes [offset, offset + nbytes) of a memory that the machine gave, as a program's
    argument."""

    memory: Any
    offset: int
    nbytes: int


GoesOn = Callable[[int], None]
"""Called with a rank, again and again, before its device is asked anything; raises OperationFailed
where a rank in another process has ended."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """To a group of the driver's: how many ranks it has, what rank 0's machine has said for it, and
    how long it may take to join."""

    size: int
    words: bytes
    timeout_s: float


class DriverGroup(Protocol):
    """Machines among which the driver moves and adds bytes itself. It ends with its last
    reference."""

    def takes(self, call: Collective, rank: int, dst: Part, src: Part) -> bool:
        """Whether the driver makes of a rank's part what the contract says: where it does not for
        one of them, the call goes through the host. Called with the lock held; waits for
        nothing."""
        ...

    def collect(
        self,
        call: Collective,
        ends: Mapping[int, tuple[Part, Part]],
        goes_on: GoesOn,
    ) -> None:
        """Do a call that is taken, with the destination and source of each rank of this process,
        to its end; never two at once. Other processes of the group do so at the same time.

        Raises OperationFailed: of scope DEVICE or RESET where the device is lost of the rank that
        `goes_on` was called with, of scope PEER where the group takes no more calls.
        """


class BaseMachine(ABC):
    """Memory and programs of one device; every call does its work before it returns.

    Calls come from several threads, but never two for the same bytes unless the caller of the
    device asked for that, and never two of `allocate`, `release` and `unload`. No lock of others is
    held in them. What it raises fails the operation: an `OperationFailed` with its failure,
    anything else as a fault of the operation.
    """

    beats: int = 0
    """Grows while a program makes progress, if the machine can tell. One that runs for
    `Limits.progress_s` without it hangs, and the device is lost."""

    ends_hangs: ClassVar[bool] = False
    """Whether calls that make no progress end by themselves in less than twice
    `Limits.progress_s`, with an OperationFailed of FailureKind.HANG."""

    compile_s: ClassVar[float] = 60.0
    """How long `compile` may take without growing `beats`: then it hangs, and the device is
    lost."""

    @abstractmethod
    def allocate(self, nbytes: int, options: AllocOptions) -> Any:
        """New memory, zero where `options.zero` asks. Raises MemoryError when there is none."""

    @abstractmethod
    def release(self, memory: Any) -> None:
        """Give memory back that no operation uses any more."""

    @abstractmethod
    def read(self, memory: Any, offset: int, nbytes: int) -> bytes:
        """A copy of the bytes."""

    @abstractmethod
    def write(self, memory: Any, offset: int, data: bytes | memoryview) -> None:
        """Overwrite the bytes from `offset` on."""

    @abstractmethod
    def compile(self, source: KernelSource) -> Any:
        """The program of a source. Raises CompileError; InvalidCall when the entry has other
        parameters."""

    def operators(self) -> Sequence[Operator]:
        """The vendor's operators (Feature.OPERATORS)."""
        return ()

    def prepare(self, operator: Operator, constants: Mapping[str, int]) -> Any:
        """The program of one of them for sizes that meet its conditions. Raises Unsupported for
        others that it does not take."""
        raise Unsupported("this machine has no operators")

    def unload(self, program: Any) -> None:  # noqa: B027  most programs are memory of Python
        """Give a program back that no operation uses any more."""

    def renew(self) -> None:  # noqa: B027  most machines survive what fails on them
        """The device is being reset, and all memory and programs have come back: make anew what a
        failure has made useless."""

    def close(self) -> None:  # noqa: B027  most machines hold nothing
        """The session is over: give back what it holds of the driver. All memory and programs have
        come back, but for those of a call that hangs, which may be under way still. Called once,
        whether the device failed or not; what it raises is dropped if it did."""

    def copy_ns(self, nbytes: int, peer: BaseMachine | None) -> float | None:
        """How long a copy of so many bytes takes by the machine's own clock, if it has one (see
        `Span.device_ns`): within its memory, from or to the host, or from or to a `peer`'s."""
        return None

    def fill_ns(self, nbytes: int) -> float | None:
        """How long a fill of so many bytes takes by the machine's own clock, if it has one; the
        time of nothing for 0."""
        return None

    def collective_ns(self, call: Collective, peers: Sequence[str]) -> float | None:
        """How long a collective among these devices, by rank, takes by the machine's own clock, if
        it has one."""
        return None

    @property
    def seat(self) -> str:
        """What tells this device from all others of the host, where the driver joins it with others
        in groups of its own, also with those of other processes if Feature.GROUP_IPC is declared;
        empty where it does not. A group has the driver's where all have such words, of their
        own."""
        return ""

    def invite(self) -> bytes:
        """What the driver wants all processes of a new group to know; rank 0's machine is asked.
        Raises Unsupported."""
        return b""

    def group(
        self, machines: Mapping[int, BaseMachine], to: Invitation, goes_on: GoesOn
    ) -> DriverGroup:
        """The driver's own group, in which these machines, the first of which this is, have these
        ranks, and other processes the others. Raises Unsupported where it cannot be made, also
        within the time."""
        raise Unsupported("this machine joins no others")

    def map(self, memory: Any) -> memoryview:
        """The memory itself (Feature.MAP)."""
        raise Unsupported("this machine maps no memory")

    def adopt(self, memory: memoryview) -> Any:
        """Host memory as the machine's (Feature.IMPORT_HOST)."""
        raise Unsupported("this machine takes no host memory")

    def share(self, memory: Any, nbytes: int) -> SharedHandle:
        """The name of memory allocated `shareable` (Feature.IPC)."""
        raise Unsupported("this machine shares no memory")

    def attach(self, shared: SharedHandle) -> Any:
        """The memory that another process shares (Feature.IPC)."""
        raise Unsupported("this machine shares no memory")


class Machine(BaseMachine):
    """A store that runs programs at once."""

    @abstractmethod
    def run(self, program: Any, args: Sequence[Part | float], grid: Grid) -> float | None:
        """Run a program over a grid that has no zero. Gives the ns that it took by the machine's
        own clock; None where there is no such clock."""
