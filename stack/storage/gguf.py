"""Files of the format GGUF: a header of entries and tensors, then their bytes, each tensor at a
multiple of the file's alignment. Only reading; what blocks of quantised types hold becomes float32.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.facts import dataclass
from stack.storage.errors import StorageError
from stack.storage.layout import DTYPES
from stack.storage.memory import Bytes, aligned

Array = NDArray[Any]
MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = "general.alignment"
_AXES = 4
_ARRAY, _STRING = 9, 8
_NUMBERS = "BbHhIif?  Qqd"
"""The code in `struct` of each kind of entry that is a number."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a tensor's elements lie: `count` of them in a block of `nbytes`. `values` gives those of
    blocks [n, nbytes] as [n, count]."""

    name: str
    count: int
    nbytes: int
    values: Callable[[Bytes], Array]


def _plain(code: str) -> Kind:
    dtype = DTYPES[code]
    return Kind(code, 1, dtype.itemsize, lambda blocks: blocks.view(dtype))


def _half(blocks: Bytes, at: int) -> Array:
    """The float16 numbers at a byte of each block, [n, 1] of float32."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Array:
    """The low halves of bytes [..., n], then the high ones, [..., 2n]."""
    return np.concatenate([packed & 15, packed >> 4], -1)


def _q4_1(blocks: Bytes) -> Array:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks, 2)


def _q4_k(blocks: Bytes) -> Array:
    """Eight groups of 32, each with a scale and a least value of six bits."""
    n, packed = len(blocks), blocks[:, 4:16].reshape(-1, 3, 4)
    first, second, third = packed[:, 0], packed[:, 1], packed[:, 2]
    scale = np.concatenate([first & 63, third & 15 | first >> 6 << 4], 1).astype(np.float32)
    least = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], 1).astype(np.float32)
    values = _nibbles(blocks[:, 16:].reshape(n, 4, 32)).reshape(n, 8, 32).astype(np.float32)
    scale, least = _half(blocks, 0) * scale, _half(blocks, 2) * least
    return (scale[..., None] * values - least[..., None]).reshape(n, 256)


def _q6_k(blocks: Bytes) -> Array:
    """Sixteen groups of 16, each with a scale of eight bits."""
    n = len(blocks)
    low = _nibbles(blocks[:, :128].reshape(n, 2, 64)).reshape(n, 2, 4, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8).reshape(4, 1)
    high = blocks[:, 128:192].reshape(n, 2, 1, 32) >> shifts & 3
    values = (low | high << 4).reshape(n, 16, 16).astype(np.float32) - 32
    scale = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    made: Array = (scale[..., None] * values).reshape(n, 256)
    return made


KINDS = {
    0: _plain("F32"),
    1: _plain("F16"),
    2: Kind("Q4_0", 32, 18, lambda b: _half(b, 0) * (_nibbles(b[:, 2:]).astype(np.float32) - 8)),
    3: Kind("Q4_1", 32, 20, _q4_1),
    8: Kind("Q8_0", 32, 34, lambda b: _half(b, 0) * b[:, 2:].view(np.int8).astype(np.float32)),
    12: Kind("Q4_K", 256, 144, _q4_k),
    14: Kind("Q6_K", 256, 210, _q6_k),
    24: _plain("I8"),
    25: _plain("I16"),
    26: _plain("I32"),
    27: _plain("I64"),
    28: _plain("F64"),
    30: _plain("BF16"),
}
"""By the format's numbers."""


@dataclass(slots=True)
class _Header:
    """Reads the header from `at` on. Raises StorageError where it ends too early."""

    file: Path
    data: Bytes
    size: int
    at: int = len(MAGIC)

    def error(self, why: str) -> StorageError:
        return StorageError(f"{self.file} ({self.size:,} bytes) is not a whole GGUF file: {why}")

    def bytes(self, n: int, what: str) -> bytes:
        if n > self.size - self.at:
            raise self.error(f"it was cut short: {what} is to end at byte {self.at + n:,}")
        self.at += n
        return self.data[self.at - n : self.at].tobytes()

    def number(self, code: str, what: str) -> Any:
        return struct.unpack("<" + code, self.bytes(struct.calcsize("<" + code), what))[0]

    def text(self, what: str) -> str:
        start = self.at
        found = self.bytes(self.number("Q", what), what)
        try:
            return found.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{what} at byte {start:,} is no text: {error}") from error

    def entry(self, name: str, kind: int) -> Any:
        """An entry's value; of an array nothing, since nothing here reads one."""
        what = f"the entry {name!r}"
        if kind == _STRING:
            return self.text(what)
        if kind == _ARRAY:
            inner, count = self.number("I", what), self.number("Q", what)
            if inner == _STRING:
                for _ in range(min(count, self.size)):
                    self.bytes(self.number("Q", what), what)
            else:
                self.bytes(count * struct.calcsize(self._code(inner, what)), what)
            return None
        return self.number(self._code(kind, what), what)

    def _code(self, kind: int, what: str) -> str:
        code = _NUMBERS[kind : kind + 1].strip()
        if not code:
            raise self.error(f"{what} at byte {self.at:,} is of kind {kind}, which is unknown")
        return code


def is_gguf(file: Path) -> bool:
    """Whether there is a file, which can be read, that begins as one of this format."""
    try:
        if not file.is_file():
            return False
        with file.open("rb") as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_gguf(path: str | Path) -> dict[str, Array]:
    """The tensors of a file by name, with the outer axis first. Raises StorageError that names the
    tensor or the byte for a file that is none, was cut short, or has elements that are not read:
    then nothing is given."""
    file = Path(path)
    try:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            image = aligned(size)
            size = stream.readinto(image.data[:size])
    except OSError as error:
        raise StorageError(f"cannot read {file}: {error.strerror}") from error
    header = _Header(file, image, size)
    version = header.number("I", "its version")
    if version not in _VERSIONS:
        raise header.error(
            f"its version (bytes 4 to 8) is {version}; those that are read: {_VERSIONS}"
        )
    tensors, entries = header.number("Q", "its header"), header.number("Q", "its header")
    alignment = 32
    for _ in range(entries):
        name = header.text("the name of an entry")
        value = header.entry(name, header.number("I", f"the entry {name!r}"))
        if name == _ALIGNMENT:
            alignment = value
    if not isinstance(alignment, int) or alignment < 1:
        raise header.error(f"its {_ALIGNMENT} is {alignment!r}")
    found: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(tensors):
        name = header.text("the name of a tensor")
        rank = header.number("I", name)
        if rank > _AXES:
            raise header.error(f"{name} has {rank:,} axes; the format has at most {_AXES}")
        sizes = struct.unpack(f"<{rank}Q", header.bytes(8 * rank, name))
        if name in found:
            raise header.error(f"it has two tensors {name!r}")
        found[name] = sizes[::-1], header.number("I", name), header.number("Q", name)
    start = -(-header.at // alignment) * alignment
    whole = {}
    for name, (shape, number, offset) in found.items():
        kind, at = KINDS.get(number), start + offset
        if kind is None:
            known = ", ".join(k.name for k in KINDS.values())
            raise StorageError(
                f"{file}: {name} has elements of GGUF's type {number}; those that are read: {known}"
            )
        count = prod(shape)
        if (shape[-1] if shape else 1) % kind.count or offset % alignment:
            raise header.error(
                f"{name} {list(shape)} of {kind.name} at byte {at:,}: rows are blocks of "
                f"{kind.count} elements, and tensors begin at multiples of {alignment}"
            )
        nbytes = count // kind.count * kind.nbytes
        if at + nbytes > size or max(shape, default=0) > 2 * size:
            raise header.error(f"it was cut short: {name} is to end at byte {at + nbytes:,}")
        whole[name] = shape, kind, at, nbytes
    arrays = {}
    for name, (shape, kind, at, nbytes) in whole.items():
        blocks = image[at : at + nbytes].reshape(-1, kind.nbytes)
        array = kind.values(blocks).reshape(shape)
        arrays[name] = array if array.flags.aligned else array.copy()
    return arrays
