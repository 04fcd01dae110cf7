"""The launcher's end of an agent: its process, near or behind a remote shell, and their talk."""

from __future__ import annotations

import selectors
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import FileIO
from typing import Any

from stack.comm.world import SILENT_S
from stack.launch.job import ended
from stack.launch.lines import Tail
from stack.launch.loop import unblocked
from stack.launch.talk import GREETING, PIECE_NBYTES, Ear, TalkError, said

PATIENCE_S = 20.0
"""An agent that says nothing for so long is lost; after `SILENT_S` where others have missed its
ranks, too, or where nobody else would."""
_LATE_S = 0.5
"""A turn of the launcher that comes so much later than it should says nothing of agents: it is this
machine that has no time (Lifeguard, arXiv 1707.00788)."""
_TAIL_LINES = 5
_COMMAND = (sys.executable, "-P", "-m", "stack.launch.agent")

Hears = Callable[[dict[str, Any], bytes], None]
Loses = Callable[[str], None]


def agent_command(host: str, shell: str) -> tuple[str, ...]:
    """The command that runs an agent: here for the host "", else by a remote shell."""
    if not host:
        return _COMMAND
    words = [word.replace("{host}", host) for word in shlex.split(shell)]
    return (*words, shlex.join(_COMMAND))


class AgentLink:
    """An agent that has been started. It calls `hears` with what the agent says, and `loses` once,
    with the reason, when no more will come."""

    def __init__(
        self,
        command: Sequence[str],
        selector: selectors.BaseSelector,
        hears: Hears,
        loses: Loses,
    ) -> None:
        """Start it. Raises OSError when there is no such command."""
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        self._orders, self._answers, self._errors = (
            unblocked(getattr(self._process, name)) for name in ("stdin", "stdout", "stderr")
        )
        self._selector = selector
        self._hears = hears
        self._loses = loses
        self._ear = Ear(GREETING)
        self._tail = Tail()
        self._outbox = bytearray()
        self._heard_s = self._looked_s = time.monotonic()
        self._lost = self._is_suspect = False
        self._told = ""
        self._paused = True
        self.pause(False)
        selector.register(self._errors, selectors.EVENT_READ, self._read_errors)

    @property
    def is_lost(self) -> bool:
        return self._lost

    def say(self, words: dict[str, Any]) -> None:
        """Give the agent an order."""
        if self._lost:
            return
        if not self._outbox:
            self._selector.register(self._orders, selectors.EVENT_WRITE, self._write)
        self._outbox += said(words)

    def pause(self, paused: bool) -> None:
        """Read nothing more from it, or go on."""
        if paused is not self._paused and not self._lost:
            self._paused = paused
            if paused:
                self._selector.unregister(self._answers)
            else:
                self._heard_s = time.monotonic()
                self._selector.register(self._answers, selectors.EVENT_READ, self._read)

    def suspect(self) -> None:
        """Others miss its ranks: it is lost, unless it is heard of soon."""
        self._is_suspect = True

    def patience_s(self, is_unwatched: bool) -> float:
        """How much longer the agent may be silent; less long where it `is_unwatched`: others could
        go on without its host, and none of them would notice."""
        if self._paused or self._lost:
            return PATIENCE_S
        longest_s = SILENT_S if self._is_suspect or is_unwatched else PATIENCE_S
        return self._heard_s + longest_s - time.monotonic()

    def look(self, turn_s: float, is_unwatched: bool = False) -> None:
        """Lose the agent if it has been silent for too long; a look is due after `turn_s` at
        most."""
        now_s = time.monotonic()
        if now_s - self._looked_s > turn_s + _LATE_S:
            self._heard_s = max(self._heard_s, now_s - SILENT_S / 2)
        self._looked_s = now_s
        if self.patience_s(is_unwatched) < 0:
            self._lose(f"it gave no sign of life for {now_s - self._heard_s:.1f} s")

    def let_go(self) -> None:
        """Take nothing more from the agent; it ends all that it started, and itself. What was said
        before has gone to it, if it listens."""
        if self._outbox and not self._lost:
            self._write()
        self._lose("")

    def close(self, deadline_s: float) -> str:
        """Wait until the agent that was let go has ended; kill it if it does not in time. Gives
        what it says of its end, "" if it ended well."""
        for _ in range(2):
            try:
                status = self._process.wait(deadline_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
            else:
                why = self._why() if status and not self._told else ""
                break
        else:
            # Told and not raised: what the ranks wrote is still to be shown
            why = f"its agent did not end within {deadline_s:g} s after SIGKILL"
        for pipe in (self._answers, self._errors):
            pipe.close()
        return why

    def _read(self) -> None:
        data = self._answers.read(PIECE_NBYTES)
        self._heard_s, self._is_suspect = time.monotonic(), False
        if data == b"":
            self._lose(self._why())
            return
        try:
            for words, piece in self._ear.hear(data or b""):
                self._hears(words, piece)
        except TalkError as error:
            self._lose(f"it does not speak as an agent does: {error}")

    def _read_errors(self) -> bool:
        data = self._errors.read(PIECE_NBYTES)
        if data:
            self._tail.add(data)
        elif data is not None:
            self._forget(self._errors)
        return bool(data)

    def _write(self) -> None:
        try:
            del self._outbox[: self._orders.write(self._outbox) or 0]
        except OSError:
            self._outbox.clear()  # it has ended, which its answers will tell
        if not self._outbox:
            self._forget(self._orders)

    def _why(self) -> str:
        """Why the agent has ended, in the words of the shell or of the agent, if there are any."""
        while not self._errors.closed and self._read_errors():
            pass
        said_last = " / ".join(self._tail.lines(_TAIL_LINES))
        with suppress(subprocess.TimeoutExpired):
            status = ended(self._process.wait(1.0))
            return f"its agent ended ({status})" + (f": {said_last}" if said_last else "")
        return "its agent has closed the connection" + (f": {said_last}" if said_last else "")

    def _lose(self, why: str) -> None:
        """Take nothing more from it. Its end of the pipe tells the agent to end everything."""
        if self._lost:
            return
        self._lost, self._told = True, why
        for pipe in (self._orders, self._answers, self._errors):
            self._forget(pipe)
        self._orders.close()
        if why:
            self._loses(why)

    def _forget(self, pipe: FileIO) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(pipe)
