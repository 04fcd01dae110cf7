"""Tensors of torch whose memory is ours: handles in the place of addresses.

A storage of torch gets a number, its *slot*; its data pointer is slot << SHIFT, which nobody can
read from. So the pointer of a tensor tells the storage and the byte in it.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._dynamo import guards

from stack.recorder.window import contiguous_strides

alias: Any = guards._reinterpret_tensor  # type: ignore[attr-defined]
"""alias(x, shape, strides, by): a tensor on x's storage, `by` elements behind x's first."""

SHIFT = 36
MASK = (1 << SHIFT) - 1
"""The bytes of a storage."""

_RANK = 8
_WORDS = 8 + 2 * _RANK
_SLOTS = 4096
_EXTENSION = 12
"""DLPack's device type for others than it knows: torch takes it for its private one."""

_CODES = {
    torch.bool: (6, 8),
    torch.bfloat16: (4, 16),
    torch.float16: (2, 16),
    torch.float32: (2, 32),
    torch.float64: (2, 64),
    torch.int8: (0, 8),
    torch.int16: (0, 16),
    torch.int32: (0, 32),
    torch.int64: (0, 64),
    torch.uint8: (1, 8),
    torch.uint16: (1, 16),
    torch.uint32: (1, 32),
    torch.uint64: (1, 64),
}
_KINDS = {d: code | bits << 8 | 1 << 16 for d, (code, bits) in _CODES.items()}

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

# Storages end on any thread, also while a C++ exception is on its way, so what is called then must
# be native: the C library's `sem_post` on the structure, whose first word was zeroed, a semaphore.
_RELEASE = ctypes.cast(ctypes.CDLL(None).sem_post, ctypes.c_void_p).value
_PACK = [struct.Struct(f"<QiiiIQQQQQ{2 * n}q") for n in range(_RANK + 1)]
_ZERO = struct.Struct("<Q")


class Handles:
    """Gives slots out, and finds those that torch has let go."""

    def __init__(self) -> None:
        self._words = np.zeros((_SLOTS, _WORDS), np.uint64)
        self._chunks = [self._words]
        self._free = list(range(_SLOTS - 1, 0, -1))  # no slot 0: a null pointer is no storage

    def free(self) -> bool:
        """Whether there is a slot without asking for memory."""
        return bool(self._free)

    def tensor(self, device: int, shape: Sequence[int], dtype: torch.dtype,
               strides: Sequence[int] | None = None) -> tuple[int, Tensor]:  # fmt: skip
        """A slot, and a tensor on the device `device` whose storage has it. Dense: `strides` are a
        permutation of the row-major ones of a permuted shape."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        n = len(shape)
        if n > _RANK:
            self._free.append(slot)
            slot, flat = self.tensor(device, (prod(shape),), dtype)
            dense = contiguous_strides(tuple(shape)) if strides is None else tuple(strides)
            return slot, alias(flat, tuple(shape), dense, 0)
        given = contiguous_strides(tuple(shape)) if strides is None else strides
        if torch.is_inference_mode_enabled():  # whose tensors cannot be made so
            with torch.inference_mode(False):
                return self._made(slot, device, shape, dtype, given)
        return self._made(slot, device, shape, dtype, given)

    def _made(
        self,
        slot: int,
        device: int,
        shape: Sequence[int],
        dtype: torch.dtype,
        given: Sequence[int],
    ) -> tuple[int, Tensor]:
        chunk, row = divmod(slot, _SLOTS)
        words, n = self._chunks[chunk], len(shape)
        at = words.ctypes.data + row * _WORDS * 8
        buffer = words.data.cast("B")
        _PACK[n].pack_into(
            buffer, row * _WORDS * 8,
            slot << SHIFT, _EXTENSION, device, n, _KINDS[dtype], at + 64, at + 64 + 8 * n, 0, 0,
            _RELEASE, *shape, *given,
        )  # fmt: skip
        made = torch._C._from_dlpack(_new_capsule(at, b"dltensor", None))
        _ZERO.pack_into(buffer, row * _WORDS * 8, 0)
        return slot, made

    def released(self) -> Iterator[int]:
        """The slots whose storages are gone since the last call. They may be given out again."""
        for number, words in enumerate(self._chunks):
            for row in np.flatnonzero(words[:, 0]).tolist():
                words[row, 0] = 0
                slot = number * _SLOTS + row
                self._free.append(slot)
                yield slot

    def _grow(self) -> None:
        words = np.zeros((_SLOTS, _WORDS), np.uint64)
        first = len(self._chunks) * _SLOTS
        self._chunks.append(words)
        self._free.extend(range(first + _SLOTS - 1, first - 1, -1))


def slot_of(x: Tensor) -> int:
    """The slot of a tensor's storage; 0 of one without elements, which has no memory."""
    return int(x.data_ptr()) >> SHIFT
