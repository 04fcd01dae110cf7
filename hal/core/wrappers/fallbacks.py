"""Counting fallbacks, one wrapper for every device: what the stack did the slow way because the
device lacks a feature."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Generator
from typing import TextIO

from hal.core.description import Feature
from hal.core.device import Device
from hal.core.spec import hookimpl

_counted = hookimpl(wrapper=True)


class Fallbacks:
    """Counts of fallbacks. `hal.open(name, wrappers=[fallbacks])` adds a device, also several.

    `counts` has how often, by the device's name, the feature that it lacks and what was done
    instead. With `report` each device that closes writes its lines there.
    """

    def __init__(self, report: TextIO | None = None) -> None:
        self.counts: Counter[tuple[str, Feature, str]] = Counter()
        self._report = report
        self._lock = threading.Lock()

    def __call__(self, device: Device) -> object:
        """The wrapper plugin for one device."""
        return _DeviceFallbacks(self, device.name)

    def add(self, device: str, feature: Feature, instead: str) -> None:
        """Count one fallback."""
        with self._lock:
            self.counts[device, feature, instead] += 1

    def said(self, device: str) -> str:
        """A device's fallbacks in words, the most frequent first."""
        found = [(n, f, text) for (d, f, text), n in self.counts.most_common() if d == device]
        lines = [f"  {n} x {text} (no {f.value!r})" for n, f, text in found]
        return "\n".join([f"{device}: {'fallbacks' if lines else 'no fallbacks'}", *lines])

    def write(self, device: str) -> None:
        """Write a device's lines where reports go."""
        if self._report is not None:
            self._report.write(self.said(device) + "\n")


def reported_fallbacks(device: Device) -> object:
    """The wrapper "fallbacks": a device that closes says its counts on the standard error."""
    return Fallbacks(sys.stderr)(device)


class _DeviceFallbacks:
    """The hooks of one device."""

    def __init__(self, fallbacks: Fallbacks, device: str) -> None:
        self._fallbacks = fallbacks
        self._device = device

    @_counted
    def without(self, feature: Feature, instead: str) -> Generator[None]:
        self._fallbacks.add(self._device, feature, instead)
        yield

    @_counted
    def close(self) -> Generator[None]:
        yield
        self._fallbacks.write(self._device)
