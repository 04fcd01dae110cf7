"""The handles that a device gave out and has not taken back."""

from __future__ import annotations

from typing import TypeVar

from hal.core.errors import InvalidCall, StaleHandle
from hal.core.kinds import shown
from hal.core.values import Handle

H = TypeVar("H", bound=Handle)


class Handles:
    """The live handles of one session, by identity, and the epoch in which they were made.

    It keeps no handle alive. One that its owner dropped without `free` leaves its number behind.
    """

    def __init__(self, device: str, epoch: int) -> None:
        self._device = device
        self._epoch = epoch
        self._live: set[int] = set()
        self._closed = False

    def add(self, handle: H) -> H:
        """Take note of a new handle; gives it back."""
        self._live.add(id(handle))
        return handle

    def check(self, where: str, handle: Handle, kind: type[Handle]) -> None:
        """Raise StaleHandle unless the handle is live, InvalidCall when it is of another kind."""
        if not isinstance(handle, kind):
            raise InvalidCall(f"{where}: expected a {kind.__name__}, got {shown(handle)}")
        # An id may have passed from a dropped handle to one of another device, so it is not enough.
        known = id(handle) in self._live
        if not known or handle.device != self._device or handle.epoch != self._epoch:
            raise StaleHandle(f"{where}: {self._why_stale(handle)}")

    def check_open(self, where: str) -> None:
        """Raise StaleHandle when the session has ended."""
        if self._closed:
            raise StaleHandle(f"{where}: {self._device} is closed")

    def drop(self, where: str, handle: Handle) -> None:
        """Forget a handle that is being freed. Raises as `check`."""
        self.check(where, handle, Handle)
        self._live.discard(id(handle))

    def restart(self, epoch: int) -> None:
        """Make every handle stale: the device was reset."""
        self._live.clear()
        self._epoch = epoch

    def close(self) -> None:
        """Make every handle stale: the session ended."""
        self._live.clear()
        self._closed = True

    def _why_stale(self, handle: Handle) -> str:
        kind = type(handle).__name__.lower()
        if self._closed:
            return f"{self._device} is closed"
        if handle.device != self._device:
            return f"the {kind} belongs to {handle.device}, not to {self._device}"
        if handle.epoch != self._epoch:
            return (
                f"the {kind} was made in epoch {handle.epoch} of {self._device}, "
                f"which is in epoch {self._epoch} since a reset"
            )
        return f"the {kind} was freed, or another session of {self._device} made it"
