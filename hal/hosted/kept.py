"""Programs that a driver built from sources, kept from one session to the next."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from hal.cache import Cache
from hal.core.values import KernelSource

Built = TypeVar("Built")

_KEEPING_S = 3.0
_MOST = 256
"""How many built programs wait to be kept: a driver may hold a megabyte for each."""


class KeptBuilds(Generic[Built]):
    """What a driver built from sources, in a cache; `binary` asks the driver for it, and `said` are
    facts on which builds depend."""

    def __init__(
        self, cache: Cache, binary: Callable[[Built], bytes | None], *said: object
    ) -> None:
        self._cache, self._binary, self._said = cache, binary, said
        self._new: OrderedDict[KernelSource, tuple[int, Built]] = OrderedDict()

    def get(self, source: KernelSource) -> bytes | None:
        """The binary of a source."""
        return self._cache.get(self._name(source))

    def remove(self, source: KernelSource) -> None:
        """Let a binary go that the driver does not take."""
        self._cache.remove(self._name(source))

    def note(self, source: KernelSource, program: Built, length: int) -> None:
        """A program was built, of a text of this length, and should be kept. A driver may take
        longer for its binary than for building, so that is asked for last, or when too many wait.
        """
        if self._cache.is_open:
            self._new[source] = length, program
            if len(self._new) > _MOST:
                oldest, (_, program) = self._new.popitem(last=False)
                self._put(oldest, program)

    def keep(self) -> None:
        """Keep what was built, as far as time allows and the driver gives binaries: those of short
        texts first, since one of a long text takes as long as many of them."""
        until_s = time.monotonic() + _KEEPING_S
        shortest = sorted(self._new.items(), key=lambda item: item[1][0])
        self._new.clear()
        for source, (_, program) in shortest:
            if time.monotonic() >= until_s:
                break
            self._put(source, program)

    def _put(self, source: KernelSource, program: Built) -> None:
        if content := self._binary(program):
            self._cache.put(self._name(source), content)

    def _name(self, source: KernelSource) -> str:
        text = repr((*self._said, source)).encode(errors="backslashreplace")
        return hashlib.sha256(text).hexdigest()
