"""The parent's side of the process that measures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe

from hal.core.errors import HalError
from stack.tune.orders import Answer, Order, Refusal, Stage
from stack.tune.worker import GRACE_S

START_S = 120.0
"""How long the process may take to open the device."""
END_S = 5.0
TAIL = 2000
"""Characters of what the process printed in which its last words are looked for."""

_START = """
import json, sys
descriptor, path, *rest = json.loads(sys.argv[1])
sys.path[:] = path
from stack.tune.worker import serve
serve(descriptor, *rest)
"""


class LostError(Exception):
    """The process crashed (CRASH) or gave no answer in time (HANG); it is gone."""

    def __init__(self, stage: Stage, reason: str) -> None:
        super().__init__(reason)
        self.refusal = Refusal(stage, reason, lasting=True)


class MeasureError(HalError):
    """No process can measure on the device."""

    next_step = "see whether `hal info` can open the device; then tune again"


class Process:
    """A process that has the device `name` open, with these wrappers and settings. Raises
    MeasureError when it cannot."""

    def __init__(
        self, name: str, wrappers: Sequence[str] = (), settings: Mapping[str, str] | None = None
    ) -> None:
        self._connection, theirs = Pipe()
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  closed by `end`
        with theirs:
            order = [theirs.fileno(), sys.path, name, list(wrappers), dict(settings or {})]
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(order)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                start_new_session=True,
            )
        try:
            opened = self._receive(START_S)
        except LostError as error:
            raise MeasureError(f"{name} cannot be measured on: {error}") from error
        except BaseException:
            self.end()
            raise
        if isinstance(opened, Refusal):
            self.end()
            raise MeasureError(f"{name} cannot be measured on: {opened.reason}")

    @property
    def pid(self) -> int:
        """The process's id, also after its end."""
        return self._process.pid

    def ask(self, order: Order, limit_s: float) -> Answer:
        """The answer to an order that may take `limit_s`. Raises LostError."""
        try:
            self._connection.send((order, limit_s))
        except OSError as error:
            raise self._crashed() from error
        return self._receive(limit_s + GRACE_S)

    def end(self) -> None:
        """Kill the process with all that it started. Idempotent."""
        if self._connection.closed:
            return
        self._connection.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        # One that is stuck in the kernel cannot be waited for.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=END_S)
        self._printed.close()

    def _receive(self, limit_s: float) -> Answer:
        try:
            if self._connection.poll(limit_s):
                answer: Answer = self._connection.recv()
                return answer
        except (EOFError, OSError) as error:
            raise self._crashed() from error
        self.end()
        raise LostError(Stage.HANG, f"no answer within {limit_s:g} s")

    def _crashed(self) -> LostError:
        """How the process ended, which an order may find out as well as its answer."""
        try:
            status = self._process.wait(timeout=END_S)
            how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        except subprocess.TimeoutExpired:
            how = "closed its connection"
        self._printed.seek(0)
        lines = self._printed.read().decode(errors="replace")[-TAIL:].strip().splitlines()
        cause = f"{how}; it printed last: {lines[-1][:200]}" if lines else how
        self.end()
        return LostError(Stage.CRASH, cause)
