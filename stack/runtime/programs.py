"""The programs that are loaded on a device, each once, and handles that wait to be given back."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable

from hal.core.device import Device
from hal.core.values import Handle, KernelSource, Program


class Loaded:
    """A loaded program; it is given back to the device when nobody holds this any more."""

    __slots__ = ("__weakref__", "program")

    def __init__(self, program: Program) -> None:
        self.program = program


class Programs:
    """Loads programs and frees handles of one device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._loaded: weakref.WeakValueDictionary[KernelSource, Loaded] = (
            weakref.WeakValueDictionary()
        )
        # A finalizer may run inside a call of the device, so it only appends here.
        self._retired: deque[Handle] = deque()

    def load(self, source: KernelSource) -> Loaded:
        """The program of that source; equal sources share one. Raises as `Device.load`."""
        found = self._loaded.get(source)
        if found is None:
            found = Loaded(self._device.load(source))
            self._loaded[source] = found
            weakref.finalize(found, self.retire, (found.program,)).atexit = False
        return found

    def retire(self, handles: Iterable[Handle]) -> None:
        """Give handles back at the next `sweep`. Never blocks, so it may be called from a
        finalizer."""
        self._retired.extend(handles)

    def sweep(self) -> None:
        """Free every retired handle."""
        while self._retired:
            self._device.free(self._retired.popleft())
