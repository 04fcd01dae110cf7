"""Tensors of torch whose memory is ours: handles in the place of addresses.

A storage of torch gets a number, its *slot*; its data pointer is slot << SHIFT, which nobody can
read from. So the pointer of a tensor tells the storage and the byte in it.
"""

from __future__ import annotations

import ctypes
import struct
from array import array
from dataclasses import field
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._dynamo import guards

from hal.core.facts import dataclass
from stack.bridge.torch._parts import capsule
from stack.recorder.window import contiguous_strides

alias: Any = guards._reinterpret_tensor  # type: ignore[attr-defined]
"""alias(x, shape, strides, by): a tensor on x's storage, `by` elements behind x's first."""

SHIFT = 36
MASK = (1 << SHIFT) - 1
"""The bytes of a storage."""

_RANK = 8
_WORDS = 8 + 2 * _RANK
_SLOTS = 4096
_FIRST = 1 << 22
"""The first slot: handles lie beyond all addresses of a process (57 bits), so that a pointer tells
whose it is."""
_FORMS = 20_000
"""How many forms are known before they are forgotten."""
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

_from_dlpack, is_inference = torch._C._from_dlpack, torch.is_inference_mode_enabled

# Storages end on any thread, also while a C++ exception is on its way, so what is called then must
# be native: the C library's `sem_post` on the structure, whose first word was zeroed, a semaphore.
_RELEASE = ctypes.cast(ctypes.CDLL(None).sem_post, ctypes.c_void_p).value
_PACK = [struct.Struct(f"<QiiiIQQQQQ{2 * n}q") for n in range(_RANK + 1)]


Place = tuple[int, "array[int]", int, int, int]
"""Where a slot's structure is: the slot, the words of its chunk, its first among them, the pointer
that its tensors have, and the address of that first word."""


@dataclass(frozen=True, eq=False, slots=True)
class TensorForm:
    """What tensors are to be: equal ones are one object. `free` are slots whose structures tell of
    such tensors already."""

    device: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...]
    size: int
    free: list[Place] = field(default_factory=list)


class Handles:
    """Gives slots out, and finds those that torch has let go."""

    def __init__(self) -> None:
        self._chunks: list[np.ndarray[Any, Any]] = []
        """The first word of each slot's structure: not 0 once its storage is gone."""
        self._places: list[Place] = []
        """Of each slot from `_FIRST` on."""
        self._free: list[Place] = []
        self._form_of: list[TensorForm | None] = []
        self._forms: dict[tuple[Any, ...], TensorForm] = {}

    def known(self, device: int, shape: tuple[int, ...], dtype: torch.dtype,
              strides: tuple[int, ...] | None = None) -> TensorForm | None:  # fmt: skip
        """What `form` gave for these before, if it is not forgotten."""
        return self._forms.get((device, shape, dtype, strides))

    def form(self, device: int, shape: tuple[int, ...], dtype: torch.dtype,
             strides: tuple[int, ...] | None = None) -> TensorForm:  # fmt: skip
        """Dense tensors on the device `device`: `strides` are a permutation of the row-major ones
        of a permuted shape. Raises RuntimeError for a negative size, OutOfMemoryError for more
        bytes than a handle can tell apart."""
        key = (device, shape, dtype, strides)
        found = self._forms.get(key)
        if found is None:
            if any(n < 0 for n in shape):
                raise RuntimeError(
                    f"Trying to create tensor with negative dimension {min(shape)}: {list(shape)}"
                )
            size = prod(shape)
            if size * dtype.itemsize > MASK + 1:
                raise torch.OutOfMemoryError(
                    f"a tensor {list(shape)} of {dtype} takes {size * dtype.itemsize:,} bytes; one "
                    f"of this device has at most {MASK + 1:,}"
                )
            if len(self._forms) >= _FORMS:
                self._forget()
            given = contiguous_strides(shape) if strides is None else strides
            found = self._forms[key] = TensorForm(device, shape, dtype, given, size)
        return found

    def has_free(self, form: TensorForm) -> bool:
        """Whether there is a slot for such a tensor without asking for memory."""
        return bool(form.free or self._free)

    def tensor(self, form: TensorForm) -> tuple[int, Tensor]:
        """A slot, and a tensor whose storage has it."""
        free = form.free
        if not free:
            if len(form.shape) > _RANK:
                slot, flat = self.tensor(self.form(form.device, (form.size,), form.dtype))
                return slot, alias(flat, form.shape, form.strides, 0)
            free.append(self._packed(form))
        slot, words, first, pointer, at = free.pop()
        words[first] = pointer
        if is_inference():  # whose tensors cannot be made so
            with torch.inference_mode(False):
                made = _from_dlpack(capsule(at))
        else:
            made = _from_dlpack(capsule(at))
        words[first] = 0
        return slot, made

    def released(self) -> list[int]:
        """The slots whose storages are gone since the last call. They may be given out again."""
        gone: list[int] = []
        for number, chunk in enumerate(self._chunks):
            rows = np.flatnonzero(chunk)
            if rows.size:
                chunk[rows] = 0
                gone += (rows + (number * _SLOTS + _FIRST)).tolist()
        forms, places = self._form_of, self._places
        for slot in gone:
            form = forms[slot - _FIRST]
            (self._free if form is None else form.free).append(places[slot - _FIRST])
        return gone

    def _packed(self, form: TensorForm) -> Place:
        """A slot whose structure tells of such a tensor."""
        if not self._free:
            spare = sum([len(f.free) for f in self._forms.values()])
            self._forget() if 2 * spare > len(self._places) else self._grow()
        slot, words, first, _, at = place = self._free.pop()
        n = len(form.shape)
        _PACK[n].pack_into(
            words, first * 8,
            0, _EXTENSION, form.device, n, _KINDS[form.dtype], at + 64, at + 64 + 8 * n, 0, 0,
            _RELEASE, *form.shape, *form.strides,
        )  # fmt: skip
        self._form_of[slot - _FIRST] = form
        return place

    def _grow(self) -> None:
        words = array("Q", bytes(_SLOTS * _WORDS * 8))
        # It outlives Python: storages may end after all modules are gone.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(words))
        at, slot = words.buffer_info()[0], _FIRST + len(self._places)
        self._chunks.append(np.frombuffer(words, np.uint64)[::_WORDS])
        made = [
            (slot + n, words, n * _WORDS, (slot + n) << SHIFT, at + n * _WORDS * 8)
            for n in range(_SLOTS)
        ]
        self._places += made
        self._form_of += [None] * _SLOTS
        self._free += made[::-1]

    def _forget(self) -> None:
        """Let forms go; their slots serve others."""
        for form in self._forms.values():
            self._free += form.free
            form.free.clear()
        self._forms.clear()
        self._form_of = [None] * len(self._form_of)
