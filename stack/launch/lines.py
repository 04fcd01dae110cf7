"""Whole lines of what several processes write, so that no line ends in another one's."""

from __future__ import annotations

LINE_NBYTES = 1 << 16
"""A line that is longer is cut into lines of this length."""


class Lines:
    """Takes what one stream writes, in pieces, and gives whole lines, each with a prefix."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._rest = b""

    def add(self, data: bytes) -> bytes:
        """The lines that are complete now; bytes are passed on as they are."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > LINE_NBYTES:
            whole.append(self._rest[:LINE_NBYTES])
            self._rest = self._rest[LINE_NBYTES:]
        return b"".join(self._prefix + line + b"\n" for line in whole)

    def end(self) -> bytes:
        """What was written behind the last line, as a line."""
        rest, self._rest = self._rest, b""
        return self._prefix + rest + b"\n" if rest else b""


class Tail:
    """The last lines of what one stream wrote."""

    def __init__(self, nbytes: int = 1 << 14) -> None:
        self._nbytes = nbytes
        self._kept = b""

    def add(self, data: bytes) -> None:
        """Keep this, and no more of what came before than fits."""
        self._kept = (self._kept + data)[-self._nbytes :]

    def lines(self, most: int) -> list[str]:
        """At most so many lines, those at the end, as text; a line whose begin is lost is left out
        when there are others."""
        lines = self._kept.decode(errors="backslashreplace").rstrip().splitlines()
        if len(self._kept) == self._nbytes and len(lines) > 1:
            del lines[0]
        return lines[-most:]


def last_exception(lines: list[str]) -> str:
    """The line that names the exception of a Python traceback, or what broke the interpreter; ""
    where there is neither."""
    if fatal := [line for line in lines if line.startswith("Fatal Python error: ")]:
        return fatal[0]
    begins = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent")]
    if not begins:
        return ""
    after = (line for line in lines[begins[-1] + 1 :] if line and not line[0].isspace())
    return next(after, "")
