"""What a group of ranks needs of an engine, whoever moves the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.errors import HalError
from stack.comm.engine.call import NativeCall
from stack.comm.engine.library import lib
from stack.comm.engine.routes import Route

Array = NDArray[Any]
ANYBODY: int = lib.HE_ANYBODY

PassNow = Callable[[Array, int, int], int | None]
"""Of an array, the other rank and a tag: 0 once the message is done, another code for `passed`;
None where nothing has been done, as something is not as usual."""


def not_now(array: Array, rank: int, tag: int) -> None:
    """A `PassNow` of an engine that has none."""


class Work(ABC):
    """A call that has begun. Its arrays are not to be touched until it is done."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether it has ended, well or not."""

    @property
    @abstractmethod
    def peer(self) -> int:
        """Of a message that is done: the other rank, which sent what was received. Else -1."""

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> Array:
        """The call's result once it is done. Raises DeadlineExceeded when it is not done in time
        (it goes on then; without a time its group's deadline ends it), else what ended the group.
        """

    @abstractmethod
    def finish(self) -> Array:
        """As `wait`, for a caller that cannot go on without it: an interrupt aborts the group."""


class Engine(ABC):
    """A rank's membership in group `key`. `timeout_s` is the one deadline: a call that makes no
    progress for so long fails. Kinds and element types of messages are the numbers of
    `stack.comm.engine.codes`."""

    key: str
    rank: int
    size: int
    timeout_s: float

    @abstractmethod
    def run(self, call: NativeCall, dst: Array, src: Array, route: Route | None = None) -> Array:
        """Block until the call is done on this rank; gives `dst`. With a `route` its steps are what
        is done. Raises what ended the group."""

    @abstractmethod
    def start(self, call: NativeCall, dst: Array, src: Array, route: Route | None = None) -> Work:
        """As `run`, in the background, behind the calls that were started before."""

    @abstractmethod
    def message(self, kind: int, dtype: int, array: Array, peer: int, tag: int) -> Work:
        """Begin to send to a rank or to receive from it, or from whichever sends first where
        `peer` is `ANYBODY`; those of one tag match in order."""

    @property
    def send_now(self) -> PassNow:
        """`pass_message` of a send for what is usual."""
        return not_now

    @property
    def receive_now(self) -> PassNow:
        """The same of a receive."""
        return not_now

    def passed(self, code: int, array: Array) -> Array:
        """What a message gives that `send_now` or `receive_now` has left, or raises what it met."""
        raise NotImplementedError(f"message that ended with code {code}")

    def pass_message(self, kind: int, dtype: int, array: Array, peer: int, tag: int) -> Array:
        """As `message`, until it is done; gives the array."""
        return self.message(kind, dtype, array, peer, tag).finish()

    @abstractmethod
    def meet(self, name: str) -> None:
        """All ranks have received what they were sent, and come to what they call so. Raises
        CallMismatch on them where one sends or awaits another message instead."""

    @abstractmethod
    def share(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """An array of zeros in memory that is best for calls; it lives as long as it is used."""

    @property
    @abstractmethod
    def way(self) -> str:
        """How the last call ran here; "" before the first."""

    @abstractmethod
    def failure(self) -> HalError | None:
        """What has ended the group, None while it works."""

    @abstractmethod
    def abort(self) -> None:
        """End the group on all ranks. Does not block."""

    @abstractmethod
    def leave(self) -> None:
        """Be no member any more; calls that are queued still end."""

    @abstractmethod
    def lost(self) -> set[int]:
        """The ranks that this one knows to be gone."""
