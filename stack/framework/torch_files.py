"""PyTorch's files (`.pt`, `.pth`, `.bin`) without PyTorch, and without running what they say.

A file is a zip archive: a pickle of the tree, in which a tensor is a call of `_rebuild_tensor_v2`
on a storage, and the storages' bytes beside it. Only that call, OrderedDict and the plain
containers are known here; any other name in the pickle is an error, so that no file can run code.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hal.core.dtypes import DType
from hal.tile.numeric import NUMPY
from stack.framework.create import tensor
from stack.framework.errors import CheckpointError
from stack.framework.tensor import Tensor

_STORAGES = {
    "DoubleStorage": DType.F64,
    "FloatStorage": DType.F32,
    "HalfStorage": DType.F16,
    "BFloat16Storage": DType.BF16,
    "LongStorage": DType.I64,
    "IntStorage": DType.I32,
    "ShortStorage": DType.I16,
    "CharStorage": DType.I8,
    "ByteStorage": DType.U8,
    "BoolStorage": DType.BOOL,
}


def load_torch_file(path: Path, device: str | None) -> Any:
    """The tree of a file of PyTorch 1.6 or newer. Raises CheckpointError for what is no such file,
    and for a pickle that holds anything but tensors and plain data."""
    try:
        with zipfile.ZipFile(path) as archive:
            root = _root(archive, path)
            with archive.open(f"{root}data.pkl") as stream:
                return _Reader(stream, archive, f"{root}data/", path, device).load()
    except CheckpointError:
        raise
    except _DAMAGED as error:
        raise CheckpointError(f"{path} is no file of PyTorch: {error}") from error


_DAMAGED = (
    *(zipfile.BadZipFile, pickle.UnpicklingError, EOFError, ValueError, LookupError),
    *(TypeError, AttributeError, OverflowError, MemoryError, RecursionError),
)
"""What comes of a damaged pickle: it is a program, which may do anything with plain data."""


def _root(archive: zipfile.ZipFile, path: Path) -> str:
    """The folder of an archive that holds the tree."""
    names = archive.namelist()
    trees = [name for name in names if name.endswith("/data.pkl")]
    if len(trees) != 1:
        raise CheckpointError(
            f"{path} is a zip archive of {len(names)} files without PyTorch's data.pkl; an .npz is "
            "read by numpy"
        )
    root = trees[0].removesuffix("data.pkl")
    order = archive.read(f"{root}byteorder").decode() if f"{root}byteorder" in names else "little"
    if order != "little":
        raise CheckpointError(f"{path} was written with {order}-endian numbers")
    return root


class _Reader(pickle.Unpickler):
    def __init__(
        self, stream: Any, archive: zipfile.ZipFile, folder: str, path: Path, device: str | None
    ) -> None:
        super().__init__(stream)
        self._archive, self._folder, self._path, self._device = archive, folder, path, device
        self._read: dict[str, np.ndarray[Any, Any]] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _STORAGES[name]
        known: dict[tuple[str, str], Callable[..., Any]] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): self._tensor,
            ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
        }
        if (module, name) in known:
            return known[module, name]
        raise CheckpointError(
            f"{self._path} names {module}.{name}, which is neither a tensor nor plain data; save a "
            "state_dict in PyTorch, or write safetensors"
        )

    def persistent_load(self, pid: Any) -> Any:
        kind, dtype, key, _, count = pid
        if kind != "storage" or not isinstance(dtype, DType):
            raise CheckpointError(f"{self._path} holds a {kind} of {dtype}, not a storage")
        if key not in self._read:
            name = f"{self._folder}{key}"
            data = self._archive.read(name)
            wanted = count * NUMPY[dtype].itemsize
            if len(data) < wanted:
                raise CheckpointError(
                    f"{self._path} is damaged: {name} has {len(data):,} bytes for {count:,} "
                    f"elements of {dtype.name.lower()}, which are {wanted:,}"
                )
            self._read[key] = np.frombuffer(data, NUMPY[dtype], count)
        return self._read[key], dtype

    def _tensor(
        self,
        storage: tuple[np.ndarray[Any, Any], DType],
        offset: int,
        size: Sequence[int],
        stride: Sequence[int],
        *_: Any,
    ) -> Tensor:
        data, dtype = storage
        last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        if min((offset, *stride), default=0) < 0 or (0 not in size and last >= data.size):
            raise CheckpointError(f"{self._path} has a tensor that reaches over its storage")
        strides = [s * data.itemsize for s in stride]
        view = np.lib.stride_tricks.as_strided(data[offset:], tuple(size), strides, writeable=False)
        return tensor(view, dtype=dtype, device=self._device)
