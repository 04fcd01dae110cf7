"""Registrations that can be taken back."""

from __future__ import annotations

from itertools import count
from typing import Any

_numbers = count()


class RemovableHandle:
    """A hook's registration; as a context manager it ends with its block."""

    def __init__(self, hooks: dict[int, Any]) -> None:
        self.id = next(_numbers)
        self._hooks = hooks

    def remove(self) -> None:
        """Call the hook no more."""
        self._hooks.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()
