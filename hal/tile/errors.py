"""The one error of the tile format."""

from __future__ import annotations

from hal.core.errors import HalError


class TileError(HalError, ValueError):
    """A kernel breaks the rules of the tile IR, or a run of it touched memory that is not there."""

    next_step = "fix the kernel"
