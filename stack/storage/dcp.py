"""Checkpoint folders of `torch.distributed.checkpoint` (DCP), in and out; needs torch.

A tensor "NAME" of group "model" is DCP's {"model": {NAME: tensor}}. Plain data goes out as the
text "state" in JSON, and comes in from what DCP pickles where it is plain. Nothing that is
unpickled can call anything but DCP's own records.
"""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from numpy.typing import NDArray
from torch.distributed.checkpoint import metadata as records
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata

from stack.storage.errors import StorageError
from stack.storage.layout import DTYPES, code_of

Array = NDArray[Any]
_TORCH = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}
_CODES = {dtype: code for code, dtype in _TORCH.items()}
STATE = "state"


_CALLED = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("pathlib", "PosixPath"),
    *(
        (records.__name__, name)
        for name, kind in vars(records).items()
        if isinstance(kind, type) and kind.__module__ == records.__name__
    ),
}
"""What DCP's metadata is made of, besides element types."""


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "pathlib._local":  # the home of pathlib's classes in Python 3.13 alone
            module = "pathlib"
        known = (module, name) in _CALLED
        if not known and not (
            module == "torch" and isinstance(getattr(torch, name, 0), torch.dtype)
        ):
            raise pickle.UnpicklingError(f"{module}.{name} is no part of DCP's metadata")
        return super().find_class(module, name)


class _FolderReader(dcp.FileSystemReader):  # type: ignore[misc]
    """Reads folders of others: their metadata, which DCP pickles, may make its records alone, and
    names files of the folder alone."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> records.Metadata:
        with self.fs.create_stream(self._get_metadata_path(kwargs.get("rank")), "rb") as stream:
            found = _MetadataUnpickler(stream).load()
        if not isinstance(found, records.Metadata):
            raise pickle.UnpicklingError(f"it holds a {type(found).__name__}")
        for place in (found.storage_data or {}).values():
            if Path(place.relative_path).name != place.relative_path:
                raise pickle.UnpicklingError(f"{place.relative_path!r} is no file of the folder")
        found.storage_meta = found.storage_meta or records.StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


def write(folder: str | Path, tensors: dict[str, dict[str, Array]], state: Any) -> None:
    """Write a DCP folder, which must not be there yet. Raises StorageError."""
    if Path(folder).exists():
        raise StorageError(f"{folder} is there already; export to a new folder")
    whole: dict[str, Any] = {
        group: {name: _to_torch(array) for name, array in members.items()}
        for group, members in tensors.items()
    }
    if STATE in whole:
        raise StorageError(f"a group is called {STATE!r}, as is the plain data; rename it")
    dcp.save({**whole, STATE: json.dumps(state)}, checkpoint_id=str(folder), no_dist=True)


def read(folder: str | Path) -> tuple[dict[str, dict[str, Array]], Any]:
    """The tensors of a DCP folder by group and name, and its plain data: what `write` was given, or
    a dict of the plain entries of another's. Raises StorageError for a folder that is none."""
    reader = _FolderReader(str(folder))
    try:
        metadata = reader.read_metadata()
    except Exception as error:
        raise StorageError(f"{folder} is no DCP folder: {error!r}") from error
    wanted: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    for key, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            if entry.properties.dtype not in _CODES:
                raise StorageError(f"{folder}: {key} has elements of {entry.properties.dtype}")
            wanted[key] = torch.empty(entry.size, dtype=entry.properties.dtype)
        else:
            plain[key] = _plain(Path(folder), metadata.storage_data[MetadataIndex(key)], key)
    if wanted:
        dcp.load(wanted, storage_reader=reader, no_dist=True)
    tensors: dict[str, dict[str, Array]] = {}
    for key, tensor in wanted.items():
        path = (metadata.planner_data or {}).get(key, (key,))
        group, name = ("model", key) if len(path) < 2 else (path[0], ".".join(map(str, path[1:])))
        flat = tensor.contiguous().view(-1).view(torch.uint8).numpy()
        made: Array = flat.view(DTYPES[_CODES[tensor.dtype]]).reshape(tuple(tensor.shape))
        tensors.setdefault(str(group), {})[name] = made
    if set(plain) == {STATE}:
        return tensors, json.loads(plain[STATE])
    return tensors, plain


def _plain(folder: Path, place: Any, key: str) -> Any:
    with (folder / place.relative_path).open("rb") as stream:
        stream.seek(place.offset)
        data = stream.read(place.length)
    try:
        value = torch.load(io.BytesIO(data), weights_only=True)
        json.dumps(value)
    except Exception as error:
        raise StorageError(f"{folder}: {key} is no plain data: {error}") from error
    return value


def _to_torch(array: Array) -> Any:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    made = torch.empty(array.shape, dtype=_TORCH[code_of(array.dtype)])
    made.view(-1).view(torch.uint8).copy_(torch.from_numpy(flat))
    return made
