"""What plans run on: the parts of an engine, as one value."""

from __future__ import annotations

from collections import Counter

from hal.core.description import Feature
from hal.core.device import Device
from hal.core.facts import dataclass
from stack.runtime.exchange import RankGroup
from stack.runtime.memory import Arena, ArrayMemory
from stack.runtime.programs import Programs
from stack.runtime.stream import Stream


@dataclass(frozen=True, slots=True)
class Resources:
    """A device with its memory, its timeline and its programs.

    `fallbacks` counts what had to be done the slow way for want of a feature. `groups` are the
    groups of ranks that the device is in, by the names that graphs have for them.
    """

    device: Device
    memory: ArrayMemory
    stream: Stream
    programs: Programs
    fallbacks: Counter[str]
    groups: dict[str, RankGroup]

    def note_fallback(self, feature: Feature, instead: str) -> None:
        """Count what is done `instead`, and tell the device's wrappers."""
        self.fallbacks[f"{instead}: the device has no {feature.value}"] += 1
        self.device.without(feature, instead)

    def arena(self, nbytes: int) -> Arena:
        """Memory for a plan's temporaries, which plans share. Where it is too small for this one,
        the others take the larger one at their next run, and it goes back to the device."""
        if self.memory.outgrow(nbytes):
            self.programs.sweep()
            self.memory.pool.trim()
        return self.memory.arena(nbytes)
