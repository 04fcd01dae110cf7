"""The processes of a host's ranks: their start, what they write, and how they end."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

from hal.core.facts import dataclass
from stack.comm.world import LINE, PREFIX
from stack.launch.line import AgentLine, LineEnded
from stack.launch.loop import unblocked
from stack.launch.processes import end_with_parent
from stack.launch.talk import PIECE_NBYTES

STREAMS = ("stdout", "stderr")
_LAST_READS = 64
"""How often a pipe is read once its rank has ended: children of the rank may go on writing."""

Wrote = Callable[[int, str, bytes], None]
"""Takes a rank, the name of its stream and what it wrote there."""
Ended = Callable[[int, int], None]
"""Takes a rank, and its exit status or minus the signal that ended it."""
Told = Callable[[int, dict[str, Any], list[int]], None]
"""Takes a rank, what it says on its line, and the descriptors that came with it."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to start as a rank: its command, the whole environment, its processors, and whether it
    has a line to the agent."""

    rank: int
    command: tuple[str, ...]
    environment: Mapping[str, str]
    cpus: frozenset[int]
    lined: bool = False


@dataclass(eq=False, slots=True)
class _Rank:
    number: int
    process: subprocess.Popen[bytes]
    ended: int
    """A descriptor that can be read once the process has ended."""
    pipes: dict[str, FileIO]
    line: AgentLine | None


class Ranks:
    """The ranks of this host, and what they tell by a selector: its keys' data are to be called.

    Each rank is a session of its own, so that no signal of a terminal reaches it, and ends with
    this process, however that ends.
    """

    def __init__(
        self, selector: selectors.BaseSelector, wrote: Wrote, ended: Ended, told: Told
    ) -> None:
        self._selector = selector
        self._wrote = wrote
        self._ended = ended
        self._told = told
        self._ranks: dict[int, _Rank] = {}
        self._reading: dict[FileIO, Callable[[], object]] = {}
        self._paused = False

    @property
    def processes(self) -> frozenset[int]:
        """The numbers of the processes that run."""
        return frozenset(rank.process.pid for rank in self._ranks.values())

    @property
    def numbers(self) -> frozenset[int]:
        """The ranks that run."""
        return frozenset(self._ranks)

    def start(self, order: Order) -> None:
        """Start a rank. Raises OSError when the system cannot."""
        parent = os.getpid()
        line, other = AgentLine.pair() if order.lined else (None, None)
        given = () if other is None else (other.fileno(),)
        try:
            process = subprocess.Popen(
                order.command,
                bufsize=0,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=given,
                preexec_fn=lambda: _begin(parent, order, given),
            )
        finally:
            if other is not None:
                other.close()
        pipes = {name: unblocked(getattr(process, name)) for name in STREAMS}
        rank = _Rank(order.rank, process, os.pidfd_open(process.pid), pipes, line)
        self._ranks[order.rank] = rank
        self._selector.register(rank.ended, selectors.EVENT_READ, lambda: self._end(rank))
        for name, pipe in pipes.items():
            self._reading[pipe] = partial(self._read, rank, name, pipe)
            self._listen(pipe)
        if line is not None:
            self._selector.register(line, selectors.EVENT_READ, lambda: self._hear(rank))

    def signal(self, number: int, only: int | None = None) -> None:
        """Send every rank that runs a signal, or one, with the processes of its group."""
        for rank in self._ranks.values():
            if only in (None, rank.number):
                with suppress(ProcessLookupError):
                    os.killpg(rank.process.pid, number)

    def stopped(self) -> set[int]:
        """The ranks with a line whose processes are stopped, as SIGSTOP does."""
        lined = [rank for rank in self._ranks.values() if rank.line is not None]
        return {rank.number for rank in lined if _is_stopped(rank.process.pid)}

    def tell(
        self, numbers: Sequence[int], words: dict[str, Any], descriptors: Sequence[int] = ()
    ) -> None:
        """Say it to those of these ranks that run and have a line. One that has not taken what was
        said before hears nothing: it is stuck."""
        for rank in self._ranks.values():
            if rank.number in numbers and rank.line is not None:
                with suppress(LineEnded):
                    rank.line.say(words, descriptors)

    def pause(self, paused: bool) -> None:
        """Read nothing more of what the ranks write, because nobody takes it; or go on."""
        if paused is not self._paused:
            self._paused = paused
            for pipe in self._reading:
                self._listen(pipe)

    def _listen(self, pipe: FileIO) -> None:
        if self._paused:
            with suppress(KeyError):
                self._selector.unregister(pipe)
        else:
            self._selector.register(pipe, selectors.EVENT_READ, self._reading[pipe])

    def _read(self, rank: _Rank, name: str, pipe: FileIO) -> bool:
        """Pass on what a rank wrote; False when there is nothing more now."""
        data = pipe.read(PIECE_NBYTES)
        if data:
            self._wrote(rank.number, name, data)
        elif data is not None:
            with suppress(KeyError):
                self._selector.unregister(pipe)
            self._reading.pop(pipe, None)
            pipe.close()
        return bool(data)

    def _hear(self, rank: _Rank) -> None:
        """Pass on what a rank says on its line."""
        assert rank.line is not None
        try:
            while (said := rank.line.hear()) is not None:
                self._told(rank.number, *said)
        except LineEnded:
            with suppress(KeyError):
                self._selector.unregister(rank.line)

    def _end(self, rank: _Rank) -> None:
        """A rank's process has ended: first pass on what it wrote and said last."""
        if rank.line is not None:
            self._hear(rank)
            with suppress(KeyError):
                self._selector.unregister(rank.line)
            rank.line.close()
        for name, pipe in rank.pipes.items():
            reads = 0
            while not pipe.closed and reads < _LAST_READS and self._read(rank, name, pipe):
                reads += 1
        status = rank.process.poll()
        assert status is not None, "the descriptor of a process that has ended can be read"
        self._selector.unregister(rank.ended)
        os.close(rank.ended)
        del self._ranks[rank.number]
        self._ended(rank.number, status)


def _is_stopped(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state == b"T"


def _begin(parent: int, order: Order, given: Sequence[int]) -> None:
    """What a rank's process does before it becomes the script: no signal stays ignored because the
    launcher was started in the background, and its environment says which process it is."""
    end_with_parent(parent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.sched_setaffinity(0, order.cpus)
    os.environ.clear()
    os.environ.update(order.environment, **{f"{PREFIX}PROCESS": str(os.getpid())})
    for descriptor in given:
        os.environ[f"{PREFIX}{LINE}"] = str(descriptor)
