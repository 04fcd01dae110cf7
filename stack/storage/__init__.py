"""Checkpoints that are never torn and never silently wrong, for any number of ranks: arrays, names
and boxes, without tensors."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stack.storage.agree import CheckpointLimits
    from stack.storage.background import Saving
    from stack.storage.boxes import Box, FlatRange, TensorShard
    from stack.storage.checkpoints import Checkpoint, Checkpoints
    from stack.storage.errors import (
        Damaged,
        Mismatch,
        NoCheckpoint,
        Occupied,
        Refused,
        StorageError,
    )

__all__ = [
    "Box",
    "Checkpoint",
    "CheckpointLimits",
    "Checkpoints",
    "Damaged",
    "FlatRange",
    "Mismatch",
    "NoCheckpoint",
    "Occupied",
    "Refused",
    "Saving",
    "StorageError",
    "TensorShard",
]

_HOMES = {
    "agree": ("CheckpointLimits",),
    "background": ("Saving",),
    "boxes": ("Box", "FlatRange", "TensorShard"),
    "checkpoints": ("Checkpoint", "Checkpoints"),
    "errors": ("Damaged", "Mismatch", "NoCheckpoint", "Occupied", "Refused", "StorageError"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """A public name, from its module, which is loaded when one of its names is first used: every
    import of the framework, which reads and writes single files, runs this file."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return value
