"""Checkpoints that are never torn and never silently wrong, for any number of ranks: arrays, names
and boxes, without tensors."""

from stack.storage.agree import Limits
from stack.storage.background import Saving
from stack.storage.boxes import Box, Shard, Span
from stack.storage.checkpoints import Checkpoints, Loaded
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
    "Checkpoints",
    "Damaged",
    "Limits",
    "Loaded",
    "Mismatch",
    "NoCheckpoint",
    "Occupied",
    "Refused",
    "Saving",
    "Shard",
    "Span",
    "StorageError",
]
