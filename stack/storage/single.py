"""One safetensors file with checksums in its header, for whoever saves alone to one name.

The metadata entry "crc32c" has, in hexadecimal: the bytes of a block, the crc32c of the header with
zeros in the place of this very number, and that of each block of the data. So every byte is under a
checksum, and other readers of safetensors find an entry that they pass over. A file without it is
read unverified: earlier versions wrote such.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from hal.files import clear_parts, write_whole
from stack.storage.errors import Damaged, StorageError
from stack.storage.layout import BLOCK, DTYPES, METADATA, TensorInfo, code_of, file_of
from stack.storage.memory import Bytes, aligned

Array = NDArray[Any]
SUMS = "crc32c"
"""The metadata entry that holds the checksums."""


def write_file(path: str | Path, arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Put a file with these tensors in the place of `path`, in one moment and lastingly.

    It keeps the mode of the one that it replaces; a symbolic link keeps its place, and the file
    that it leads to is replaced. What killed writers of this file left is removed. Raises
    StorageError; an older file of that name is then as before.
    """
    infos = [TensorInfo("", name, code_of(a.dtype), a.shape) for name, a in arrays.items()]
    infos.sort(key=lambda info: -info.itemsize)  # so that each lies at a multiple of it
    data = [np.ascontiguousarray(arrays[i.name]).reshape(-1).view(np.uint8) for i in infos]
    sums = [f"{BLOCK:x}", "0" * 8, *(f"{s:08x}" for s in _sums(data))]
    header = file_of("", tuple(infos), {SUMS: " ".join(sums), **metadata}).header
    if len(header) > _LONGEST:
        raise StorageError(f"cannot save {path}: a header of {len(header):,} bytes; others read "
                           f"at most {_LONGEST:,}: put large data into tensors")  # fmt: skip
    # A header with its own checksum in the place of the zeros that stand for it
    at = header.index(b" ", header.index(b'"%s"' % SUMS.encode())) + 1
    header = header[:at] + b"%08x" % crc32c(header[8:]) + header[at + 8 :]
    target = Path(os.path.realpath(path))
    nbytes = len(header) + sum(len(part) for part in data)
    try:
        _replace(target, [header, *(part.data for part in data)])
    except OSError as error:
        raise StorageError(
            f"cannot write the checkpoint {path} ({nbytes:,} bytes): {error.strerror}; "
            f"{'the older file is unchanged' if target.exists() else 'no file was left'}"
        ) from error


def _sums(data: list[Bytes]) -> Iterator[int]:
    """The checksum of each block of parts one after the other."""
    checksum = taken = 0
    for part in data:
        at = 0
        while at < len(part):
            n = min(BLOCK - taken, len(part) - at)
            checksum = crc32c(part[at : at + n].data, checksum)
            at, taken = at + n, taken + n
            if taken == BLOCK:
                yield checksum
                checksum = taken = 0
    if taken:
        yield checksum


def _replace(target: Path, parts: list[Any]) -> None:
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        clear_parts(folder, target.name)
        mode = _mode(folder, target.name)
        if mode is None:
            write_whole(folder, target.name, parts, 0o666, durable=True)
        else:
            write_whole(folder, target.name, parts, mode, exactly=True, durable=True)
    finally:
        os.close(folder)


def _mode(folder: int, name: str) -> int | None:
    """The mode of the file that is to be replaced, if there is one. Raises OSError for what is no
    file."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        number = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
        raise OSError(number, "the name is that of something else than a file")
    return stat.S_IMODE(status.st_mode)


def read_file(path: str | Path) -> tuple[dict[str, Array], dict[str, str]]:
    """The tensors of a file, verified where it has checksums, and its metadata. Raises StorageError
    for a file that is none, and Damaged that names what is not as it was written."""
    file = Path(path)
    try:
        if not file.is_file():
            raise StorageError(f"there is no checkpoint {file}")
        with safe_open(file, framework="numpy"):
            pass  # it has looked at every field of the header, and that the data have no holes
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            text = stream.read(length)
            image = aligned(os.fstat(stream.fileno()).st_size - 8 - length)
            size = stream.readinto(image.data)
    except (SafetensorError, OSError) as error:
        raise StorageError(
            f"{file} ({file.stat().st_size:,} bytes) is not a whole safetensors checkpoint: "
            f"{error}; {_kind(file)}"
        ) from error
    entries: dict[str, Any] = json.loads(text)
    metadata = entries.pop(METADATA, None) or {}
    if SUMS in metadata:
        _verify(file, text, image[:size], entries, metadata.pop(SUMS))
    arrays = {}
    for name, entry in entries.items():
        if entry["dtype"] not in DTYPES:
            raise StorageError(f"{file}: {name} has elements of {entry['dtype']}")
        shape, dtype = tuple(entry["shape"]), DTYPES[entry["dtype"]]
        array = np.ndarray(shape, dtype, image, entry["data_offsets"][0])
        arrays[name] = array if array.flags.aligned else array.copy()
    return arrays, metadata


_CONVERT = "; convert its tensors to safetensors where it comes from"
_FOREIGN = {
    b"\x89HDF": f"it is an HDF5 file{_CONVERT}",
    b"\x93NUMPY": f"it is an array of numpy{_CONVERT}",
    b"PK\x03\x04": "it is a zip archive without its end, as a file of PyTorch that was cut short",
    b"\x80": f"it is a pickle, which could run code{_CONVERT}",
}
"""What files begin with that are taken for checkpoints."""
_LONGEST = 100_000_000
"""The bytes of a header that others read."""


def _kind(file: Path) -> str:
    """What an unreadable file seems to be: one of another kind, or where it was cut."""
    try:
        with file.open("rb") as stream:
            first = stream.read(8)
            length, size = int.from_bytes(first, "little"), file.stat().st_size
            text = stream.read(length) if 8 + length <= size else b""
    except OSError:
        return "it cannot be read"
    if length > _LONGEST:
        if file.suffix == ".onnx":
            return f"it is an ONNX model{_CONVERT}"
        for start, kind in _FOREIGN.items():
            if first.startswith(start):
                return kind
    if not text:
        return f"it was cut short or is of another kind: its header would end at {8 + length:,}"
    try:
        entries = json.loads(text)
        ends = {n: 8 + length + e["data_offsets"][1] for n, e in entries.items() if n != METADATA}
        cut = [(end, name) for name, end in ends.items() if end > size]
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return f"its header (bytes 8 to {8 + length:,}) is damaged, or it is of another kind"
    if cut:
        return f"it was cut short: {min(cut)[1]} is to end at byte {min(cut)[0]:,}"
    return f"its header (bytes 8 to {8 + length:,}) and its data do not fit"


def _verify(file: Path, text: bytes, data: Bytes, entries: dict[str, Any], told: str) -> None:
    """Raises Damaged for the first block that differs, and StorageError for checksums that say
    nothing."""
    try:
        block, _, *sums = [int(word, 16) for word in told.split(" ")]
        at = text.index(b" ", text.index(b'"%s"' % SUMS.encode())) + 1
    except ValueError as error:
        raise Damaged(f"{file} is damaged: its checksums cannot be read: {error}") from error
    if block < 1 or len(sums) != -(-len(data) // block):
        raise Damaged(
            f"{file} is damaged: it has {len(sums)} checksums for {len(data):,} bytes in blocks "
            f"of {block:,}"
        )
    if b"%08x" % crc32c(text[:at] + b"0" * 8 + text[at + 8 :]) != text[at : at + 8]:
        raise Damaged(f"{file} is damaged: its header (bytes 0 to {8 + len(text):,}) is not what "
                      "was written; load another checkpoint")  # fmt: skip
    for number, checksum in enumerate(sums):
        low, high = number * block, min((number + 1) * block, len(data))
        if crc32c(data[low:high].data) != checksum:
            names = [n for n, e in entries.items() if e["data_offsets"][0] < high
                     and e["data_offsets"][1] > low]  # fmt: skip
            start = 8 + len(text)
            raise Damaged(
                f"{file} is damaged: bytes {start + low:,} to {start + high:,} "
                f"({', '.join(names[:8])}{' ...' if len(names) > 8 else ''}) are not what was "
                "written; load another checkpoint"
            )
