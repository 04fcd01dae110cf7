"""A driver's own groups by a library with NCCL's interface, as several vendors have one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, MutableSet, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from threading import RLock
from typing import Any, Protocol

import cffi

from hal.core.dtypes import DType
from hal.core.errors import Failure, FailureKind, OperationFailed, Scope, Unsupported
from hal.core.facts import dataclass
from hal.core.values import Collective, CollectiveKind, ReduceKind
from hal.hosted.idle import Spent
from hal.hosted.machine import GoesOn, Invitation, Part
from hal.hosted.staged import StagedMachine

HEADER = Path(__file__).with_name("ccl.h")
_MAGIC, _SINCE, _IN_PROGRESS = 0xCAFEBEEF, 21400, 7
"""`NCCL_API_MAGIC`, `NCCL_VERSION(2, 14, 0)`, `ncclInProgress`."""
_BYTES = 1
"""`ncclUint8`."""
_TYPES = {
    DType.I8: 0, DType.U8: _BYTES, DType.I32: 2, DType.U32: 3, DType.I64: 4, DType.U64: 5,
    DType.F16: 6, DType.F32: 7, DType.F64: 8, DType.BF16: 9,
}  # fmt: skip
_REDUCTIONS = {ReduceKind.SUM: 0, ReduceKind.PROD: 1, ReduceKind.MAX: 2, ReduceKind.MIN: 3}
_SHORTEST_S, _LONGEST_S, _PATIENCE_S = 20e-6, 1e-3, 5.0
_TURN = RLock()
"""One call of the process's own groups at a time: where two begin in another order on another
device, each may have what the other one waits for."""

Kind = CollectiveKind
_REDUCING = {
    Kind.ALL_REDUCE: "ncclAllReduce",
    Kind.REDUCE: "ncclReduce",
    Kind.REDUCE_SCATTER: "ncclReduceScatter",
}
Order = tuple[str, tuple[int, ...], tuple[int, ...]]
"""A function, its addresses and its numbers, behind which come communicator and stream."""


def orders(call: Collective, rank: int, size: int, dst: int, src: int) -> Sequence[Order] | None:
    """What a rank calls for a collective from one address to another; None where NCCL has no such
    call, or one that gives other values: it loses NaN in MIN and MAX, rounds narrow floats with
    each rank that it adds, and an average is divided before it is added."""
    count, one = call.count, call.dtype.nbytes
    if name := _REDUCING.get(call.kind):
        how, dtype = _REDUCTIONS.get(call.reduce), _TYPES.get(call.dtype)
        bounds = call.reduce in (ReduceKind.MIN, ReduceKind.MAX)
        if call.dtype.is_float and (bounds or (call.dtype.is_narrow and size > 2)):
            return None
        if how is None or dtype is None:
            return None
        root = (call.root,) if call.kind is Kind.REDUCE else ()
        return [(name, (src, dst), (count, dtype, how, *root))]
    if call.kind is Kind.BARRIER:
        return None
    if call.kind is Kind.BROADCAST:
        return [("ncclBroadcast", (src, dst), (count * one, _BYTES, call.root))]
    if call.kind is Kind.ALL_GATHER:
        return [("ncclAllGather", (src, dst), (count * one, _BYTES))]
    ranks, gathers, everybody = range(size), call.kind is Kind.GATHER, call.kind is Kind.ALL_TO_ALL
    sent = call.counts or [
        [count * (everybody or call.root == (to if gathers else of)) for to in ranks]
        for of in ranks
    ]
    found: list[Order] = []
    for peer in ranks:
        if out := one * sent[rank][peer]:
            at = src + one * sum(sent[rank][:peer])
            found.append(("ncclSend", (at,), (out, _BYTES, peer)))
        if into := one * sent[peer][rank]:
            at = dst + one * sum(row[rank] for row in sent[:peer])
            found.append(("ncclRecv", (at,), (into, _BYTES, peer)))
    return found


def lies_well(call: Collective, rank: int, dst: Part, src: Part) -> bool:
    """Whether a rank's destination and source are apart, or one in the other as NCCL takes it."""
    if dst.memory is not src.memory:
        return True
    if dst.offset + dst.nbytes <= src.offset or src.offset + src.nbytes <= dst.offset:
        return True
    own = rank * call.count * call.dtype.nbytes
    inside = {Kind.ALL_REDUCE: 0, Kind.REDUCE: 0, Kind.BROADCAST: 0}
    inside |= {Kind.ALL_GATHER: own, Kind.REDUCE_SCATTER: -own}
    return inside.get(call.kind) == src.offset - dst.offset


@cache
def library(path: str) -> tuple[cffi.FFI, Any]:
    """Its functions. Raises OSError where it does not load."""
    ffi = cffi.FFI()
    ffi.cdef(HEADER.read_text())
    return ffi, ffi.dlopen(path)


def _abort(native: Any, communicators: Sequence[Any]) -> None:
    for communicator in communicators:
        native.ncclCommAbort(communicator)


class Home(Protocol):
    """The context of the driver in which a machine works, current within `with`."""

    @property
    def groups(self) -> MutableSet[Any]:
        """The groups that end before it; they are not kept alive."""
        ...

    @property
    def spent(self) -> Spent:
        """What is to be given back: not while its turn is taken. To give memory back waits for what
        the device does. That may wait for what the library is about to start on another one."""
        ...

    def when_idle(self, call: Callable[[], object]) -> None:
        """Have something called when nothing runs."""

    def __enter__(self) -> None: ...

    def __exit__(self, *raised: object) -> None: ...


@dataclass(frozen=True, slots=True)
class Seat:
    """A rank of a group: its machine, where that works, a stream for the group's calls, and the
    driver's pointer to the stream."""

    machine: StagedMachine
    context: Home
    stream: Any
    pointer: Any


def invitation(path: str) -> bytes:
    """What all processes of a new group have to know. Raises Unsupported."""
    try:
        ffi, native = library(path)
        name = ffi.new("ncclUniqueId *")
        number = native.ncclGetUniqueId(name)
    except OSError as error:
        raise Unsupported(f"create_group: {path} does not load: {error}") from error
    if number:
        text = ffi.string(native.ncclGetErrorString(number)).decode()
        raise Unsupported(f"create_group: {path}: ncclGetUniqueId: {text}")
    return bytes(ffi.buffer(name))


class CclGroup:
    """The group in which these seats have these ranks, and other processes the others; one thread
    calls for all seats. The library is told to wait for nobody, so that every wait is here and has
    its deadline; the first failure aborts the group. Raises Unsupported where the library makes
    none, also in time."""

    def __init__(
        self,
        path: str,
        seats: Mapping[int, Seat],
        invited: Invitation,
        progress_s: float,
        goes_on: GoesOn,
    ) -> None:
        self._communicators = dict[int, Any]()
        self._seats, self._progress_s = seats, progress_s
        self._size = invited.size
        # Who waits for another process must keep nobody here from what that one may wait for.
        self._spans = len(seats) < invited.size
        self._turn = RLock() if self._spans else _TURN
        try:
            self.ffi, self.native = library(path)
            with self._turn:
                self._join(invited, goes_on)
        except (OSError, OperationFailed) as error:
            self.end()
            raise Unsupported(f"create_group: {path} joins no {invited.size}: {error}") from error
        for seat in seats.values():
            seat.context.groups.add(self)

    def _join(self, invited: Invitation, goes_on: GoesOn) -> None:
        new, size = self.ffi.new, invited.size
        name, places = new("ncclUniqueId *"), new("ncclComm_t[]", size)
        self.ffi.memmove(name, invited.words, self.ffi.sizeof("ncclUniqueId"))
        wanted = new("ncclConfig_t *", (self.ffi.sizeof("ncclConfig_t"), _MAGIC, _SINCE, 0))
        try:
            with self._together():
                for rank, seat in self._seats.items():
                    with seat.context:  # whose device becomes the rank's
                        given = places + rank, size, name[0], rank, wanted
                        self._call("ncclCommInitRankConfig", *given)
        finally:
            self._communicators = {rank: places[rank] for rank in self._seats if places[rank]}
        self._wait(invited.timeout_s, {}, goes_on)

    def takes(self, call: Collective, rank: int, dst: Part, src: Part) -> bool:
        """As `DriverGroup.takes`."""
        machine = self._seats[rank].machine  # whose memory the library lets other devices reach
        lies = machine.lends(dst) and machine.lends(src) and lies_well(call, rank, dst, src)
        return lies and orders(call, rank, self._size, 0, 0) is not None

    def collect(
        self,
        call: Collective,
        ends: Mapping[int, tuple[Part, Part]],
        goes_on: GoesOn,
    ) -> None:
        """As `DriverGroup.collect`."""
        given = {}
        for rank, parts in ends.items():
            dst, src = map(self._seats[rank].machine.address, parts)
            given[rank] = orders(call, rank, self._size, dst, src) or ()
        with self._turn:
            try:
                with ExitStack() as quiet:
                    for seat in self._seats.values():
                        quiet.enter_context(seat.context.spent.turn)
                    self._start(given)
                    if self._spans:
                        quiet.close()
                    self._wait(self._progress_s, {}, goes_on)
                    marks = {}
                    for rank, seat in self._seats.items():
                        goes_on(rank)
                        marks[rank] = seat.machine.nothing(seat.stream, None)
                self._wait(self._progress_s, marks, goes_on)
            except OperationFailed:
                self.end()
                raise

    def end(self) -> None:
        """Abort what is under way, and give the communicators back. What hangs in the library
        stays with it."""
        if self._turn.acquire(timeout=_PATIENCE_S):
            gone, self._communicators = self._communicators, {}
            self._turn.release()
            if gone:
                _abort(self.native, [*gone.values()])

    def __del__(self) -> None:
        if self._communicators:
            home = self._seats[min(self._seats)].context
            home.when_idle(partial(_abort, self.native, [*self._communicators.values()]))

    @contextmanager
    def _together(self) -> Iterator[None]:
        """For calls that the library takes as one."""
        with self._seats[min(self._seats)].context:
            self._call("ncclGroupStart")
            try:
                yield
            finally:
                self._call("ncclGroupEnd")

    def _start(self, given: Mapping[int, Sequence[Order]]) -> None:
        if not self._communicators:
            raise self._failed("the group has ended")
        with self._together():
            for rank, calls in given.items():
                behind = self._communicators[rank], self._seats[rank].pointer
                for name, addresses, numbers in calls:
                    at = (self.ffi.cast("void *", address) for address in addresses)
                    self._call(name, *at, *numbers, *behind)

    def _wait(self, limit_s: float, marks: Mapping[int, Any], goes_on: GoesOn) -> None:
        """Wait until the library has handed everything over, and the streams are at their marks."""
        began_s, found = time.monotonic(), self.ffi.new("int *")
        while True:
            late = []
            for rank, seat in self._seats.items():
                goes_on(rank)
                machine = seat.machine
                state = machine.state(marks[rank]) if marks else 0
                if state < 0:
                    raise OperationFailed(machine.failure("collective", state))
                self._call("ncclCommGetAsyncError", self._communicators[rank], found)
                if found[0] not in (0, _IN_PROGRESS):
                    raise self._failed(self._words(found[0]), rank)
                late += [rank] * bool(state or found[0])
            if not late:
                return
            if (waited_s := time.monotonic() - began_s) > limit_s:
                raise self._failed(f"ranks {late} did not end in {limit_s:g} s", late[0])
            time.sleep(min(max(waited_s / 8, _SHORTEST_S), _LONGEST_S))

    def _call(self, name: str, *args: Any) -> None:
        number = getattr(self.native, name)(*args)
        if number not in (0, _IN_PROGRESS):
            raise self._failed(f"{name}: {self._words(number)}")

    def _words(self, number: int) -> str:
        said = self.native.ncclGetErrorString(number), self.native.ncclGetLastError(self.ffi.NULL)
        return ": ".join(self.ffi.string(text).decode() for text in said)

    def _failed(self, text: str, rank: int = -1) -> OperationFailed:
        rank = min(self._seats) if rank < 0 else rank
        name = self._seats[rank].machine.name
        about = FailureKind.ABORTED, Scope.PEER, name, "collective"
        return OperationFailed(Failure(*about, f"rank {rank} in the library: {text}"))
