"""Which device is opened, and with which settings."""

from __future__ import annotations

from dataclasses import dataclass

from hal.hosted.places import Place

PLUGIN = "cuda"


@dataclass(frozen=True, slots=True)
class Choice:
    """An opened device; `memory_nbytes` 0 leaves the size to the driver."""

    place: Place
    memory_nbytes: int
    progress_s: float

    @property
    def name(self) -> str:
        return f"{PLUGIN}:{self.place.index}"
