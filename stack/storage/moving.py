"""Bytes between arrays, blocks and other ranks, as a plan says, while a few threads write or read.

Each thread has one block in its hands; what travels between ranks is bounded by the plan's windows,
two of which are alive at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stack.storage.layout import rounded
from stack.storage.memory import Bytes, Scratch
from stack.storage.plan import Piece, TransferPlan, TransferWindow
from stack.storage.ranks import StorageRanks
from stack.storage.staging import as_it_lies
from stack.storage.threads import Threads

THREADS = 6
"""Blocks under way at a time: the disks measured take more in flight than one thread gives."""

Write = Callable[[int, Bytes], None]
"""Takes a block's number and its memory, in which all bytes of tensors are; ends when written."""
Read = Callable[[int, Bytes], None]
"""Takes a block's number and fills its memory."""


def bytes_of(array: NDArray[Any]) -> Bytes:
    """The bytes of a C-contiguous array, as they lie in memory."""
    return array.reshape(-1).view(np.uint8)


def write_blocks(
    plan: TransferPlan,
    ranks: StorageRanks,
    sources: Sequence[Bytes],
    write: Write,
    scratch: Scratch,
    deadline_s: float,
) -> Exception | None:
    """Bring together each block that this rank owns, and write it. Gives the first error of a
    write; what other ranks wait for goes on."""
    me = ranks.rank
    sent = scratch.memory("away", max((sum(w.counts[me]) for w in plan.windows), default=0))
    rooms = _rooms(plan, me, scratch)
    with _Hands(plan.layout.block, scratch, deadline_s) as hands:
        before: list[Future[None]] = []
        for i, window in enumerate(plan.windows):
            got = rooms[i % 2][: _taken(window.counts, me)]
            if window.travels:
                for _, _, run, count, _, shard, local, offset in window.away:
                    n = run * count
                    sent[offset : offset + n] = sources[shard][local : local + n]
                ranks.move(sent[: sum(window.counts[me])], window.counts, got)
            now = [
                hands.give(
                    _write_one, block, plan.layout.nbytes(block), window, sources, got, write
                )
                for block in window.blocks
            ]
            hands.wait(before)  # they are done with the memory of the next window
            before = now
        return hands.error()


def _rooms(plan: TransferPlan, me: int, scratch: Scratch) -> list[Bytes]:
    """Memory for what others have of this rank's blocks, in two windows."""
    most = max((_taken(w.counts, me) for w in plan.windows), default=0)
    return [scratch.memory(use, most) for use in ("this window", "the next window")]


def _taken(counts: list[list[int]], me: int) -> int:
    """How many bytes a rank gets."""
    return sum(row[me] for row in counts)


def _write_one(
    out: Bytes,
    block: int,
    nbytes: int,
    window: TransferWindow,
    sources: Sequence[Bytes],
    got: Bytes,
    write: Write,
) -> None:
    own = window.own.get(block, ())
    if block not in window.home and (whole := as_it_lies(own, nbytes, sources)) is not None:
        write(block, whole)
        return
    for piece in own:
        _, _, run, count, _, shard, local = piece
        _comb(out, piece)[...] = sources[shard][local : local + run * count].reshape(count, run)
    for piece in window.home.get(block, ()):
        _, _, run, count, *_, offset = piece
        _comb(out, piece)[...] = got[offset : offset + run * count].reshape(count, run)
    write(block, out)


def read_blocks(
    plan: TransferPlan,
    ranks: StorageRanks,
    targets: Sequence[Bytes],
    read: Read,
    scratch: Scratch,
    deadline_s: float,
) -> Exception | None:
    """Read each block that this rank owns and fill the targets of all ranks. Gives the first error
    of a read; other ranks get no bytes for it, but are not left waiting."""
    me = ranks.rank
    rooms = _rooms(plan, me, scratch)
    got = scratch.memory("away", max((sum(w.counts[me]) for w in plan.windows), default=0))
    with _Hands(plan.layout.block, scratch, deadline_s) as hands:

        def begin(i: int) -> tuple[Bytes, list[Future[None]]]:
            window = plan.windows[i]
            sent = rooms[i % 2][: _taken(window.counts, me)]
            return sent, [
                hands.give(_read_one, block, plan.layout.nbytes(block), window, targets, sent, read)
                for block in window.blocks
            ]

        begun = [begin(0)] if plan.windows else []
        for i, window in enumerate(plan.windows):
            if i + 1 < len(plan.windows):
                begun.append(begin(i + 1))
            sent, futures = begun.pop(0)
            hands.wait(futures)
            if not window.travels:
                continue
            ranks.move(sent, window.back(), got[: sum(window.counts[me])])
            for _, _, run, count, _, shard, local, offset in window.away:
                n = run * count
                targets[shard][local : local + n] = got[offset : offset + n]
        return hands.error()


def _read_one(
    memory: Bytes,
    block: int,
    nbytes: int,
    window: TransferWindow,
    targets: Sequence[Bytes],
    sent: Bytes,
    read: Read,
) -> None:
    own = window.own.get(block, ())
    if block not in window.home and (whole := as_it_lies(own, nbytes, targets)) is not None:
        read(block, whole)
        return
    read(block, memory)
    for piece in own:
        _, _, run, count, _, shard, local = piece
        targets[shard][local : local + run * count].reshape(count, run)[...] = _comb(memory, piece)
    for piece in window.home.get(block, ()):
        _, _, run, count, *_, offset = piece
        sent[offset : offset + run * count].reshape(count, run)[...] = _comb(memory, piece)


def _comb(block: Bytes, piece: Piece) -> Bytes:
    """The bytes of a piece where they lie in a block, a row for each run."""
    _, address, run, count, stride, *_ = piece
    return np.ndarray((count, run), np.uint8, block, address, (stride, 1))


class _Hands:
    """A few threads, each with the memory of one block."""

    def __init__(self, block: int, scratch: Scratch, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._free: SimpleQueue[Bytes] = SimpleQueue()
        size = rounded(block)
        memory = scratch.memory("blocks", THREADS * size)
        for i in range(THREADS):
            self._free.put(memory[i * size : (i + 1) * size])
        self._threads = Threads(THREADS)
        self._given: list[Future[None]] = []
        self._error: Exception | None = None

    def give(self, task: Callable[..., None], block: int, *rest: Any) -> Future[None]:
        """Run task(memory, block, ...) when a thread is free; nothing after the first error."""

        def run() -> None:
            if self._error is not None:
                return
            memory = self._free.get(timeout=self._deadline_s)
            try:
                task(memory, block, *rest)
            except Exception as error:  # noqa: BLE001  (given by `error`)
                self._error = self._error or error
            finally:
                self._free.put(memory)

        future = self._threads.give(run)
        self._given.append(future)
        return future

    def wait(self, futures: Sequence[Future[None]]) -> None:
        """Until these tasks have ended. Raises TimeoutError."""
        for future in futures:
            future.result(self._deadline_s)

    def error(self) -> Exception | None:
        """The first error of all tasks, which have ended."""
        self.wait(self._given)
        return self._error

    def __enter__(self) -> _Hands:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.__exit__()
