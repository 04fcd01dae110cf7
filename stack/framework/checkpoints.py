"""Checkpoints of a job, a step each: trees of tensors and plain state in `stack.storage`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hal.tile.numeric import NUMPY
from stack.comm.group import Group
from stack.framework.checkpoint import StateTree, taken_apart
from stack.framework.devices import engine
from stack.framework.errors import CheckpointError
from stack.framework.realize import parts_of
from stack.framework.tensor import Tensor
from stack.runtime.array import Array
from stack.runtime.snapshot import Bytes
from stack.storage import Box, Checkpoints, Saving, TensorShard

_ALONE = "tensors"
"""The group of tensors that stand at the top of a tree."""


class TreeCheckpoints:
    """The checkpoints in a folder, or in stores by their URLs ("file:/nvme/run, s3://bucket/run").

    What stands under each key at the top of a tree ("model", "optimizer") goes to files of its own,
    which other safetensors readers take. Ranks that hold equal tensors write each once; `group` is
    used by these checkpoints alone. The options are those of `stack.storage.Checkpoints`.
    """

    def __init__(self, where: str | Path, group: Group | None = None, **options: Any) -> None:
        self._where = Path(where)
        self._stored = Checkpoints(where, group, **options)

    def save(
        self, step: int, tree: Mapping[str, Any], *, background: bool = False, **options: Any
    ) -> Saving:
        """Commit a step: nested dicts, lists and tuples of tensors and plain values; the other
        options are those of `stack.storage.Checkpoints.save`.

        In the background this returns at once. The tensors may be given other values then: what
        writes one of them in place waits on the device until this rank's part is copied. Raises
        CheckpointError for what cannot be saved, StorageError for what a store does not do.
        """
        plain: dict[str, Any] = {}
        found: dict[str, dict[str, Tensor]] = {}
        for key, value in tree.items():
            if not isinstance(key, str):
                raise CheckpointError(f"a tree of a checkpoint has names at its top, not {key!r}")
            if isinstance(value, Tensor):
                plain[key] = taken_apart(value, key, found.setdefault(_ALONE, {}))
            else:
                plain[key] = taken_apart(value, "", found.setdefault(key, {}))
        with ExitStack() as unless_begun:
            shards, close = _read_late(found)
            unless_begun.callback(close)
            saving = self._stored.save(
                step, shards, plain, background=background, staged=False, **options
            )
            unless_begun.pop_all()
        saving.staged.add_done_callback(lambda _: close())
        return saving

    def load(self, step: int | None = None, device: str | None = None) -> tuple[int, Any]:
        """The newest whole step, or this one, and its tree with tensors on the device. Raises
        NoCheckpoint, Damaged, and CheckpointError for a checkpoint that holds no tree."""
        loaded = self._stored.load(step=step)
        if not isinstance(loaded.state, dict):
            raise CheckpointError(f"step {loaded.step} of {self._where} holds no tree of tensors")
        tree = {}
        for key, value in loaded.state.items():
            group = _ALONE if isinstance(value, dict) and "tensor:" in value else key
            arrays = loaded.tensors.get(group, {})
            tree[key] = StateTree(self._where, arrays, device).part(value, 0)
        return loaded.step, tree

    def newest(self) -> int | None:
        """The newest committed step, if there is one."""
        steps = self._stored.steps()
        return steps[0] if steps else None

    def wait_idle(self) -> None:
        """Until no save is under way. Raises what went wrong in the background."""
        self._stored.wait_idle()

    def close(self) -> None:
        """Wait for what is under way. Raises what went wrong in the background."""
        self._stored.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _read_late(
    found: Mapping[str, Mapping[str, Tensor]],
) -> tuple[dict[str, dict[str, TensorShard]], Callable[[], None]]:
    """Shards that read a tensor from its device when, and if, this rank copies it; and what lets
    the tensors change."""
    tensors = [t for members in found.values() for t in members.values()]
    parts = {t.serial: part for t, part in zip(tensors, parts_of(tensors), strict=True)}
    arrays: dict[str, list[Array]] = {}
    for t in tensors:
        arrays.setdefault(t.device, []).append(parts[t.serial][0])
    with ExitStack() as stack:
        snapshots = {}
        for device, members in arrays.items():
            snapshots[device] = engine(device).snapshot(list({id(a): a for a in members}.values()))
            stack.callback(snapshots[device].close)
        close = stack.pop_all().close

    def shard(t: Tensor) -> TensorShard:
        array, first = parts[t.serial]
        dtype = NUMPY[t.dtype]

        def read(pieces: Sequence[tuple[int, Bytes]]) -> None:
            begin = first * dtype.itemsize
            snapshots[t.device].read(array, [(begin + at, out) for at, out in pieces])

        return TensorShard(read, t.shape, dtype, Box((0,) * len(t.shape), t.shape))

    shards = {
        group: {name: shard(t) for name, t in members.items()}
        for group, members in found.items()
        if members
    }
    return shards, close
