"""The one error of the tile format."""

from __future__ import annotations

from hal.core.errors import HalError


class TileError(HalError, ValueError):
    """A kernel breaks the rules of the tile IR, or a run of it touched memory that is not there."""

    next_step = "fix the kernel"


class TileTextError(TileError):
    """Text that is not a kernel. `line` and `column` count from 1."""

    next_step = "fix the text at that place"

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.line = line
        self.column = column
