"""What a function read of objects outside of it when it was traced: its plan is right as long as it
is so."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from stack.framework.cell import newest_change


class Flags:
    """What a trace has read: attributes of older leaves and of other objects. They may be gone
    since: a plan keeps alive what it needs."""

    def __init__(self, read: Mapping[tuple[int, str], tuple[object, object]]) -> None:
        self._read = [(weakref.ref(of), name, value) for (_, name), (of, value) in read.items()]
        self._seen = -1

    @property
    def are_any(self) -> bool:
        return bool(self._read)

    def hold(self) -> bool:
        """Whether a trace would read the same now. It looks only after something has changed."""
        seen = newest_change()
        if self._seen == seen:
            return True
        held = all(
            (holder := of()) is None or getattr(holder, name) == value
            for of, name, value in self._read
        )
        self._seen = seen if held else -1
        return held
