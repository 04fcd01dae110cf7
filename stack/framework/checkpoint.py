"""A training's state as one tree of tensors and plain Python values, in one safetensors file.

The file has tensors by their path in the tree, and the tree itself as JSON in the metadata, in
which {"tensor:": path} stands for a tensor. `stack.storage` writes it whole or not at all, with
checksums.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from io import BufferedIOBase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from stack.framework.create import tensor
from stack.framework.devices import NDArray, engine
from stack.framework.errors import CheckpointError, TensorError
from stack.framework.realize import arrays_of
from stack.framework.tensor import Tensor
from stack.framework.torch_files import load_torch_file
from stack.storage.errors import StorageError
from stack.storage.gguf import is_gguf, read_gguf
from stack.storage.layout import METADATA
from stack.storage.single import read_file, write_file

KEY = "state"
"""The metadata entry that holds the plain state as JSON."""

DEEPEST = 100
"""How many dicts, lists and tuples may be within each other."""

_LARGEST_STATE_NBYTES = 40_000_000
"""Readers of safetensors refuse headers of more than 100 MB, in which each quote takes two."""

_PLAIN = (str, int, float, bool, type(None))
"""What comes back from JSON as it was: exactly these, and none of their subclasses."""


def save(path: Any, tree: Any) -> None:
    """Write nested dicts, lists and tuples of tensors, numbers, strings, bools and None into a file
    of that path, or into an open file.

    The arguments also come in PyTorch's order, the tree before the path. The file appears under its
    name only when it is complete and on disk. It keeps the mode of the one that it replaces; a
    symbolic link keeps its place, and the file that it leads to is replaced. What killed saves of
    this file left is removed. On an error (no space, no such folder) an older file of that name
    stays as it was; raises CheckpointError with the cause, also for what `load` would not give back
    as it is: other classes, numpy's numbers, a number of thousands of digits, text that is not
    Unicode, more than DEEPEST levels.
    """
    if isinstance(tree, str | Path | BufferedIOBase) and not isinstance(
        path, str | Path | BufferedIOBase
    ):
        path, tree = tree, path
    if isinstance(path, BufferedIOBase):
        with TemporaryDirectory() as folder:
            save(Path(folder, "state"), tree)
            path.write(Path(folder, "state").read_bytes())
        return
    if not isinstance(path, str | Path):
        raise CheckpointError(f"save takes the path of a file, not a {type(path).__name__}")
    if not isinstance(tree, Mapping):
        raise CheckpointError(f"a checkpoint is a dict, not a {type(tree).__name__}")
    tensors: dict[str, Tensor] = {}
    plain = taken_apart(tree, "", tensors)
    state = json.dumps(plain)
    if len(state) > _LARGEST_STATE_NBYTES:
        raise CheckpointError(
            f"cannot save {len(state):,} bytes of plain state: safetensors takes "
            f"{_LARGEST_STATE_NBYTES:,}; put large data into tensors"
        )
    try:
        write_file(path, arrays_in(tensors), {KEY: state})
    except StorageError as error:
        raise CheckpointError(str(error)) from error


def load(
    path: str | Path | BufferedIOBase,
    device: str | None = None,
    *,
    map_location: str | None = None,
    weights_only: bool = True,
) -> Any:
    """What `save` was given, with tensors on the device, which PyTorch calls map_location.

    Every byte is verified; files of earlier versions have no checksums. Of another safetensors file
    it gives the tensors by name; of a GGUF file, too, quantised ones as float32; of PyTorch's `.pt`
    the tree, if that holds tensors and plain data alone: no file runs code, whatever weights_only
    says. Raises CheckpointError naming the file and what is wrong.
    """
    if isinstance(path, BufferedIOBase):
        with TemporaryDirectory() as folder:
            Path(folder, "state").write_bytes(path.read())
            return load(Path(folder, "state"), device, map_location=map_location)
    file, place = Path(path), device or map_location
    if file.is_file() and zipfile.is_zipfile(file):  # a pipe would be waited for
        return load_torch_file(file, place)
    try:
        arrays, metadata = (read_gguf(file), {}) if is_gguf(file) else read_file(file)
    except StorageError as error:
        raise CheckpointError(str(error)) from error
    state = metadata.pop(KEY, None)
    if state is None and not any(entry.startswith('{"dict"') for entry in metadata.values()):
        return {name: tensor(array, device=place) for name, array in arrays.items()}
    if metadata or state is None:
        raise CheckpointError(_foreign(file, f"it has the entries {list(metadata)}"))
    try:
        plain = json.loads(state)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(_foreign(file, f"its state is no JSON: {error}")) from error
    result = StateTree(file, arrays, place).part(plain, 0)
    if not isinstance(result, dict):
        raise CheckpointError(_foreign(file, "its state is no dict"))
    return result


def _foreign(file: Path, why: str) -> str:
    return f"{file} is a safetensors file, but not a checkpoint written by `save`: {why}"


_TENSOR = "tensor:"


def arrays_in(tensors: Mapping[str, Tensor]) -> dict[str, NDArray]:
    """The values of all tensors, computed together."""
    arrays = arrays_of(list(tensors.values()))
    return {
        name: engine(t.device).get(array)
        for (name, t), array in zip(tensors.items(), arrays, strict=True)
    }


def taken_apart(value: Any, path: str, tensors: dict[str, Tensor], depth: int = 0) -> Any:
    """The value as JSON, with tensors put into `tensors` under their path and named by it. Raises
    CheckpointError for what would not come back as it is."""
    if depth > DEEPEST:
        raise CheckpointError(f"cannot save {path[:80]}...: it is more than {DEEPEST} levels deep")
    if isinstance(value, Tensor):
        _check_text(path, path)
        if path == METADATA:
            raise CheckpointError(f"cannot save a tensor under the name {path}: the format has it")
        if path in tensors:
            raise CheckpointError(f"cannot save two tensors under one name, {path}")
        tensors[path] = value
        return {_TENSOR: path}
    if isinstance(value, Mapping):
        for key in value:
            _check_plain(key, f"a key of {path}" if path else "a key")
        pairs = [
            [k, taken_apart(v, f"{path}.{k}" if path else str(k), tensors, depth + 1)]
            for k, v in value.items()
        ]
        return {"dict": pairs}
    if type(value) in (list, tuple):
        start = f"{path}." if path else ""
        parts = [taken_apart(v, f"{start}{i}", tensors, depth + 1) for i, v in enumerate(value)]
        return {type(value).__name__: parts}
    _check_plain(value, path)
    return value


def _check_plain(value: Any, where: str) -> None:
    if isinstance(value, np.generic):
        raise CheckpointError(
            f"cannot save {where}: a numpy {type(value).__name__} would come back as a plain "
            "number; save .item() of it, or a tensor"
        )
    if type(value) not in _PLAIN:
        raise CheckpointError(
            f"cannot save {where}: a {type(value).__name__} is neither a tensor nor plain data"
        )
    if isinstance(value, str):
        _check_text(value, where)
    if isinstance(value, int):
        try:
            str(value)
        except ValueError as error:
            raise CheckpointError(f"cannot save {where}: a number so long: {error}") from error


def _check_text(text: str, where: str) -> None:
    """Halves of characters, as Python makes them of names of files, would not come back."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(f"cannot save {where!a}: {text!a} is no Unicode text") from error


class StateTree:
    """Puts the tree of a checkpoint together. Raises CheckpointError for what `save` never
    writes."""

    def __init__(self, file: Path, arrays: Mapping[str, NDArray], device: str | None) -> None:
        self._file, self._arrays, self._device = file, arrays, device

    def part(self, value: Any, depth: int) -> Any:
        """What `taken_apart` was given."""
        if type(value) in _PLAIN:
            return value
        if depth > DEEPEST or not isinstance(value, dict) or len(value) != 1:
            raise self._wrong()
        ((kind, inside),) = value.items()
        if kind == _TENSOR:
            if not isinstance(inside, str):
                raise self._wrong()
            if inside not in self._arrays:
                raise CheckpointError(
                    f"{self._file} lacks the tensor {inside!r} that its state names"
                )
            if self._arrays[inside].dtype.kind == "c":
                raise CheckpointError(
                    f"{self._file}: the tensor {inside!r} is complex: none is saved"
                )
            try:
                return tensor(self._arrays[inside], device=self._device)
            except TensorError as error:
                raise CheckpointError(f"{self._file}: the tensor {inside!r}: {error}") from error
        if not isinstance(inside, list):
            raise self._wrong()
        if kind == "dict":
            found: dict[Any, Any] = {}
            for pair in inside:
                if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) not in _PLAIN:
                    raise self._wrong()
                found[pair[0]] = self.part(pair[1], depth + 1)
            if len(found) != len(inside):
                raise self._wrong()
            return found
        if kind not in ("list", "tuple"):
            raise self._wrong()
        parts = [self.part(v, depth + 1) for v in inside]
        return tuple(parts) if kind == "tuple" else parts

    def _wrong(self) -> CheckpointError:
        return CheckpointError(_foreign(self._file, "its state has another form"))
