"""What a function read of objects outside of it when it was traced: its plan is right as long as it
is so."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from stack.framework.cell import Cell


class Flags:
    """What a trace has read: attributes of older leaves and of other objects. They may be gone
    since: a plan keeps alive what it needs."""

    def __init__(self, read: Mapping[tuple[object, str], object]) -> None:
        self._read = [(weakref.ref(of), name, value) for (of, name), value in read.items()]
        self._seen = -1

    def hold(self) -> bool:
        """Whether a trace would read the same now. It looks only after something has changed."""
        if self._seen == Cell.changes:
            return True
        seen, held = Cell.changes, all(_is(of(), name, value) for of, name, value in self._read)
        self._seen = seen if held else -1
        return held


def _is(holder: object | None, name: str, value: object) -> bool:
    return holder is None or getattr(holder, name) == value
