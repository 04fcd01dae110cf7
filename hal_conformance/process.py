"""A child process that tells events as lines of JSON: it is never waited for without a deadline,
and what it started ends with it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from hal_conformance.busy import Deadline, end_of
from hal_conformance.worker import SHOW_STACKS

END_S = 10.0
"""How long a child may take to end after its last event."""

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
"""Numpy's threads wait by computing, which takes the processors from other cases and the device."""

_STACKS_S = 0.3
_TAIL_NBYTES = 64 << 10
_WORDS = 1200
_FRAMES = 15
_STACK, _OTHERS = "Current thread ", "Thread 0x"
"""What faulthandler writes before the stack of the thread that got the signal, and of others."""


class Late(Exception):
    """The child did nothing in time; the text says where its threads are."""


class Child:
    """A worker with its job. Leaving the context kills it and everything that it started."""

    def __init__(self, job: str, environment: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "hal_conformance.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={
                _BLAS_THREADS: "1",
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                **environment,
            },
            start_new_session=True,
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._read, name="conformance child", daemon=True).start()
        self._order(job)

    def event(self, timeout_s: float) -> dict[str, Any] | None:
        """The next event; None when the child has ended. Raises Late when the time is over that
        it had a processor for, or nothing to do."""
        deadline = Deadline(self._process.pid, timeout_s)
        while (left_s := deadline.left_s()) > 0:
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=left_s)
                return json.loads(line) if line else None
        # A dead child's pipe stays open while something that it forked holds it.
        if self._process.poll() is None:
            raise Late(self._stacks())
        return None

    def ended(self) -> str:
        """How the child ended, "" for well. Raises Late when it does not end."""
        code = end_of(self._process, END_S)
        if code is None:
            raise Late(self._stacks())
        return "" if code == 0 else f"the process {_death(code)}{self._tail()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(ProcessLookupError):  # all of it has ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=END_S)
        if self._process.stdin:
            self._process.stdin.close()
        self._errors.close()

    def _order(self, job: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died: the first event will say so
            self._process.stdin.write(job.encode() + b"\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            for line in pipe:
                self._lines.put(line)
        self._lines.put(b"")

    def _stacks(self) -> str:
        self._process.send_signal(SHOW_STACKS)
        time.sleep(_STACKS_S)
        return self._tail()

    def _tail(self) -> str:
        """The last of what the child wrote to stderr."""
        end = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, end - _TAIL_NBYTES))
        text = _last_words(self._errors.read().decode(errors="replace"))
        return f"; it wrote last:\n{text}" if text else ""


def _last_words(text: str) -> str:
    """The end of a text; of the stacks of all threads the top of the one that matters."""
    text, found, stacks = text.partition(_STACK)
    if not found:
        return text[-_WORDS:].strip()
    stack = stacks.partition("\n\n")[0].splitlines()[1 : 1 + _FRAMES]
    return "\n".join([text.partition(_OTHERS)[0][-_WORDS:].strip(), *stack]).strip()


def _death(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    return f"died of {signal.Signals(-code).name}"
