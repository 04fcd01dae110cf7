"""Shards of a folder, and the index that names them: lines that are only ever appended.

Beside each shard lies a file of checksums, one of four bytes for each page of 4096 bytes, so that
every sample is verified when it is read, at the price of its own pages.
"""

from __future__ import annotations

import json
import mmap
import os
import tarfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from hal.core.facts import dataclass
from stack.storage.errors import Damaged, StorageError

INDEX = "index.jsonl"
PAGE = 4096
SUMS = ".crc32c"
SAMPLES = ".samples.npy"


@dataclass(frozen=True, slots=True)
class DataShard:
    """A line of the index. `kind` is "tokens" (elements of `dtype` from byte `start` on) or "tar";
    `count` is the number of elements, or of samples. `sums` is the crc32c of the file of checksums,
    `samples` that of a tar shard's file of places."""

    file: str
    kind: str
    size: int
    count: int
    sums: int
    dtype: str = ""
    start: int = 0
    samples: int = 0


def add_tokens(folder: str | Path, file: str, dtype: str = "") -> DataShard:
    """Append a shard of tokens, a file of the folder: a `.npy` of one dimension, or a `.bin` of
    elements of `dtype` ("uint16"). It must not change any more. Raises StorageError."""
    path = _path(folder, file)
    if path.suffix == ".npy":
        array = np.load(path, mmap_mode="r")
        if array.ndim != 1 or not array.dtype.isnative:
            raise StorageError(f"{path} has shape {array.shape}; tokens have one dimension")
        start, dtype = array.offset, array.dtype.name
    else:
        start = 0
        if not dtype:
            raise StorageError(f"{path} does not say its element type; name it, as dtype='uint16'")
    size, each = path.stat().st_size, np.dtype(dtype).itemsize
    if (size - start) % each:
        raise StorageError(f"{path} of {size:,} bytes holds no whole number of {dtype}")
    return _append(folder, file, "tokens", (size - start) // each, dtype=dtype, start=start)


def add_tar(folder: str | Path, file: str) -> DataShard:
    """Append a tar shard, a file of the folder, in which members that are neighbours and equal up
    to the first dot of their names are one sample ("00017.jpg", "00017.json"). It must not change
    any more. Raises StorageError."""
    path = _path(folder, file)
    places: list[list[int]] = []
    last = None
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                key = member.name.partition(".")[0]
                if key != last:
                    places.append([member.offset, 0])
                places[-1][1] = member.offset_data + -(-member.size // 512) * 512
                last = key
    except tarfile.TarError as error:
        raise StorageError(f"{path} is no plain tar file: {error}") from error
    beside = path.with_name(path.name + SAMPLES)
    _write(beside, lambda stream: np.save(stream, np.array(places, np.int64).reshape(-1, 2)))
    return _append(folder, file, "tar", len(places), samples=crc32c(beside.read_bytes()))


def _append(folder: str | Path, file: str, kind: str, count: int, **more: Any) -> DataShard:
    path = _path(folder, file)
    with path.open("rb") as stream:
        sums = np.array(
            [
                crc32c(page)
                for block in iter(partial(stream.read, PAGE * 256), b"")
                for page in (block[at : at + PAGE] for at in range(0, len(block), PAGE))
            ],
            np.uint32,
        )
    _write(path.with_name(path.name + SUMS), lambda stream: stream.write(sums.tobytes()))
    size = path.stat().st_size
    shard = DataShard(file, kind, size, count, crc32c(sums.tobytes()), **more)
    _sync(path)
    text = json.dumps(asdict(shard), separators=(",", ":"))
    line = f"{crc32c(text.encode()):08x} {text}\n".encode()
    index = Path(folder) / INDEX
    if shard.file in {s.file for s in shards_in(folder)}:
        raise StorageError(f"{index} has {file} already; a shard is added once")
    handle = os.open(index, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        before = index.read_bytes()
        os.ftruncate(handle, before.rfind(b"\n") + 1)  # what a crash has cut was never added
        os.write(handle, line)
        os.fsync(handle)
    finally:
        os.close(handle)
    _sync(Path(folder))
    return shard


def shards_in(folder: str | Path) -> list[DataShard]:
    """The shards of a folder, in the order in which they came. An unfinished line, which a crash
    has left, is none. Raises Damaged for a line that is not as it was written."""
    index = Path(folder) / INDEX
    if not index.exists():
        return []
    *lines, rest = index.read_bytes().split(b"\n")
    checksum, _, text = rest[:-1].partition(b" ")
    if rest and checksum == b"%08x" % crc32c(text):  # not a cut: its end is another byte
        lines.append(rest)
    found = []
    for number, line in enumerate(lines, 1):
        checksum, _, text = line.partition(b" ")
        if checksum != b"%08x" % crc32c(text):
            raise Damaged(f"{index}, line {number}: the checksum differs; take it from a copy")
        found.append(DataShard(**json.loads(text)))
    return found


def _path(folder: str | Path, file: str) -> Path:
    path = Path(folder) / file
    if "/" in file or file.startswith(".") or not path.is_file():
        raise StorageError(f"{file!r} is no file of {folder}; move it there first")
    return path


def _write(path: Path, write: Any) -> None:
    with path.open("wb") as stream:
        write(stream)
        stream.flush()
        os.fsync(stream.fileno())


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class OpenShard:
    """A shard's bytes, mapped; each read is verified."""

    def __init__(self, folder: str | Path, shard: DataShard) -> None:
        self.shard, self._path = shard, Path(folder) / shard.file
        self._bytes = memoryview(_mapped(self._path, shard.size))
        pages = -(-shard.size // PAGE)
        sums = self._beside(SUMS, shard.sums)
        self._sums: list[int] | NDArray[np.uint32] = np.frombuffer(sums, np.uint32)
        if len(self._sums) != pages:
            raise Damaged(f"{self._path}{SUMS} has {len(self._sums)} checksums, not {pages}")
        self.places: NDArray[np.int64] | None = None
        if shard.kind == "tar":
            self._beside(SAMPLES, shard.samples)
            self.places = np.load(self._path.with_name(self._path.name + SAMPLES))
        self._each = np.dtype(shard.dtype).itemsize if shard.dtype else 1
        self._dtype = np.dtype(shard.dtype) if shard.dtype else np.dtype(np.uint8)

    def _beside(self, ending: str, checksum: int) -> bytes:
        path = self._path.with_name(self._path.name + ending)
        data = path.read_bytes() if path.exists() else b""
        if crc32c(data) != checksum:
            raise Damaged(f"{path} is not what was written, or gone; take it from a copy")
        return data

    def bytes(self, start: int, stop: int) -> memoryview:
        """These bytes of the file. Raises Damaged that names the page which is not as written."""
        data, sums = self._bytes, self._sums
        for page in range(start // PAGE, -(-stop // PAGE)):
            at = page * PAGE
            if crc32c(data[at : at + PAGE]) != sums[page]:
                raise Damaged(
                    f"{self._path}: bytes {at:,} to {at + PAGE:,} are not what was written: the "
                    "checksum differs; take the file from a copy"
                )
        return data[start:stop]

    def tokens(self, first: int, count: int) -> NDArray[Any]:
        """Elements of a shard of tokens; they are the file's own memory."""
        start = self.shard.start + first * self._each
        return np.frombuffer(self.bytes(start, start + count * self._each), self._dtype)


def _mapped(path: Path, size: int) -> bytes | mmap.mmap:
    if not path.is_file() or path.stat().st_size != size:
        there = f"has {path.stat().st_size:,} bytes" if path.is_file() else "is gone"
        raise Damaged(f"{path} {there}; it had {size:,} when it was added: take it from a copy")
    if not size:
        return b""
    with path.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)


def damage_of(folder: str | Path) -> list[str]:
    """Read everything; what is wrong, as sentences. Raises Damaged for the index itself."""
    found = []
    for shard in shards_in(folder):
        try:
            opened = OpenShard(folder, shard)
        except Damaged as error:
            found.append(str(error))
            continue
        for at in range(0, shard.size, PAGE):
            try:
                opened.bytes(at, min(at + PAGE, shard.size))
            except Damaged as error:
                found.append(str(error))
    return found
