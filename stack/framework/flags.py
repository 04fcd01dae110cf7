"""Which leaves required a gradient when a function was traced: its plan is right as long as they
do."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from stack.framework.cell import Cell


class Flags:
    """What a trace has read of older leaves. They may be gone since: a plan keeps alive what it
    needs."""

    def __init__(self, read: Mapping[Cell, bool]) -> None:
        self._read = [(weakref.ref(cell), required) for cell, required in read.items()]
        self._seen = -1

    def hold(self) -> bool:
        """Whether a trace would read the same now. It looks at the leaves only after some cell has
        changed."""
        if self._seen == Cell.changes:
            return True
        seen, held = Cell.changes, all(_is(cell(), required) for cell, required in self._read)
        self._seen = seen if held else -1
        return held


def _is(cell: Cell | None, required: bool) -> bool:
    return cell is None or cell.requires_grad == required
