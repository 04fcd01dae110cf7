"""What the launcher shows: the lines of all ranks, or files of them, and one line of progress."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from io import FileIO
from pathlib import Path

from hal.core.errors import InvalidCall
from stack.launch.lines import Lines
from stack.launch.ranks import STREAMS

_CLEAR = b"\r\x1b[K"
_COLOURS = (36, 33, 35, 32, 34, 31)
_FULL_NBYTES = 1 << 20
_FIRST_OTHER = 3
"""The lowest number of a descriptor that is no standard stream."""


def fill_closed_streams() -> None:
    """Let nothing else take the numbers of standard streams that whoever started this process has
    closed: what is written there goes nowhere."""
    while (number := os.open(os.devnull, os.O_RDWR)) < _FIRST_OTHER:
        os.set_inheritable(number, True)
    os.close(number)


class Sink:
    """A descriptor that takes what it can without blocking; the rest waits in `outbox`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.outbox = bytearray()
        self.broken: OSError | None = None
        self.terminal = os.isatty(descriptor)

    def put(self, data: bytes) -> None:
        """Write this when it can be written; nowhere, once `broken` says why it cannot."""
        if self.broken is None:
            self.outbox += data

    def flush(self) -> None:
        """Write a little. Call it when the descriptor can be written to: it then takes as much as a
        pipe takes at once."""
        try:
            del self.outbox[: os.write(self.descriptor, self.outbox[: select.PIPE_BUF])]
        except OSError as error:
            self.broken = error
            self.outbox.clear()


def standard_sinks() -> tuple[Sink, Sink]:
    """Standard output and standard error; one sink where both are the same file or terminal, which
    then shows what is put in the order in which it was put."""
    output = Sink(1)
    return output, output if os.path.sameopenfile(1, 2) else Sink(2)


class Screen:
    """Shows each line of each rank behind the rank's number, in colour on a terminal.

    With a folder each stream of each rank goes to a file of it as it is, "rank-0.stdout", and
    nothing is shown. Raises InvalidCall when the folder cannot be written.
    """

    def __init__(self, ranks: Sequence[int], folder: Path | None, sinks: Sequence[Sink]) -> None:
        self.sinks = dict(zip(STREAMS, sinks, strict=True))
        width = len(str(max(ranks)))
        self._lines = {
            (rank, name): Lines(_prefix(rank, width, self.sinks[name].terminal))
            for rank in ranks
            for name in STREAMS
        }
        self._files = _files(folder, tuple(self._lines)) if folder else {}
        self._drawn = b""

    @property
    def full(self) -> bool:
        """Whether so much waits to be shown that no more should be taken from the ranks."""
        return any(len(sink.outbox) > _FULL_NBYTES for sink in self.sinks.values())

    def wrote(self, rank: int, stream: str, data: bytes) -> None:
        """A rank wrote this. Raises InvalidCall when its file takes no more."""
        if file := self._files.get((rank, stream)):
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError as error:
                raise InvalidCall(
                    f"the ranks' output cannot be kept in {file.name}: {error}"
                ) from error
        else:
            self._put(stream, self._lines[rank, stream].add(data))

    def ended(self, rank: int) -> None:
        """A rank writes nothing more."""
        for name in STREAMS:
            self._put(name, self._lines[rank, name].end())

    def progress(self, text: str) -> None:
        """Show this in the last line of the terminal, if there is one and nothing else is due."""
        errors = self.sinks["stderr"]
        if errors.terminal and not any(sink.outbox for sink in self.sinks.values()):
            columns = os.get_terminal_size(errors.descriptor).columns or 80
            line = text[: columns - 1].encode()
            if line != self._drawn:
                errors.put(_CLEAR + line)
                self._drawn = line

    def tell(self, text: str) -> None:
        """Show lines of the launcher itself."""
        self._put("stderr", text.encode(errors="replace") + b"\n")

    def close(self, deadline_s: float) -> None:
        """Write what waits, as far as somebody takes it in that time."""
        self._put("stderr", b"")
        until_s = time.monotonic() + deadline_s
        sinks = dict.fromkeys(self.sinks.values())
        while waiting := [sink for sink in sinks if sink.outbox]:
            left_s = until_s - time.monotonic()
            ready = select.select([], [sink.descriptor for sink in waiting], [], max(left_s, 0))[1]
            if not ready:
                break
            for sink in waiting:
                if sink.descriptor in ready:
                    sink.flush()
        for file in self._files.values():
            file.close()

    def _put(self, stream: str, data: bytes) -> None:
        sink = self.sinks[stream]
        if self._drawn and sink.terminal:
            self._drawn = b""
            data = _CLEAR + data
        sink.put(data)


def _prefix(rank: int, width: int, terminal: bool) -> bytes:
    text = f"[{rank:{width}}]"
    if terminal and "NO_COLOR" not in os.environ:
        text = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{text}\x1b[0m"
    return f"{text} ".encode()


def _files(folder: Path, streams: Sequence[tuple[int, str]]) -> dict[tuple[int, str], FileIO]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return {(rank, name): FileIO(folder / f"rank-{rank}.{name}", "w") for rank, name in streams}
    except OSError as error:
        raise InvalidCall(f"the ranks' output cannot be kept in {folder}: {error}") from error
