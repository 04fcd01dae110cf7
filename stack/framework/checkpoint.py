"""Checkpoints: tensors and plain Python state in one safetensors file, written whole or not at
all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (numpy learns bfloat16 from it)
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as serialize

from stack.framework.create import tensor
from stack.framework.device import NDArray, engine
from stack.framework.errors import CheckpointError
from stack.framework.realize import arrays_of
from stack.framework.tensor import Tensor

KEY = "state"
"""The metadata entry that holds the plain state as JSON."""


def save(path: str | Path, tree: Mapping[str, Any]) -> None:
    """Write nested dicts and lists of tensors, numbers, strings, bools and None.

    The file appears under its name only when it is complete and on disk. On an error (no space, no
    such folder) an older file of that name stays as it was; raises CheckpointError with the cause.
    """
    target = Path(path)
    tensors: dict[str, Tensor] = {}
    plain = _taken_apart(tree, "", tensors)
    data = serialize(_read(tensors), {KEY: json.dumps(plain)})
    try:
        _replace(target, data)
    except OSError as error:
        raise CheckpointError(
            f"cannot write the checkpoint {target} ({len(data):,} bytes): {error.strerror}; "
            f"{'the older file is unchanged' if target.exists() else 'no file was left'}"
        ) from error


def _replace(target: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Make the new name last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load(path: str | Path, device: str | None = None) -> dict[str, Any]:
    """What `save` was given, with tensors on the device. Raises CheckpointError naming the file and
    what is wrong."""
    file = Path(path)
    if not file.is_file():
        raise CheckpointError(f"there is no checkpoint {file}")
    try:
        with safe_open(file, framework="numpy") as opened:
            plain = json.loads((opened.metadata() or {})[KEY])
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise CheckpointError(_complaint(file, error)) from error
    result = _put_together(plain, arrays, device, file)
    if not isinstance(result, dict):
        raise CheckpointError(_foreign(file))
    return result


def _foreign(file: Path) -> str:
    return f"{file} is a safetensors file, but not a checkpoint written by `save`"


def _complaint(file: Path, error: Exception) -> str:
    size = file.stat().st_size
    if isinstance(error, KeyError):
        return _foreign(file)
    return (
        f"{file} ({size:,} bytes) is not a whole safetensors checkpoint: {error}; "
        "it was cut short or is a file of another kind"
    )


_TENSOR = "tensor:"


def _read(tensors: Mapping[str, Tensor]) -> dict[str, NDArray]:
    """The values of all tensors, computed together."""
    arrays = arrays_of(list(tensors.values()))
    return {
        name: engine(t.device).get(array)
        for (name, t), array in zip(tensors.items(), arrays, strict=True)
    }


def _taken_apart(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON, with tensors put into `tensors` under their path and named by it."""
    if isinstance(value, Tensor):
        if path in tensors:
            raise CheckpointError(f"cannot save two tensors under one name, {path}")
        tensors[path] = value
        return {_TENSOR: path}
    if isinstance(value, Mapping):
        pairs = [
            [k, _taken_apart(v, f"{path}.{k}" if path else str(k), tensors)]
            for k, v in value.items()
        ]
        return {"dict": pairs}
    if isinstance(value, list | tuple):
        parts = [_taken_apart(v, f"{path}.{i}", tensors) for i, v in enumerate(value)]
        return {type(value).__name__: parts}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise CheckpointError(
        f"cannot save {path}: a {type(value).__name__} is neither a tensor nor plain data"
    )


def _put_together(value: Any, arrays: Mapping[str, NDArray], device: str | None, file: Path) -> Any:
    if not isinstance(value, dict):
        return value
    inside: Any
    kind, inside = next(iter(value.items()), ("", None))
    if kind not in (_TENSOR, "dict", "list", "tuple"):
        raise CheckpointError(_foreign(file))
    if kind == _TENSOR:
        if inside not in arrays:
            raise CheckpointError(f"{file} lacks the tensor {inside!r} that its state names")
        return tensor(arrays[inside], device=device)
    if kind == "dict":
        return {k: _put_together(v, arrays, device, file) for k, v in inside}
    parts = [_put_together(v, arrays, device, file) for v in inside]
    return tuple(parts) if kind == "tuple" else parts
