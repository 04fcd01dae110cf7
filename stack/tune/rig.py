"""Measuring that survives what it measures: a process that is lost is replaced by a fresh one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from stack.tune.orders import Answer, BeginProblem, Extent, Order, Prepare, Refusal, Repeat, Trial
from stack.tune.process import LostError, MeasureError, Process


class Rig:
    """Candidates of one problem after the other on a device. `start` makes a process that has it
    open; an order may take `limit_s`."""

    def __init__(self, start: Callable[[], Process], limit_s: float) -> None:
        self._start = start
        self._limit_s = limit_s
        self._process: Process | None = None
        self._extents: tuple[Extent, ...] = ()
        self._trials: dict[int, Trial] = {}
        self._present: set[int] = set()
        self.processes = 0

    def begin(self, extents: Sequence[Extent]) -> None:
        """Go on with a problem that has these buffers. Raises MeasureError when the device has no
        room for them."""
        self._extents, self._trials, self._present = tuple(extents), {}, set()
        if self._process is not None:
            self._set_up(self._process)

    def prepare(self, number: int, trial: Trial) -> Answer:
        """Build a candidate and run it; the seconds of a run, or why it cannot be chosen.

        Candidate 0 comes first: it says what is right.
        """
        answer = self._ask(Prepare(number, trial))
        if not isinstance(answer, Refusal):
            self._trials[number] = trial
            self._present.add(number)
        return answer

    def time(self, number: int, repeats: int) -> Answer:
        """Seconds of a run of a prepared candidate, or what went wrong with it."""
        if number not in self._present or self._process is None:
            again = self._ask(Prepare(number, self._trials[number]))
            if isinstance(again, Refusal):
                return again
            self._present.add(number)
        return self._ask(Repeat(number, repeats))

    def close(self) -> None:
        """End the process. Idempotent."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, order: Order) -> Answer:
        # The process, or a fresh one in which candidate 0 is prepared if the order needs it
        if self._process is None:
            self.processes += 1
            self._process = self._start()
            self._present = set()
            self._set_up(self._process)
            wanted = isinstance(order, Prepare) and order.number == 0
            if 0 in self._trials and not wanted:
                self._anew(self._process, Prepare(0, self._trials[0]))
                self._present.add(0)
        process = self._process
        try:
            answer = process.ask(order, self._limit_s)
        except LostError as error:
            answer = error.refusal
        if isinstance(answer, Refusal) and answer.lasting:
            self.close()
        return answer

    def _set_up(self, process: Process) -> None:
        self._anew(process, BeginProblem(self._extents))

    def _anew(self, process: Process, order: Order) -> None:
        """An order that has worked before, or whose failure ends the problem."""
        try:
            answer = process.ask(order, self._limit_s)
        except LostError as error:
            self.close()
            raise MeasureError(f"the device fails without a candidate: {error}") from error
        if isinstance(answer, Refusal):
            self.close()
            raise MeasureError(f"the device fails without a candidate: {answer}")
