"""The newest state of a job on disk, where the job ends before its time.

A rank keeps its state in memory that the agent of its host has open (`stack.fault.generations`).
Whatever ends the ranks, also the end of the launcher, the agent writes the newest whole generation
of its host, and the agent of the next job gives it to the ranks that arrive.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

MAGIC = b"HALSTATE"
HEADER = struct.Struct("<8sQqQQQ")
"""What it is, whether it is whole, step, layout, bytes of plain values, bytes of tensors."""
PAGE = 4096
"""The plain values begin after one; the tensors at the next multiple of it."""
_NAME = "state.bin"
_PIECE_NBYTES = 8 << 20
_CHECK = struct.Struct("<I")


def step_of(descriptor: int) -> int:
    """The step of the generation in a memory; -1 without a whole one."""
    head = os.pread(descriptor, HEADER.size, 0)
    if len(head) < HEADER.size:
        return -1
    magic, whole, step, *_ = HEADER.unpack(head)
    return step if (magic, whole) == (MAGIC, 1) else -1


def settle(folder: Path, memories: Sequence[int], is_well: bool) -> None:
    """At the end of a job: write the newest generation of these memories, unless the folder has a
    newer one; of a job that ended well nothing stays. Raises OSError."""
    file = folder / _NAME
    if is_well:
        file.unlink(missing_ok=True)
        return
    newest = max(memories, key=step_of, default=None)
    if newest is None or step_of(newest) <= _step_in(file):
        return
    folder.mkdir(parents=True, exist_ok=True)
    before = folder / f"{_NAME}.{os.getpid()}"
    try:
        with before.open("wb") as stream:
            check = 0
            for at in range(0, os.fstat(newest).st_size, _PIECE_NBYTES):
                piece = os.pread(newest, _PIECE_NBYTES, at)
                check = zlib.crc32(piece, check)
                stream.write(piece)
            stream.write(_CHECK.pack(check))
            stream.flush()
            os.fsync(stream.fileno())
        before.replace(file)
    except BaseException:
        before.unlink(missing_ok=True)
        raise
    _sync(folder)


def _step_in(file: Path) -> int:
    try:
        with file.open("rb") as stream:
            return step_of(stream.fileno())
    except FileNotFoundError:
        return -1


def kept_in(folder: Path) -> int | None:
    """A new memory with what the folder has; None where it has nothing, or nothing whole."""
    with suppress(FileNotFoundError):
        data = (folder / _NAME).read_bytes()
        body, tail = data[: -_CHECK.size], data[-_CHECK.size :]
        if len(tail) == _CHECK.size and _CHECK.unpack(tail)[0] == zlib.crc32(body):
            descriptor = os.memfd_create("hal-state")
            at = 0
            while at < len(body):
                at += os.pwrite(descriptor, body[at : at + _PIECE_NBYTES], at)
            return descriptor
    return None


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
