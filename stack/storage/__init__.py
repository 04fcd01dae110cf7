"""Checkpoints that are never torn and never silently wrong, for any number of ranks: arrays, names
and boxes, without tensors."""

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
