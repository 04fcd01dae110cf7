"""What can go wrong with stored state; each kind tells the caller's next step."""

from __future__ import annotations

from hal.core.errors import HalError


class StorageError(HalError):
    """Stored state cannot be written or read; checkpoints that were whole before still are."""

    next_step = "do what the message says; older checkpoints are unchanged"


class NoCheckpoint(StorageError):
    """There is no whole checkpoint where one is looked for."""

    next_step = "look with `hal checkpoint list`, or start without a checkpoint"


class Damaged(StorageError):
    """Stored bytes are not those that were written, and no other copy of them is whole."""

    next_step = "load an older step; `hal checkpoint verify` lists all that is damaged"


class Mismatch(StorageError):
    """The checkpoint holds other tensors than those that are asked for."""

    next_step = "load with the model that was saved"


class Occupied(StorageError):
    """Another job writes there."""

    next_step = "end the other job, or save to another place"


class Refused(StorageError):
    """The store does not do what a commit needs, as a trial against itself has shown."""

    next_step = "save to a store that keeps its promises"
