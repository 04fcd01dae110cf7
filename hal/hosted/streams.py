"""What a device is run on whose driver has queues of its own: the part that a vendor writes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from hal.core.errors import Failure
from hal.core.values import Grid, Slot
from hal.hosted.machine import BaseMachine, Part

RUNNING = 1
"""The state of a mark whose operation the device works on."""

After = Sequence[Any] | None
"""Marks of operations on other streams that come first."""


class StreamMachine(BaseMachine):
    """A store whose driver has streams: ordered queues that take work and do it later.

    What starts an operation gives its *mark* and does not wait. It is called with the lock held,
    never twice at once, and hands the work over so that it begins without another call. It raises
    `OperationFailed` when the driver refuses.
    """

    @abstractmethod
    def open_stream(self) -> Any:
        """A new stream, which ends with its last reference."""

    @abstractmethod
    def bind(self, program: Any, args: Sequence[Part | float | Slot]) -> Any:
        """A program ready to launch. An argument given as a slot comes by `rebind`."""

    @abstractmethod
    def rebind(self, bound: Any, index: int, arg: Part | float) -> None:
        """Give one argument anew; launches that have been started keep the old one."""

    def together(self, stream: Any) -> AbstractContextManager[Sequence[Any]]:
        """For what is started on the stream in the context, of which the first part waits for the
        marks that it gives: it may begin when all of it was handed over, and does so at the end of
        the context."""
        return nullcontext(())

    @abstractmethod
    def launch(self, bound: Any, grid: Grid, stream: Any, after: After) -> Any:
        """Start a run over a grid; one with a zero does nothing."""

    @abstractmethod
    def copy(
        self, dst: Part | memoryview, src: Part | memoryview, nbytes: int, stream: Any, after: After
    ) -> Any:
        """Start a copy of the first bytes; a memoryview is memory of the host."""

    def reaches(self, peer: BaseMachine) -> bool:
        """Whether `copy` takes parts of another machine's memory. Where not, bytes between them go
        through the host."""
        return False

    @abstractmethod
    def fill(self, dst: Part, pattern: bytes, nbytes: int, stream: Any, after: After) -> Any:
        """Start filling the first bytes with a pattern that divides them."""

    @abstractmethod
    def nothing(self, stream: Any, after: After) -> Any:
        """Start what does nothing but keep the order."""

    def joined(self, launches: Sequence[tuple[Any, Grid]]) -> Any:
        """Launches that follow each other as one command of the driver, for `launch_joined`; None
        where the driver has no such commands."""
        return None

    def launch_joined(self, joined: Any, stream: Any, after: After) -> Any:
        """Start joined launches, each with the arguments that its program is bound to now. One mark
        stands for all of them."""
        raise NotImplementedError("a machine that joins launches starts them")

    @abstractmethod
    def state(self, mark: Any) -> int:
        """Above 0 while the operation is not over (`RUNNING` while the device works on it), 0 when
        it is done, below 0 the driver's number for its failure."""

    @abstractmethod
    def is_patient(self) -> bool:
        """Whether more time than `Limits.progress_s` is right, such as for a first launch."""

    @abstractmethod
    def failure(self, operation: str, state: int) -> Failure:
        """What a state below 0 means."""

    @abstractmethod
    def times(self, mark: Any) -> tuple[int, int]:
        """When the operation of a mark that is over began and ended, in ns of the host's monotonic
        clock as well as the driver knows."""

    @abstractmethod
    def abandon(self, held: Sequence[Any]) -> None:
        """Some of the device's work does not end: keep `held` for as long as the process lives, and
        do without every stream that there is."""
