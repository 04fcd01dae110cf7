"""Where each tensor lies: groups of tensors in ordinary safetensors files, cut into blocks."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from hal.core.facts import dataclass
from stack.storage.errors import StorageError

BLOCK = 8 << 20
"""Bytes of a block: the unit of ownership, of checksums, and of an object store's parts."""
ALIGN = 4096
"""Direct I/O moves multiples of it; data begins at one in each file."""
FILE_NBYTES = 5_000_000_000
"""No file grows beyond it unless one tensor does."""

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "C64": np.dtype(np.complex64),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
"""The element types of safetensors, by its names (safetensors 0.8, `Dtype`)."""
METADATA = "__metadata__"
"""The one name that safetensors keeps for itself."""
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_GROUP = re.compile(r"[A-Za-z0-9_]+\Z")


def rounded(nbytes: int) -> int:
    """Up to the next multiple of ALIGN."""
    return -(-nbytes // ALIGN) * ALIGN


def code_of(dtype: np.dtype[Any]) -> str:
    """The safetensors name of an element type. Raises StorageError for one that it lacks."""
    if dtype not in _CODES:
        raise StorageError(f"a checkpoint cannot hold elements of {dtype}; it holds {list(DTYPES)}")
    return _CODES[dtype]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A whole tensor: `group` is the kind of file that holds it ("model"), `dtype` a safetensors
    name of an element type."""

    group: str
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.dtype].itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return prod(self.shape) * self.itemsize

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from the other tensors of a checkpoint."""
        return self.group, self.name

    def __str__(self) -> str:
        return f"{self.group}/{self.name}"


@dataclass(frozen=True, slots=True)
class File:
    """One file: `header` comes first, then `tensors` one after the other; `starts` are their
    offsets in the file. A file without tensors is its header alone."""

    name: str
    header: bytes
    tensors: tuple[TensorInfo, ...]
    starts: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class FileLayout:
    """The files of a step, cut into blocks of `block` bytes, the last of a file maybe less. An
    address is a byte in all files one after the other, each beginning with a block of its own."""

    files: tuple[File, ...]
    block: int = BLOCK

    @cached_property
    def first_blocks(self) -> list[int]:
        """The first block of each file, and at the end the number of blocks."""
        firsts = [0]
        for file in self.files:
            firsts.append(firsts[-1] + -(-file.size // self.block))
        return firsts

    @property
    def blocks(self) -> int:
        """How many blocks all files have."""
        return self.first_blocks[-1]

    @cached_property
    def addresses(self) -> dict[tuple[str, str], tuple[TensorInfo, int]]:
        """Each tensor, and the address of its first byte, by its key."""
        return {
            info.key: (info, first * self.block + start)
            for file, first in zip(self.files, self.first_blocks, strict=False)
            for info, start in zip(file.tensors, file.starts, strict=True)
        }

    def place(self, block: int) -> tuple[File, int]:
        """The file of a block, and the block's offset in it."""
        index = bisect_right(self.first_blocks, block) - 1
        return self.files[index], (block - self.first_blocks[index]) * self.block

    def nbytes(self, block: int) -> int:
        """Bytes of a block."""
        file, offset = self.place(block)
        return min(self.block, file.size - offset)

    def tensors_in(self, block: int) -> list[str]:
        """The tensors that have bytes in a block, or what else it holds; for messages."""
        file, offset = self.place(block)
        end = offset + self.block
        found = [
            str(info)
            for info, start in zip(file.tensors, file.starts, strict=True)
            if start < end and start + info.nbytes > offset
        ]
        return (["the header"] if offset < len(file.header) else []) + found

    def tensor_bytes(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """How many bytes of tensors each block holds."""
        out = np.empty(self.blocks, np.int64)
        for file, (first, last) in zip(self.files, pairwise(self.first_blocks), strict=True):
            offsets = np.arange(last - first) * self.block
            ends = np.minimum(offsets + self.block, file.size)
            out[first:last] = np.maximum(ends - np.maximum(offsets, len(file.header)), 0)
        return out


def layout_of(
    tensors: Iterable[TensorInfo], file_nbytes: int = FILE_NBYTES, block: int = BLOCK
) -> FileLayout:
    """Put tensors into files by group, each group's in the order given.

    Within a group those with larger elements come first, so that each lies at a multiple of its
    element size, which readers that map the file rely on. Raises StorageError for a group's name
    that is no name of a file, and for a tensor that comes twice.
    """
    groups: dict[str, list[TensorInfo]] = {}
    seen = set()
    for info in tensors:
        if info.key in seen:
            raise StorageError(f"the tensor {info} comes twice; each is saved under one name")
        if info.name == METADATA:
            raise StorageError(f"a tensor cannot be called {info}: safetensors keeps that name")
        seen.add(info.key)
        groups.setdefault(info.group, []).append(info)
    files: list[File] = []
    for group, members in groups.items():
        if not _GROUP.match(group):
            raise StorageError(f"{group!r} cannot name files; use letters, digits and _")
        members = sorted(members, key=lambda info: -info.itemsize)
        parts = _parts(members, file_nbytes)
        if len(parts) == 1:
            names = [f"{group}.safetensors"]
        else:
            names = [
                f"{group}-{i + 1:05}-of-{len(parts):05}.safetensors" for i in range(len(parts))
            ]
        plain = {"format": "pt"}
        made = [file_of(name, part, plain) for name, part in zip(names, parts, strict=True)]
        index = {
            "metadata": {"total_size": sum(info.nbytes for info in members)},
            "weight_map": {info.name: file.name for file in made for info in file.tensors},
        }
        text = (json.dumps(index, indent=1) + "\n").encode()
        files += [*made, File(f"{group}.safetensors.index.json", text, (), (), len(text))]
    return FileLayout(tuple(files), block)


def _parts(members: Sequence[TensorInfo], file_nbytes: int) -> list[tuple[TensorInfo, ...]]:
    parts: list[list[TensorInfo]] = [[]]
    used = 0
    for info in members:
        if used and used + info.nbytes > file_nbytes:
            parts.append([])
            used = 0
        parts[-1].append(info)
        used += info.nbytes
    return [tuple(part) for part in parts]


def file_of(name: str, tensors: tuple[TensorInfo, ...], metadata: Mapping[str, str]) -> File:
    """The safetensors file of tensors in this order; its metadata come first in the header."""
    entries: dict[str, Any] = {METADATA: dict(metadata)}
    at, offsets = 0, []
    for info in tensors:
        end = at + info.nbytes
        entries[info.name] = {
            "dtype": info.dtype,
            "shape": list(info.shape),
            "data_offsets": [at, end],
        }
        offsets.append(at)
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    length = -(-(8 + len(text)) // ALIGN) * ALIGN
    header = (length - 8).to_bytes(8, "little") + text.ljust(length - 8)
    starts = tuple(length + offset for offset in offsets)
    return File(name, header, tensors, starts, length + at)
