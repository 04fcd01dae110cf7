"""Which core group is opened, and with which settings."""

from __future__ import annotations

from dataclasses import dataclass

PLUGIN = "sunway"
CORE_GROUPS = 6
DESCRIPTION = "emulated SW26010-Pro core group"


@dataclass(frozen=True, slots=True)
class Choice:
    """An opened core group: its index and settings; 0 and "" mean the default."""

    index: int
    memory_nbytes: int
    progress_s: float
    memory_mode: str
    chip: str
    without: str
    report: str
    trace: str
    cache_dir: str
