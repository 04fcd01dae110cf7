"""The newest state of a job on disk, where the job ends before its time.

A rank keeps its state in memory that the agent of its host has open (`stack.fault.generations`).
Whatever ends the ranks, also the end of the launcher, the agent writes the newest whole generation
of its host, and the agent of the next job gives it to the ranks that arrive. Where ranks held
different values, so that a bit has flipped, it is the one after which all held the same.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from hal.core.facts import dataclass

MAGIC = b"HALSTATE"
HEADER = struct.Struct("<8sQqQQQqQQ")
"""A `Head` as it stands before a generation."""
EPOCH_AT = struct.calcsize("<8sQqQQQ")
"""Where the epoch is."""
PAGE = 4096
"""The plain values begin after one; the tensors at the next multiple of it."""
_NAME, _BEFORE, _NOTE = "state.bin", "state.before.bin", "state.not-kept"
_PIECE_NBYTES = 8 << 20
_LOCK_S, _LOOK_S = 60.0, 0.01
_CHECK = struct.Struct("<I")


class Head(NamedTuple):
    """What a generation is: whether it is whole, its step, a number for names and shapes of its
    tensors, the bytes of plain values and of tensors, the epoch in which it was made, 0 before the
    first, whether all ranks held the same when they compared, and a number for the kind of device
    that computed it."""

    magic: bytes
    whole: int
    step: int
    layout: int
    plain_nbytes: int
    tensor_nbytes: int
    epoch: int = 0
    agreed: int = 0
    kind: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """The epoch and the step, by which a newer generation is told; (-1, -1) of one that is not
        whole."""
        return (self.epoch, self.step) if (self.magic, self.whole) == (MAGIC, 1) else (-1, -1)

    @property
    def tensors_at(self) -> int:
        """Where the tensors begin."""
        return PAGE + pages(self.plain_nbytes)


def pages(nbytes: int) -> int:
    """So many bytes in whole pages."""
    return -(-nbytes // PAGE) * PAGE


def order_of(descriptor: int) -> tuple[int, int]:
    """The order of the generation in a memory; (-1, -1) without a whole one."""
    return _head(descriptor).order


def _head(descriptor: int) -> Head:
    head = os.pread(descriptor, HEADER.size, 0)
    return Head._make(HEADER.unpack(head.ljust(HEADER.size, b"\0")))


def step_of(descriptor: int) -> int:
    """The step of the generation in a memory; -1 without a whole one."""
    return order_of(descriptor)[1]


@dataclass(frozen=True, slots=True)
class Kept:
    """What a folder has: a new memory with the newest whole generation, None without one; its
    step, -1 without; and in words what was not kept, or is not whole."""

    memory: int | None
    step: int
    lacks: tuple[str, ...]


def settle(folder: Path, memories: Sequence[int], is_well: bool) -> None:
    """At the end of a job: write the newest generation of these memories, unless the folder has a
    newer one, and keep the one before; of a job that ended well nothing stays. Raises OSError, and
    then leaves a line of it there for the next job."""
    file, before, note = (folder / name for name in (_NAME, _BEFORE, _NOTE))
    if is_well:
        for old in (file, before, note, *_unfinished(folder)):
            old.unlink(missing_ok=True)
        return
    newest, doubt = _right(memories)
    if newest is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with _opened(folder) as descriptor:
        _lock(descriptor)
        there = whole_step(file)
        if step_of(newest) <= max(there, whole_step(before)):
            return
        if doubt:
            note.write_text(doubt)
        for old in _unfinished(folder):
            old.unlink(missing_ok=True)
        made = folder / f"{_NAME}.{os.getpid()}"
        try:
            _write(made, newest)
            if there >= 0:
                file.replace(before)
            made.replace(file)
        except BaseException as error:
            made.unlink(missing_ok=True)
            note.write_text(f"the state after step {step_of(newest)} was not kept: {error}")
            raise
        os.fsync(descriptor)


def _right(memories: Sequence[int]) -> tuple[int | None, str]:
    """Of the memories the one with the newest generation that all ranks of the last epoch have, if
    those that computed it on one kind of device hold the same; else with the newest on which ranks
    have agreed, and in words why. None where nothing is whole."""
    heads = {memory: head for memory in memories if (head := _head(memory)).order[1] >= 0}
    newest = max((head.order for head in heads.values()), default=(-1, -1))
    if newest[0] > 0:  # before the first epoch ranks may hold what they like
        held = Counter(head.order for head in heads.values() if head.epoch == newest[0])
        newest = max(order for order, count in held.items() if count == max(held.values()))
    here = [memory for memory, head in heads.items() if head.order == newest]
    if not here:
        return None, ""
    first: dict[int, int] = {}
    like = [first.setdefault(heads[memory].kind, memory) for memory in here]
    if newest[0] <= 0 or all(map(_same_tensors, like, here)):
        return here[0], ""
    agreed = [memory for memory, head in heads.items() if head.agreed]
    found = max(agreed, key=order_of, default=here[0])
    doubt = f"after step {newest[1]} ranks held different values, and nobody knows whose are right;"
    return found, f"{doubt} the state after step {step_of(found)} was kept"


def _same_tensors(one: int, other: int) -> bool:
    heads = [_head(memory) for memory in (one, other)]
    left, *others = {head.tensor_nbytes for head in heads}
    at = [head.tensors_at for head in heads]
    while left > 0 and not others:
        size = min(_PIECE_NBYTES, left)
        pieces = [os.pread(m, size, a + left - size) for m, a in zip((one, other), at, strict=True)]
        if pieces[0] != pieces[1]:
            return False
        left -= size
    return not others


def _unfinished(folder: Path) -> list[Path]:
    """What agents were writing that were killed then: whoever has the lock is the only one."""
    return list(folder.glob(f"{_NAME}.*"))


def kept_in(folder: Path) -> Kept:
    """What the folder has, in a new memory. The note of a state that was not kept is read once."""
    lacks, note = [], folder / _NOTE
    with suppress(FileNotFoundError):
        lacks.append(note.read_text())
        note.unlink()
    for file in (folder / _NAME, folder / _BEFORE):
        if not file.exists():
            continue
        if (step := whole_step(file)) >= 0:
            descriptor = os.memfd_create("hal-state")
            with file.open("rb") as stream:
                left = os.fstat(stream.fileno()).st_size - _CHECK.size
                while left > 0 and (piece := stream.read(min(_PIECE_NBYTES, left))):
                    left -= len(piece)
                    while piece:
                        piece = piece[os.write(descriptor, piece) :]
            os.pwrite(descriptor, bytes(8), EPOCH_AT)  # the epochs of this job begin anew
            return Kept(descriptor, step, tuple(lacks))
        lacks.append(f"{file} is not whole: its checksum is another one")
    return Kept(None, -1, tuple(lacks))


def whole_step(file: Path) -> int:
    """The step of the generation in a file; -1 where it has none with the right checksum."""
    try:
        with file.open("rb") as stream:
            left, check = os.fstat(stream.fileno()).st_size - _CHECK.size, 0
            step = step_of(stream.fileno())
            while left > 0 and (piece := stream.read(min(_PIECE_NBYTES, left))):
                left, check = left - len(piece), zlib.crc32(piece, check)
            return step if not left and stream.read() == _CHECK.pack(check) else -1
    except FileNotFoundError:
        return -1


def tear(folder: Path) -> None:
    """What a power cut does to a write that a disk has acknowledged too early: half is there."""
    with suppress(FileNotFoundError):
        os.truncate(folder / _NAME, (folder / _NAME).stat().st_size // 2)


def _write(file: Path, memory: int) -> None:
    with file.open("wb") as stream:
        check = 0
        for at in range(0, os.fstat(memory).st_size, _PIECE_NBYTES):
            piece = os.pread(memory, _PIECE_NBYTES, at)
            check = zlib.crc32(piece, check)
            stream.write(piece)
        stream.write(_CHECK.pack(check))
        stream.flush()
        os.fsync(stream.fileno())


def _lock(descriptor: int) -> None:
    """Wait for other agents that write to the folder. Raises OSError where one does not end."""
    until_s = time.monotonic() + _LOCK_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise
            time.sleep(_LOOK_S)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
