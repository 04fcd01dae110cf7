"""Work that goes on beside a training loop: one piece at a time, its errors told to whoever comes
next, at the latest at the end of the process."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from threading import Thread

from hal.core.errors import DeadlineExceeded


class Late:
    """Errors that nobody has been told yet."""

    def __init__(self) -> None:
        self._errors: list[BaseException] = []

    def note(self, error: BaseException) -> None:
        """Keep an error for whoever asks next."""
        self._errors.append(error)

    def forget(self, error: BaseException) -> None:
        """It has been told."""
        if error in self._errors:
            self._errors.remove(error)

    def tell(self) -> None:
        """Raise the first that is kept, once."""
        if self._errors:
            raise self._errors.pop(0)


class Saving:
    """A save that is under way, or done."""

    def __init__(self, late: Late, deadline_s: float) -> None:
        self._late, self._deadline_s = late, deadline_s
        self.staged: Future[None] = Future()
        """Done when the arrays may change."""
        self.done: Future[bool] = Future()
        """What `wait_committed` gives."""

    def wait_staged(self) -> None:
        """Until the arrays may change. Raises DeadlineExceeded."""
        try:
            self.staged.result(self._deadline_s)
        except FutureTimeout as error:
            raise DeadlineExceeded(
                f"the state was not copied within {self._deadline_s:g} s; it must not change yet"
            ) from error

    def set_staged(self) -> None:
        """The arrays may change."""
        if not self.staged.done():
            self.staged.set_result(None)

    def wait_committed(self) -> bool:
        """Until the step is committed in the nearest store; gives False for one that was skipped.
        Raises what went wrong, and DeadlineExceeded."""
        try:
            return self.done.result(self._deadline_s)
        except FutureTimeout as error:
            raise DeadlineExceeded(
                f"the save has not ended within {self._deadline_s:g} s; it goes on"
            ) from error
        except BaseException as error:
            self._late.forget(error)
            raise


class Background:
    """Does one piece of work after the other; the process does not end before they have."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._last: Thread | None = None
        self.late = Late()
        weakref.finalize(self, self.late.tell)  # at the end of the process at the latest

    @property
    def busy(self) -> bool:
        """Whether work is under way."""
        return self._last is not None and self._last.is_alive()

    def begin(self, work: Callable[[], None]) -> None:
        """Do it after what was begun before."""
        before = self._last

        def run() -> None:
            try:
                if before is not None:
                    before.join(self._deadline_s)
                work()
            except BaseException as error:  # noqa: BLE001  (told by `late`)
                self.late.note(error)

        self._last = Thread(target=run, name="hal-checkpoint")
        self._last.start()

    def wait_idle(self) -> None:
        """Until nothing is under way. Raises what has gone wrong since the last call, and
        DeadlineExceeded."""
        if self._last is not None:
            self._last.join(self._deadline_s)
            if self._last.is_alive():
                raise DeadlineExceeded(
                    f"the save before has not ended within {self._deadline_s:g} s; it goes on"
                )
        self.late.tell()
