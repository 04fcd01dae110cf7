"""The programs that are loaded on a device, each once, and handles that wait to be given back."""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from threading import local
from typing import TYPE_CHECKING

from hal.core.device import Device
from hal.core.values import Handle, KernelSource, Program
from stack.settings import short_turns

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

SLOW_S = 0.005
"""What takes less was found in the device's cache."""
COMPILED_S = 0.03
"""A device that takes so long for slow programs, one or several, compiles them. One that takes
less may have waited for its turn: threads of the device compute meanwhile."""


class Loaded:
    """A loaded program; it is given back to the device when nobody holds this any more."""

    __slots__ = ("__weakref__", "program")

    def __init__(self, program: Program) -> None:
        self.program = program


class _Begun:
    """What a thread has begun to load, and the threads that load it, from the first one on."""

    def __init__(self) -> None:
        self.loads: dict[KernelSource, Future[Loaded]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._while = ExitStack()

    def start(self, source: KernelSource, load: Callable[[], Loaded]) -> None:
        """Load a source in one of the threads. When the interpreter ends there are none to be had,
        and nothing is begun."""
        with suppress(RuntimeError):
            self.loads[source] = self._threads().submit(load)

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            # Imported here, since nothing is compiled where all is in caches.
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

            self._pool = ThreadPoolExecutor(os.cpu_count() or 1, "compile")
            self._while.enter_context(short_turns())
        return self._pool

    def end(self) -> None:
        """Wait until no thread loads; what none has begun with is let go."""
        with self._while:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)


class _Own(local):
    """Of each thread: None where it may not begin."""

    begun: _Begun | None = None


class Programs:
    """Loads programs and frees handles of one device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._loaded: weakref.WeakValueDictionary[KernelSource, Loaded] = (
            weakref.WeakValueDictionary()
        )
        # A finalizer may run inside a call of the device, so it only appends here.
        self._retired: deque[Handle] = deque()
        self._own = _Own()

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """In it, what this thread begins is loaded while the thread goes on; at the end, what it
        has not asked for is let go."""
        outer, self._own.begun = self._own.begun, (begun := _Begun())
        try:
            yield
        finally:
            self._own.begun = outer
            begun.end()

    def begin(self, source: KernelSource) -> None:
        """`load` is going to be asked for this source. Outside of `ahead` nothing is done."""
        begun = self._own.begun
        if begun is not None and source not in begun.loads and source not in self._loaded:
            begun.start(source, lambda: self._new(source, (source,)))

    def load(self, sources: Iterable[KernelSource]) -> Mapping[KernelSource, Loaded]:
        """The programs of these sources; equal sources share one. Raises as `Device.load`.

        Once it is seen that a device has to compile, it compiles as many at a time as there are
        processors, the longest first: its compiler may be another process, or leave Python's lock
        alone. Threads would only wait for one another with what it finds in its cache.
        """
        found = {source: self._loaded.get(source) for source in sources}
        begun = {} if self._own.begun is None else self._own.begun.loads
        missing = sorted(
            (s for s, loaded in found.items() if loaded is None and s not in begun), key=_length
        )
        new: dict[KernelSource, Loaded] = {}
        beside = tuple(missing)
        slow_s = 0.0
        while missing and slow_s < COMPILED_S:
            began = time.perf_counter()
            source = missing.pop(0)
            new[source] = self._new(source, beside)
            took_s = time.perf_counter() - began
            slow_s += took_s if took_s >= SLOW_S else 0.0
        rest = _Begun()
        try:
            for source in reversed(missing):
                rest.start(source, partial(self._new, source, beside))
            begun = begun | rest.loads
            new.update({s: begun[s].result() for s in found if s in begun})
        finally:
            rest.end()
        new.update({s: self._new(s, beside) for s in missing if s not in begun})
        return {source: loaded or new[source] for source, loaded in found.items()}

    @property
    def count(self) -> int:
        """The programs that are loaded and held."""
        return len(self._loaded)

    def _new(self, source: KernelSource, beside: tuple[KernelSource, ...]) -> Loaded:
        made = Loaded(self._device.load(replace(source, beside=beside)))
        self._loaded[source] = made
        weakref.finalize(made, self.retire, (made.program,)).atexit = False
        return made

    def retire(self, handles: Iterable[Handle]) -> None:
        """Give handles back at the next `sweep`. Never blocks, so it may be called from a
        finalizer."""
        self._retired.extend(handles)

    def sweep(self) -> None:
        """Free every retired handle."""
        while True:
            try:
                handle = self._retired.popleft()
            except IndexError:
                return
            self._device.free(handle)


def _length(source: KernelSource) -> int:
    return len(source.text)
