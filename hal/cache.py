"""The folder in which HAL keeps what is slow to find out again."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "HAL_CACHE_DIR"


def cache_dir() -> Path:
    """$HAL_CACHE_DIR, $XDG_CACHE_HOME/hal or ~/.cache/hal. It need not exist yet."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hal"
