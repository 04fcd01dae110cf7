"""Buffers: allocation, exact accounting, and memory that lives as long as something uses it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hal.core.description import SpaceKind
from hal.core.errors import FailureKind, InvalidCall, OutOfMemory, StaleHandle
from hal.core.facts import dataclass
from hal.core.spec import hookimpl
from hal.core.values import AllocOptions, Buffer, MemoryStats, Region, SharedHandle
from hal.hosted.lock import LOCK
from hal.hosted.machine import Part
from hal.hosted.session import Session

PLAIN = AllocOptions()


@dataclass(eq=False, slots=True)
class Allocation:
    """A buffer's payload. It is given back when it is freed and nothing holds it."""

    session: Session
    memory: Any
    nbytes: int
    account: Account | None
    label: str = ""
    shareable: bool = False
    holds: int = 0
    freed: bool = False

    def check(self, hook: str) -> None:
        """Raise StaleHandle when it was freed: an argument of a launchable, or a peer's buffer."""
        if self.freed:
            raise StaleHandle(f"{self.session.name}.{hook}: a buffer that it uses was freed")

    def part(self, offset: int, nbytes: int) -> Part:
        return Part(self.memory, offset, nbytes)

    def hold(self) -> None:
        self.holds += 1

    def let_go(self) -> None:
        self.holds -= 1
        self._end()

    def free(self) -> None:
        self.freed = True
        self._end()

    def _end(self) -> None:
        if self.freed and not self.holds:
            self.session.spend(self.session.machine.release, self.memory)
            self.memory = None
            if self.account is not None:
                self.account.remove(self)


class Account:
    """What is allocated in one space of `capacity` bytes; `asked` are bytes that the machine has
    been asked for and not given yet."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.live, self.peak, self.count, self.asked = 0, 0, 0, 0
        self.held: dict[str, int] = {}
        self.buffers = 0

    @property
    def free(self) -> int:
        return self.capacity - self.live - self.asked

    def add(self, nbytes: int, label: str) -> None:
        """What was asked has been given."""
        self.asked -= nbytes
        self.live += nbytes
        self.peak = max(self.peak, self.live)
        self.count += 1
        self.buffers += 1
        self.held[label] = self.held.get(label, 0) + nbytes

    def remove(self, allocation: Allocation) -> None:
        self.live -= allocation.nbytes
        self.buffers -= 1
        self.held[allocation.label] -= allocation.nbytes


class Buffers:
    """The memory hooks."""

    def __init__(self, session: Session) -> None:
        self._session = session
        spaces = [s for s in session.info.spaces if s.kind is not SpaceKind.SCRATCHPAD]
        self._accounts = {s.name: Account(s.nbytes) for s in spaces}
        self._default = next(s.name for s in spaces if s.kind is SpaceKind.GLOBAL)
        self._live: set[Allocation] = set()

    @hookimpl
    def alloc(self, nbytes: int, options: AllocOptions) -> Buffer:
        space = options.space or self._default
        account = self._account(space, "alloc")
        if self._session.strike("alloc", FailureKind.OUT_OF_MEMORY):
            raise self._out_of_memory(nbytes, account)
        with LOCK:
            self._session.check_usable("alloc")
            if nbytes > account.free:
                self._session.flight.settle_all()
            if nbytes > min(account.free, self._session.info.limits.alloc_nbytes):
                raise self._out_of_memory(nbytes, account)
            account.asked += nbytes
        try:
            take = partial(self._session.machine.allocate, nbytes, options)
            return self._given("alloc", take, nbytes, space, account, options)
        except BaseException as error:
            with LOCK:
                account.asked -= nbytes
            if isinstance(error, MemoryError) and not isinstance(error, OutOfMemory):
                raise self._out_of_memory(nbytes, account) from error
            raise

    @hookimpl
    def map(self, region: Region, writable: bool) -> memoryview:
        whole = self._session.machine.map(region.buffer.native.memory)
        part = whole[region.offset : region.offset + region.nbytes]
        return part if writable else part.toreadonly()

    @hookimpl
    def import_host(self, memory: memoryview) -> Buffer:
        view = memoryview(memory)
        take = partial(self._session.machine.adopt, view)
        return self._given("import_host", take, view.nbytes, self._default)

    @hookimpl
    def export_buffer(self, buffer: Buffer) -> SharedHandle:
        if not buffer.native.shareable:
            raise InvalidCall(
                f"{self._session.name}.export_buffer: allocate the buffer with shareable=True"
            )
        return self._session.machine.share(buffer.native.memory, buffer.nbytes)

    @hookimpl
    def import_buffer(self, shared: SharedHandle) -> Buffer:
        take = partial(self._session.machine.attach, shared)
        return self._given("import_buffer", take, shared.nbytes, self._default)

    @hookimpl
    def stats(self, space: str) -> MemoryStats:
        account = self._account(space or self._default, "stats")
        with LOCK:
            self._session.flight.settle_all()
            stats = MemoryStats(account.live, account.peak, account.count, account.buffers)
        self._session.give_back()
        return stats

    def free(self, buffer: Buffer) -> None:
        """Give a buffer back (with the lock held)."""
        self._live.discard(buffer.native)
        buffer.native.free()

    def free_all(self) -> None:
        """Give every buffer back: the session or its epoch ended (with the lock held)."""
        live, self._live = self._live, set()
        for allocation in live:
            allocation.free()

    def _given(
        self,
        hook: str,
        take: Callable[[], Any],
        nbytes: int,
        space: str,
        account: Account | None = None,
        options: AllocOptions = PLAIN,
    ) -> Buffer:
        """A buffer of what `take` has from the machine, while no lock is held: others' work goes
        on however long that takes."""
        session = self._session
        with session.calling(hook) as epoch:
            memory = session.from_driver(take)
        made = Allocation(
            session, memory, nbytes, account, options.label, shareable=options.shareable
        )
        with LOCK:
            if session.cause is None and not session.closing and session.epoch == epoch:
                if account is not None:
                    account.add(nbytes, options.label)
                self._live.add(made)
                return Buffer(session.name, epoch, made, nbytes, space)
        session.spend(session.machine.release, memory)
        session.give_back()
        session.check_usable(hook)
        raise StaleHandle(f"{session.name}.{hook}: the device was reset meanwhile")

    def _account(self, space: str, hook: str) -> Account:
        if space not in self._accounts:
            known = ", ".join(self._accounts)
            raise InvalidCall(
                f"{self._session.name}.{hook}: nothing is allocated in {space!r}, only in {known}"
            )
        return self._accounts[space]

    def _out_of_memory(self, nbytes: int, account: Account) -> OutOfMemory:
        free = min(account.free, self._session.info.limits.alloc_nbytes)
        held = sorted(account.held.items(), key=lambda entry: -entry[1])
        text = f"{self._session.name}: {nbytes} bytes asked, {free} of {account.capacity} are free"
        return OutOfMemory(text, nbytes, free, {k or "unlabelled": n for k, n in held if n})
