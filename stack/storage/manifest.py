"""The manifest of a step: what its files hold and the checksum of each block. That it is there is
the commit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from crc32c import crc32c

from hal.core.facts import dataclass
from stack.storage.errors import Damaged, StorageError
from stack.storage.layout import DTYPES, File, FileLayout, TensorInfo

VERSION = 1
MANIFEST = "manifest.json"
COPY = "manifest.copy.json"
"""A second copy, written where parity is asked for; it is no commit."""


@dataclass(frozen=True)
class Parity:
    """`files` hold in each block what repairs up to so many damaged ones among the blocks of the
    same number in the files of the layout; `checksums` are those of their blocks."""

    files: tuple[File, ...]
    checksums: dict[str, list[int]]


@dataclass(frozen=True)
class Manifest:
    """A committed step. `state` is plain data; `checksums` has a crc32c for each block of each file
    of the layout."""

    step: int
    state: Any
    layout: FileLayout
    checksums: Mapping[str, Sequence[int]]
    parity: Parity | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all files but this."""
        return sum(file.size for file in self.files)

    @property
    def files(self) -> tuple[File, ...]:
        """The files of the layout, and those of parity."""
        return self.layout.files + (self.parity.files if self.parity else ())

    def sums(self, file: File) -> Sequence[int]:
        """The checksums of a file's blocks."""
        if self.parity is not None and file.name in self.parity.checksums:
            return self.parity.checksums[file.name]
        return self.checksums[file.name]

    def encoded(self) -> bytes:
        """The text of the file, with a checksum of its own around it."""
        body = {
            "version": VERSION,
            "step": self.step,
            "state": self.state,
            "block": self.layout.block,
            "files": [_file_json(f, self.checksums[f.name]) for f in self.layout.files],
            "parity": None
            if self.parity is None
            else [_file_json(f, self.parity.checksums[f.name]) for f in self.parity.files],
            "tensors": [
                [t.group, t.name, t.dtype, t.shape, f.name, start, start + t.nbytes]
                for f in self.layout.files
                for t, start in zip(f.tensors, f.starts, strict=True)
            ],
        }
        text = json.dumps(body, separators=(",", ":")).encode()
        return _HEAD % crc32c(text) + text + _TAIL


_HEAD = b'{"crc32c":"%08x","manifest":'
_TAIL = b"}\n"
_HEAD_NBYTES = len(_HEAD % 0)


def _file_json(file: File, checksums: Sequence[int]) -> dict[str, Any]:
    return {"name": file.name, "size": file.size, "crc32c": list(checksums)}


def decoded(data: bytes, where: str) -> Manifest:
    """The manifest in a file's bytes. Raises Damaged for bytes that are not those written, and
    StorageError for one of a later version or one that says what cannot be."""
    text = data[_HEAD_NBYTES : -len(_TAIL)]
    if data != _HEAD % crc32c(text) + text + _TAIL:
        raise Damaged(f"{where} is not what was written: its checksum differs")
    body = json.loads(text)
    version = body.get("version")
    if version != VERSION:
        raise StorageError(
            f"{where} has version {version}; this program reads version {VERSION}: "
            "load it with the program that wrote it, or a newer one"
        )
    try:
        return _manifest(body)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(f"{where} says what no checkpoint has: {error}") from error


def _manifest(body: dict[str, Any]) -> Manifest:
    block = _natural(body["block"], "the block size")
    if not block:
        raise ValueError("the block size is 0")
    sums = {_name(f["name"]): f["crc32c"] for f in body["files"]}
    sizes = {f["name"]: _natural(f["size"], f["name"]) for f in body["files"]}
    tensors: dict[str, list[tuple[TensorInfo, int]]] = {name: [] for name in sizes}
    seen = set()
    for group, name, dtype, shape, file, start, end in body["tensors"]:
        if dtype not in DTYPES or not isinstance(group, str) or not isinstance(name, str):
            raise ValueError(f"tensor {group}/{name} has element type {dtype!r}")
        info = TensorInfo(group, name, dtype, tuple(_natural(n, name) for n in shape))
        inside = 0 <= _natural(start, name) <= end <= sizes[file]
        if not inside or end - start != info.nbytes or info.key in seen:
            raise ValueError(f"tensor {info} of {info.nbytes} bytes is at {start} to {end}")
        seen.add(info.key)
        tensors[file].append((info, start))
    files = tuple(
        File(n, b"", tuple(t for t, _ in found), tuple(s for _, s in found), sizes[n])
        for n, found in tensors.items()
    )
    parity = None
    if body["parity"] is not None:
        also = body["parity"]
        names = [_name(f["name"]) for f in also]
        parity = Parity(
            tuple(File(f["name"], b"", (), (), _natural(f["size"], f["name"])) for f in also),
            dict(zip(names, (f["crc32c"] for f in also), strict=True)),
        )
    step = _natural(body["step"], "the step")
    made = Manifest(step, body["state"], FileLayout(files, block), sums, parity)
    for file in made.files:
        has = made.sums(file)
        if len(has) != -(-file.size // block):
            raise ValueError(f"{file.name} of {file.size} bytes has {len(has)} checksums")
    return made


def _name(name: str) -> str:
    """The name of a file of the step's own folder."""
    if not isinstance(name, str) or "/" in name or "\\" in name or name.startswith(".") or not name:
        raise ValueError(f"{name!r} is no name of a file in the step's folder")
    return name


def _natural(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{what} has {value!r} where a number from 0 on belongs")
    return value
