"""Copies and fills for a driver with memory of its own, which would wait for a stream before it
touches memory of the host that is not pinned, and for a call of the contract that must not.

Bytes of the host go through pinned memory of the stream, a stage at a time, and are moved there and
back on the host when the stream comes to that; so are those between two places on the host.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import Any

from hal.core.errors import InvalidCall
from hal.hosted.driven import DrivenMachine, DriverMemory
from hal.hosted.machine import Part
from hal.hosted.slab import Slab
from hal.hosted.streams import After

STAGE_NBYTES = 4 << 20
"""What of a copy goes through pinned memory at a time."""


class StagedMachine(DrivenMachine):
    """A driver's memory is at addresses; places on the host are what `on_host` takes."""

    def over(self, slab: Slab) -> DriverMemory:
        raise InvalidCall("this device's memory is its own")

    @abstractmethod
    def at_work(self, stream: Any, operation: str) -> AbstractContextManager[None]:
        """For what is put on a stream in the context, by one thread at a time. What the driver
        refuses is an OperationFailed of this operation."""

    @abstractmethod
    def begun(self, stream: Any, after: After) -> Any:
        """An operation begins on a stream, behind marks of others."""

    @abstractmethod
    def ended(self, stream: Any, begin: Any, kept: object = None) -> Any:
        """The mark of what is on the stream since then; `kept` is what it needs of the host."""

    @abstractmethod
    def address(self, part: Part) -> int:
        """Where a part begins in the driver's memory."""

    @abstractmethod
    def host(self, side: Part | memoryview, *, writes: bool) -> Any:
        """Where the bytes are in the host's memory; None for the driver's own."""

    def lends(self, part: Part) -> bool:
        """Whether the driver lets other devices of this process reach into a part."""
        return self.host(part, writes=False) is None

    @abstractmethod
    def constant(self, data: bytes) -> Any:
        """Bytes as a place on the host."""

    @abstractmethod
    def stage(self, stream: Any) -> tuple[Any, int]:
        """Pinned memory of `STAGE_NBYTES` for one operation of a stream after another: its place on
        the host, and its address."""

    @abstractmethod
    def move(self, dst: int, src: int, nbytes: int, stream: Any) -> None:
        """Have the driver copy between its memory and pinned memory, or within these."""

    @abstractmethod
    def set(self, address: int, unit: bytes, count: int, stream: Any) -> bool:
        """Have the driver repeat 1, 2 or 4 bytes; False where it cannot do so at this address."""

    @abstractmethod
    def on_host(self, dst: Any, src: Any, nbytes: int, stream: Any, kept: list[object]) -> None:
        """Have bytes copied on the host when the stream comes to that."""

    def copy(
        self, dst: Part | memoryview, src: Part | memoryview, nbytes: int, stream: Any, after: After
    ) -> Any:
        kept: list[object] = []
        with self.at_work(stream, "copy"):
            begin = self.begun(stream, after)
            to, of = self.host(dst, writes=True), self.host(src, writes=False)
            if to is not None and of is not None:
                self.on_host(to, of, nbytes, stream, kept)
            elif isinstance(dst, Part) and of is not None:
                self._through(self.address(dst), of, nbytes, stream, kept, into=True)
            elif isinstance(src, Part) and to is not None:
                self._through(self.address(src), to, nbytes, stream, kept, into=False)
            elif isinstance(dst, Part) and isinstance(src, Part):
                self.move(self.address(dst), self.address(src), nbytes, stream)
            return self.ended(stream, begin, kept)

    def fill(self, dst: Part, pattern: bytes, nbytes: int, stream: Any, after: After) -> Any:
        kept: list[object] = []
        unit = pattern[:1] if len({*pattern}) == 1 else pattern
        address = self.address(dst)
        with self.at_work(stream, "fill"):
            begin = self.begun(stream, after)
            if (host := self.host(dst, writes=True)) is not None:
                whole = self.constant(pattern * (nbytes // len(pattern)))
                self.on_host(host, whole, nbytes, stream, kept)
            elif nbytes and not self.set(address, unit, nbytes // len(unit), stream):
                done = len(unit)
                self._through(address, self.constant(unit), done, stream, kept, into=True)
                while done < nbytes:  # what is filled fills as much again
                    self.move(address + done, address, min(done, nbytes - done), stream)
                    done *= 2
            return self.ended(stream, begin, kept)

    def _through(
        self,
        address: int,
        host: Any,
        nbytes: int,
        stream: Any,
        kept: list[object],
        *,
        into: bool,
    ) -> None:
        """Copy between the driver's memory and the host's."""
        stage, fixed = self.stage(stream)
        kept.append(host)
        for start in range(0, nbytes, STAGE_NBYTES):
            count = min(STAGE_NBYTES, nbytes - start)
            if into:
                self.on_host(stage, host + start, count, stream, kept)
                self.move(address + start, fixed, count, stream)
            else:
                self.move(fixed, address + start, count, stream)
                self.on_host(host + start, stage, count, stream, kept)
