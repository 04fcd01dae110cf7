"""What torch calls for tensors of the device: each operator of the table as one that records."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hal.core.description import SpaceKind
from hal.core.dtypes import DType
from hal.core.errors import HalError, OutOfMemory
from hal.tile.numeric import NUMPY
from stack import ops as g
from stack.bridge.torch.handles import MASK, SHIFT, Handles, alias
from stack.bridge.torch.tape import (
    DTYPES,
    TORCH,
    Empty,
    Flag,
    Operand,
    Result,
    Row,
    Scalar,
    Storage,
    Tape,
    lock,
)
from stack.framework import devices
from stack.framework.errors import RangeError
from stack.memory.pool import PoolStats
from stack.ops.error import GraphError

NAME = "hal"
HOST = "HAL_TORCH_HOST"

handles = Handles()
_tapes: dict[int, Tape] = {}
_device_of: dict[int, int] = {}
"""The device of each slot."""
host_calls: Counter[str] = Counter()
"""How often an operator without a row ran on the host, by name."""

_CLONE = Row("clone", lambda x: g.contiguous(x))
COPY = Row("copy", lambda x: x)
_FREE_EACH = 256
_made = 0


def names() -> list[str]:
    """The devices behind hal:0, hal:1, ...: those of HAL_DEVICES, or the default one."""
    given = os.environ.get("HAL_DEVICES", "")
    return [n.strip() for n in given.split(",") if n.strip()] or [devices.default_device()]


def tape_of(index: int) -> Tape:
    """The tape of hal:index, whose device is opened at the first call."""
    tape = _tapes.get(index)
    if tape is None:
        known = names()
        if not 0 <= index < len(known):
            raise RuntimeError(
                f"there is no {NAME}:{index}; HAL_DEVICES names {len(known)}: {', '.join(known)}"
            )
        tape = _tapes[index] = Tape(devices.engine(known[index]))
    return tape


def _after_fork() -> None:
    """The child has none of the parent's threads and devices."""
    _forked.extend(_tapes)
    _tapes.clear()


_forked: list[int] = []
os.register_at_fork(after_in_child=_after_fork)


def sweep() -> None:
    """Forget the storages that torch has let go."""
    for slot in handles.released():
        index = _device_of.pop(slot, None)
        if index is not None and index in _tapes:
            _tapes[index].release(slot)


def new_tensor(
    index: int,
    shape: Sequence[int],
    dtype: torch.dtype,
    strides: Sequence[int] | None = None,
) -> tuple[Tensor, Storage]:
    """An undefined tensor, dense, and its storage."""
    global _made
    _made += 1
    if not _made % _FREE_EACH or not handles.free():
        sweep()
    if dtype not in DTYPES:
        known = ", ".join(str(d).removeprefix("torch.") for d in DTYPES)
        raise NotImplementedError(
            f"{NAME}:{index} ({names()[index]}) has no {dtype}; it has {known}"
        )
    slot, x = handles.tensor(index, shape, dtype, strides)
    storage = Storage(DTYPES[dtype], int(np.prod(shape, dtype=np.int64)))
    if storage.size:
        tape_of(index).hold(slot, storage)
        _device_of[slot] = index
    return x, storage


def storage_of(x: Tensor) -> Storage:
    """The storage of a tensor that has elements."""
    slot = x.data_ptr() >> SHIFT
    if _forked and x.device.index in _forked:
        raise RuntimeError(
            f"{x.device} was used before this process was forked, and is out of reach here; start "
            "processes by multiprocessing's method `spawn`"
        )
    return tape_of(x.device.index).storage(slot)


def operand(tape: Tape, x: Tensor) -> Operand | Empty:
    """How a tape refers to a tensor of its device."""
    at = x.data_ptr()
    dtype = DTYPES[x.dtype]
    if not at:
        return Empty(tuple(x.shape), dtype)
    number = tape.number(tape.storage(at >> SHIFT))
    offset = (at & MASK) // (dtype.bits // 8 or 1)
    return Operand(number, offset, tuple(x.shape), x.stride(), dtype)


def encode(what: str, tape: Tape, index: int, a: Any, scalars: list[float]) -> Any:
    """An argument as a part of a tape's key."""
    kind = type(a)
    if kind is float:
        scalars.append(a)
        return Scalar(len(scalars) - 1)
    if kind is bool:
        return Flag(a)
    if kind is int or a is None or kind is str or kind is DType:
        return a
    if isinstance(a, Tensor):
        if a.device.type == NAME:
            if a.device.index != index:
                raise RuntimeError(
                    f"{what}: operands are on {NAME}:{index} and {a.device}; move one by "
                    f'.to("{NAME}:{index}")'
                )
            return operand(tape, a)
        if a.dim() == 0 and a.device.type == "cpu":
            return encode(what, tape, index, a.item(), scalars)
        raise RuntimeError(
            f"{what}: operands are on {NAME}:{index} and {a.device}; move one by "
            f'.to("{NAME}:{index}")'
        )
    if kind is torch.dtype:
        if a not in DTYPES:
            raise NotImplementedError(f"{what}: {NAME}:{index} has no {a}")
        return DTYPES[a]
    if isinstance(a, list | tuple):
        return tuple([encode(what, tape, index, e, scalars) for e in a])
    for symbol, number in ((torch.SymInt, int), (torch.SymFloat, float), (torch.SymBool, bool)):
        if isinstance(a, symbol):
            return encode(what, tape, index, number(a), scalars)
    raise NotImplementedError(f"{what}: an argument {a!r} of {kind.__name__} on {NAME}:{index}")


_IGNORED = ("layout", "device", "pin_memory", "memory_format", "non_blocking", "generator")


def device_index(args: Sequence[Any]) -> int:
    """The device of the first tensor that is on one of ours."""
    for a in args:
        if isinstance(a, Tensor):
            if a.device.type == NAME:
                return int(a.device.index)
        elif isinstance(a, list | tuple):
            found = device_index(a)
            if found >= 0:
                return found
    return -1


def wrapped(row: Row, index: int, results: Sequence[Result], first: int) -> list[Tensor]:
    """Tensors for the values that an operation gave."""
    out = []
    tape = tape_of(index)
    for i, r in enumerate(results):
        x, storage = new_tensor(index, r.shape, TORCH[r.dtype], r.strides)
        if storage.size:
            tape.assign(first + i, storage)
        out.append(x)
    return out


def _key_of(
    row: Row, tape: Tape, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], tuple[str, ...], list[float]]:
    """The arguments of a call as parts of a tape's key, the names of those given by name, and the
    numbers, which are data."""
    scalars: list[float] = []
    parts = [encode(row.name, tape, index, a, scalars) for a in args]
    kept = {k: v for k, v in kwargs.items() if k not in _IGNORED and v is not None}
    parts += [encode(row.name, tape, index, v, scalars) for v in kept.values()]
    return tuple(parts), tuple(kept), scalars


def call(row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Record an operator that gives new tensors."""
    index = device_index(args)
    if index < 0:
        index = device_index(tuple(kwargs.values()))
    with lock:
        tape = tape_of(index)
        try:
            parts, labels, scalars = _key_of(row, tape, index, args, kwargs)
            results, first = tape.record(row, parts, labels, scalars)
        except (HalError, GraphError, TypeError) as error:
            raise told(row.name, error) from error
        out = wrapped(row, index, results, first)
        if tape.full():
            tape.flush()
    return out


def call_into(
    row: Row, targets: Sequence[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Record an operator that writes these tensors."""
    index = targets[0].device.index
    with lock:
        tape = tape_of(index)
        try:
            parts, labels, scalars = _key_of(row, tape, index, args, kwargs)
            into = [operand(tape, t) for t in targets]
            if all(type(t) is Empty for t in into):
                return
            for t in into:
                check_writable(row.name, t)
            written = [tape.storage(t.data_ptr() >> SHIFT) for t in targets]
            tape.record(row, parts, labels, scalars, tuple(into), written)  # type: ignore[arg-type]
        except (HalError, GraphError, TypeError) as error:
            raise told(row.name, error) from error
        if tape.full():
            tape.flush()


def check_writable(what: str, x: Operand | Empty) -> None:
    """Refuse to write where several elements of a tensor are one place in memory."""
    if type(x) is Operand and any(
        s == 0 and n > 1 for n, s in zip(x.shape, x.strides, strict=True)
    ):
        raise RuntimeError(
            f"{what}: unsupported operation: more than one element of the written-to tensor "
            "refers to a single memory location. Please clone() the tensor before performing the "
            "operation."
        )


def told(what: str, error: Exception) -> Exception:
    """An error of the stack as one that users of torch catch. A TypeError must not leave a kernel:
    Python's operators turn it into another one."""
    text = f"{what}: {error}"
    if isinstance(error, OutOfMemory):
        memory: Exception = torch.OutOfMemoryError(text)
        return memory
    if isinstance(error, RangeError):
        return IndexError(text)
    if isinstance(error, HalError):
        failed: Exception = torch.AcceleratorError(text)
        return failed
    return RuntimeError(text)


def host(x: Tensor) -> np.ndarray[Any, Any]:
    """The values of a tensor of the device, contiguous; waits for them."""
    shape = tuple(x.shape)
    dtype = DTYPES[x.dtype]
    if not x.numel():
        return np.zeros(shape, NUMPY[dtype])
    with lock:
        storage = storage_of(x)
        if dtype.bits != storage.dtype.bits:  # other elements of the same bytes
            memory = host(shared(storage, x.device.index, TORCH[storage.dtype]))
            return _bytes_as(memory, x)
        whole = x.numel() == storage.size and x.is_contiguous()
        if not whole or dtype is not storage.dtype:
            x = call(_CLONE, (x,), {})[0]
            storage = storage_of(x)
        tape = tape_of(x.device.index)
        try:
            if tape.is_pending(storage):
                sweep()
                tape.flush()
            if storage.array is None:  # undefined, as `empty` leaves it
                return np.zeros(shape, NUMPY[storage.dtype])
            return tape.engine.get(storage.array).reshape(shape)
        except HalError as error:
            raise told("reading a value", error) from error


def _bytes_as(memory: np.ndarray[Any, Any], x: Tensor) -> np.ndarray[Any, Any]:
    row = memory.view(np.uint8)[(x.data_ptr() & MASK) :]
    dtype = NUMPY[DTYPES[x.dtype]]
    row = row[: len(row) // dtype.itemsize * dtype.itemsize].view(dtype)
    steps = [s * dtype.itemsize for s in x.stride()]
    return np.lib.stride_tricks.as_strided(row, x.shape, steps).copy()


def shared(storage: Storage, index: int, dtype: torch.dtype) -> Tensor:
    """A row of all elements of a storage, as others of the same width."""
    slot, x = handles.tensor(index, (storage.size,), dtype)
    tape_of(index).hold(slot, storage)
    _device_of[slot] = index
    return x


def bytes_of(storage: Storage, index: int) -> Tensor:
    """A row of the bytes of a storage, to be read."""
    count = storage.size * storage.dtype.bits // 8
    slot, x = handles.tensor(index, (count,), torch.uint8)
    tape_of(index).hold(slot, storage)
    _device_of[slot] = index
    return x


def as_type(storage: Storage, index: int, dtype: torch.dtype) -> Tensor:
    """`shared` for any type; a storage of plain bytes becomes one of these elements."""
    wanted = DTYPES[dtype]
    if wanted.bits == storage.dtype.bits:
        return shared(storage, index, dtype)
    if storage.dtype is not DType.U8 or tape_of(index).is_pending(storage):
        raise NotImplementedError(
            f"a storage of {TORCH[storage.dtype]} as {dtype} on {NAME}:{index}: elements of "
            "another width; copy it to the CPU"
        )
    if storage.array is not None:
        values = tape_of(index).engine.get(storage.array).view(NUMPY[wanted])
        storage.array = tape_of(index).engine.put(values, wanted)
    storage.dtype, storage.size = wanted, storage.size * 8 // wanted.bits
    return shared(storage, index, dtype)


def give_up(storage: torch.UntypedStorage) -> None:
    """Let go what is in a storage: it is undefined until it is written."""
    with lock:
        own = tape_of(storage.device.index).storage(storage.data_ptr() >> SHIFT)
        own.array, own.value, own.generation = None, -1, -1


def to_cpu(x: Tensor) -> Tensor:
    """A copy on the CPU."""
    values = host(x)
    if x.dtype is torch.bfloat16:
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def from_cpu(x: Tensor, index: int) -> Tensor:
    """A copy of a tensor of the CPU on the device, contiguous."""
    made, storage = new_tensor(index, x.shape, x.dtype)
    fill(storage, x, index)
    return made


def fill(storage: Storage, x: Tensor, index: int) -> None:
    """Give a storage the values of a contiguous tensor of the CPU: in a new array, because the old
    one may still be read."""
    if not storage.size:
        return
    flat = x.detach().contiguous().view(-1)
    if x.dtype is torch.bfloat16:
        values = flat.view(torch.int16).numpy().view(NUMPY[DType.BF16])
    else:
        values = flat.numpy()
    with lock:
        try:
            storage.array = tape_of(index).engine.put(values, storage.dtype)
        except HalError as error:
            raise told("a copy to the device", error) from error
        storage.generation = storage.value = -1


def copy_from(src: Tensor, dst: Tensor, non_blocking: bool = False) -> Tensor:
    """dst takes the values of src; one of them is on the device."""
    if dst.device.type != NAME:
        dst.copy_(to_cpu(src).to(dst.dtype))
        return dst
    index = dst.device.index
    if not dst.numel():
        return dst
    if src.device.type == NAME and src.device.index == index:
        call_into(COPY, [dst], (src,), {})
        return dst
    with torch.no_grad():
        values = src if src.device.type == "cpu" else to_cpu(src)
        values = values.detach().resolve_conj().resolve_neg()
        if values.shape != dst.shape:
            values = values.expand(dst.shape)
        storage = storage_of(dst)
        if dst.is_contiguous() and dst.numel() == storage.size:
            fill(storage, values.to(dst.dtype), index)
        else:
            call_into(COPY, [dst], (from_cpu(values.to(dst.dtype), index),), {})
    return dst


def synchronize(index: int) -> None:
    """Compute what is recorded for hal:index, and wait for it."""
    with lock:
        tape = tape_of(index)
        sweep()
        tape.flush()
    tape.engine.sync()


def view_of(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    """A tensor on the same storage."""
    if torch.is_inference_mode_enabled():  # whose tensors cannot be made so
        with torch.inference_mode(False):
            return alias(x, tuple(size), tuple(stride), offset - x.storage_offset())
    return alias(x, tuple(size), tuple(stride), offset - x.storage_offset())


def tapes() -> dict[int, Tape]:
    """Those of the devices that were used, by index."""
    return dict(_tapes)


def trim() -> None:
    """Give memory that nothing is in back to the devices."""
    with lock:
        sweep()
        for tape in _tapes.values():
            tape.engine.pool.trim()


def memory(index: int) -> PoolStats:
    """What the memory pool of a device holds."""
    with lock:
        sweep()
        return tape_of(index).engine.pool.stats()


def reset_peak(index: int) -> None:
    """Count the peaks of a device's pool from now on."""
    with lock:
        sweep()
        tape_of(index).engine.pool.reset_peak()


def memory_info(index: int) -> tuple[int, int]:
    """The bytes of a device's memory that are free, and all of them."""
    device = tape_of(index).engine.device
    space = device.info.space(SpaceKind.GLOBAL)
    assert space is not None, "a device has global memory"
    return space.nbytes - device.stats(space.name).live_nbytes, space.nbytes
