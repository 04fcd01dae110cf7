"""What torch calls for tensors of the device: each operator of the table as one that records."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._dynamo import guards
from torch.nn import Parameter

from hal.core.description import SpaceKind
from hal.core.dtypes import DType
from hal.core.errors import HalError, OutOfMemory
from hal.tile.node import Type
from hal.tile.numeric import NUMPY
from stack import ops as g
from stack.bridge.torch import _parts, indices
from stack.bridge.torch.handles import MASK, SHIFT, Handles, TensorForm, alias, is_inference
from stack.bridge.torch.names import listed
from stack.bridge.torch.tape import (
    DTYPES,
    FILLS,
    TORCH,
    Empty,
    Flag,
    Key,
    Operand,
    Point,
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
from stack.ops.numeric import element

NAME = "hal"
HOST = "HAL_TORCH_HOST"

handles = Handles()
storages: dict[int, Storage] = {}
"""Of each slot. An address of the host is none."""
_tapes: dict[int, Tape] = {}
host_calls: Counter[str] = Counter()
"""How often an operator without a row ran on the host, by name."""

waited: list[Callable[[], None]] = []
"""What is to be looked at when something is waited for; it raises what was wrong."""

_CLONE = Row("clone", lambda x: g.contiguous(x))
COPY = Row("copy", lambda x: x)
_FREE_EACH = 256
_made = 0


def names() -> list[str]:
    """The devices behind hal:0, hal:1, ...: those of HAL_DEVICES, or the default one."""
    return listed() or [devices.default_device()]


def tape_of(index: int) -> Tape:
    """The tape of hal:index, whose device is opened at the first call."""
    tape = _tapes.get(index)
    if tape is None:
        if index in _forked:
            raise RuntimeError(
                f"{NAME}:{index} was used before this process was forked, and is out of reach "
                "here; start processes by multiprocessing's method `spawn`"
            )
        known = names()
        if not 0 <= index < len(known):
            raise RuntimeError(
                f"there is no {NAME}:{index}; HAL_DEVICES names {len(known)}: {', '.join(known)}"
            )
        indices.tell_count(len(known))  # HAL_DEVICES may have been set after `import torch`
        tape = _tapes[index] = Tape(index, devices.engine(known[index]))
    return tape


def _after_fork() -> None:
    """The child has none of the parent's threads and devices."""
    _forked.extend(_tapes)
    _tapes.clear()
    storages.clear()


_forked: list[int] = []
os.register_at_fork(after_in_child=_after_fork)


def sweep() -> None:
    """Forget the storages that torch has let go."""
    with lock:
        for slot in handles.released():
            storage = storages.pop(slot, None)
            if storage is not None:
                storage.slots -= 1


def form_of(
    index: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    strides: tuple[int, ...] | None = None,
) -> TensorForm:
    """What dense tensors of a device are made by."""
    form = handles.known(index, shape, dtype, strides)
    if form is None:
        checked_type("a tensor", tape_of(index), dtype)
        form = handles.form(index, shape, dtype, strides)
    return form


def checked_type(what: str, tape: Tape, dtype: torch.dtype) -> DType:
    """The element type in the graph IR. Raises NotImplementedError where the device lacks it."""
    own, usable = DTYPES.get(dtype), tape.engine.device.info.dtypes
    if own is None or own not in usable:
        known = ", ".join([str(t).removeprefix("torch.") for t, d in DTYPES.items() if d in usable])
        here = f"{NAME}:{tape.index} ({names()[tape.index]})"
        raise NotImplementedError(f"{what}: {here} has no {dtype}; it has {known}")
    return own


def made(tape: Tape, form: TensorForm) -> tuple[Tensor, Storage]:
    """An undefined tensor, and its storage."""
    global _made
    _made += 1
    if not _made % _FREE_EACH or not (form.free or handles.has_free(form)):
        sweep()
    slot, x = handles.tensor(form)
    storage = Storage(tape, DTYPES[form.dtype], form.size)
    if form.size:
        storages[slot] = storage
    return x, storage


def new_tensor(
    index: int,
    shape: Sequence[int],
    dtype: torch.dtype,
    strides: Sequence[int] | None = None,
) -> tuple[Tensor, Storage]:
    """An undefined tensor, dense, and its storage."""
    given = None if strides is None else tuple(strides)
    form = form_of(index, tuple(shape), dtype, given)
    with lock:
        return made(tape_of(index), form)


def storage_of(x: Tensor) -> Storage:
    """The storage of a tensor that has elements."""
    found = storages.get(x.data_ptr() >> SHIFT)
    if found is None:
        tape_of(x.device.index)
        raise RuntimeError(f"a tensor of {x.device} without memory")
    return found


def _tape_written(what: str, x: Tensor, args: Iterable[Any]) -> Tape:
    """The tape of what an operator writes. `args` are its operands."""
    if x.device.type == NAME:
        return tape_of(x.device.index)
    other = _tape_among(args)
    where = NAME if other is None else f"{NAME}:{other.index}"
    raise apart(what, where, x.device)


def apart(what: str, here: str, there: torch.device) -> RuntimeError:
    return RuntimeError(f'{what}: operands are on {here} and {there}; move one by .to("{here}")')


def encode(what: str, tape: Tape, args: Sequence[Any], scalars: list[float]) -> tuple[Any, ...]:
    """Arguments as parts of a tape's key."""
    known = _parts.encode(args, storages, tape, tape.generation, tape.operands, scalars)
    return encode_any(what, tape, args, scalars) if known is None else known


def encode_any(what: str, tape: Tape, args: Sequence[Any], scalars: list[float]) -> tuple[Any, ...]:
    """The same for all arguments; what is compiled knows the usual ones."""
    parts: list[Any] = []
    for a in args:
        kind = type(a)
        if kind is Tensor or kind is Parameter:
            at = a.data_ptr()
            storage = storages.get(at >> SHIFT)
            if storage is not None and storage.tape is tape:
                key = (tape.number(storage), at & MASK, a.shape, a.stride(), a.dtype)
                parts.append(tape.operand(key))
            else:
                parts.append(_other_tensor(what, tape, a, scalars))
        elif kind is float:
            scalars.append(a)
            parts.append(_scalar(len(scalars) - 1))
        elif kind is int or a is None or kind is str or kind is DType:
            parts.append(a)
        elif kind is bool:
            parts.append(_TRUE if a else _FALSE)
        elif kind is list or kind is tuple or kind is torch.Size:
            parts.append(encode(what, tape, a, scalars))
        elif kind is torch.dtype:
            parts.append(checked_type(what, tape, a))
        else:
            parts.append(_other(what, tape, a, scalars))
    return tuple(parts)


_TRUE, _FALSE = Flag(True), Flag(False)
_scalar = functools.cache(Scalar)
_parts.bind(
    {"Tensor": Tensor, "Parameter": Parameter, "Size": torch.Size, "DType": DType, "yes": _TRUE,
     "no": _FALSE, "scalar": _scalar}
)  # fmt: skip


def _other_tensor(what: str, tape: Tape, x: Tensor, scalars: list[float]) -> Any:
    """A tensor that has no memory on the tape's device."""
    if x.device.type == NAME and x.device.index == tape.index:
        if not x.numel():
            return Empty(tuple(x.shape), DTYPES[x.dtype])
        storage_of(x)
    if not x.dim() and x.device.type == "cpu":
        return encode(what, tape, (x.item(),), scalars)[0]
    raise apart(what, f"{NAME}:{tape.index}", x.device)


def _other(what: str, tape: Tape, a: Any, scalars: list[float]) -> Any:
    """An argument of a rare kind."""
    if isinstance(a, Tensor):
        storage = storages.get(a.data_ptr() >> SHIFT)
        if storage is None or storage.tape is not tape:
            return _other_tensor(what, tape, a, scalars)
        at = a.data_ptr() & MASK
        return tape.operand((tape.number(storage), at, a.shape, a.stride(), a.dtype))
    if isinstance(a, list | tuple):
        return encode(what, tape, a, scalars)
    for symbol, number in ((torch.SymInt, int), (torch.SymFloat, float), (torch.SymBool, bool)):
        if isinstance(a, symbol):
            return encode(what, tape, (number(a),), scalars)[0]
    raise NotImplementedError(
        f"{what}: an argument {a!r} of {type(a).__name__} on {NAME}:{tape.index}"
    )


_IGNORED = ("layout", "device", "pin_memory", "memory_format", "non_blocking", "generator")


def _tape_among(args: Iterable[Any]) -> Tape | None:
    """That of the first tensor that is on one of our devices."""
    for a in args:
        if isinstance(a, Tensor):
            storage = storages.get(a.data_ptr() >> SHIFT)
            if storage is not None:
                return storage.tape
            if a.device.type == NAME:
                return tape_of(a.device.index)
        elif isinstance(a, list | tuple):
            found = _tape_among(a)
            if found is not None:
                return found
    return None


def index_among(args: Iterable[Any]) -> int:
    """The device of the first tensor that is on one of ours; -1 without any."""
    tape = _tape_among(args)
    return -1 if tape is None else tape.index


def _key(
    row: Row, tape: Tape, args: Sequence[Any], kwargs: dict[str, Any], scalars: list[float]
) -> tuple[Row, tuple[Any, ...], tuple[str, ...]]:
    """A call as a part of a tape's key; `scalars` get the numbers, which are data."""
    parts = encode(row.name, tape, args, scalars)
    if not kwargs:
        return row, parts, ()
    kept = {k: v for k, v in kwargs.items() if k not in _IGNORED and v is not None}
    return row, parts + encode(row.name, tape, tuple(kept.values()), scalars), tuple(kept)


def call(row: Row, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """Record an operator that gives new tensors."""
    with lock:
        tape = _tape_among(args) or _tape_among(kwargs.values())
        if tape is None:
            raise RuntimeError(f"{row.name}: none of its operands is on {NAME}")
        scalars: list[float] = []
        try:
            point, n = tape.record((*_key(row, tape, args, kwargs, scalars), ()), scalars)
        except (HalError, GraphError, TypeError) as error:
            raise told(row.name, error) from error
        return _results(tape, point, n)


def _results(tape: Tape, point: Point, n: int) -> list[Tensor]:
    """Tensors for what is recorded at a place, whose values are the n-th and on."""
    forms = point.forms
    if forms is None:
        forms = point.forms = [
            form_of(tape.index, r.shape, TORCH[r.dtype], r.strides) for r in point.results
        ]
    out = []
    for form in forms:
        x, storage = made(tape, form)
        if form.size:
            tape.assign(n, storage)
        out.append(x)
        n += 1
    if tape.full():
        flush(tape)
    return out


def alike(row: Row) -> Callable[..., list[Tensor]]:
    """What records a row again and again, mostly with tensors that differ in nothing but their
    memory: while they do, where in memory they begin tells all about them."""
    same: Callable[..., bool] | None = None
    tape: Tape | None = None

    def record(*args: Any) -> list[Tensor]:
        if tape is None or same is None or not same(*args):
            return other(args)
        with lock:
            try:
                name = _parts.places(args, storages, tape, tape.generation, row)
                if name is None:
                    return other(args)
                point, n = tape.record_as(name, key_of, args)
            except (HalError, GraphError, TypeError) as error:
                raise told(row.name, error) from error
            return _results(tape, point, n)

    def key_of(args: Sequence[Any]) -> Key:
        assert tape is not None
        return (*_key(row, tape, args, {}, []), ())

    def other(args: Sequence[Any]) -> list[Tensor]:
        """The same in any case. Later ones are compared with this."""
        nonlocal same, tape
        made = call(row, args, {})
        if all(isinstance(a, Tensor) and a.device.type == NAME and a.numel() for a in args):
            sizes, strides = [list(a.shape) for a in args], [list(a.stride()) for a in args]
            known = _Guards(*args, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
            same, tape = known.check, _tape_among(args)
        return made

    return record


_Guards: Any = guards.TensorGuards
"""Of tensors: a `check` that says whether others have the same types, shapes and strides."""


def call_into(
    row: Row, targets: Sequence[Tensor], args: Sequence[Any], kwargs: dict[str, Any]
) -> None:
    """Record an operator that writes these tensors."""
    with lock:
        tape = _tape_written(row.name, targets[0], args)
        scalars: list[float] = []
        try:
            key = _key(row, tape, args, kwargs, scalars)
            into = key[1][0] if args and targets is args[0] else encode(row.name, tape, targets, [])
            _record_into(tape, key, into, targets, scalars)
        except (HalError, GraphError, TypeError) as error:
            raise told(row.name, error) from error


def call_in_place(row: Row, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    """Record an operator that writes its first argument."""
    x: Tensor = args[0]
    if row.name in FILLS and not kwargs and _written_at_once(x, args[1] if len(args) > 1 else 0):
        return x
    with lock:
        storage = storages.get(x.data_ptr() >> SHIFT)
        tape = _tape_written(row.name, x, args) if storage is None else storage.tape
        scalars: list[float] = []
        try:
            key = _key(row, tape, args, kwargs, scalars)
            _record_into(tape, key, key[1][:1], (x,), scalars)
        except (HalError, GraphError, TypeError) as error:
            raise told(row.name, error) from error
    return x


def _written_at_once(x: Tensor, value: Any) -> bool:
    """Whether a part of a storage is a number, or another tensor, now. That is done at once where
    nothing that is recorded reads or writes the storage, and nothing has to be computed first: a
    loop of such writes is as many commands, where as operations it would be an expression of its
    own, which is compiled."""
    storage = storages.get(x.data_ptr() >> SHIFT)
    if storage is None or x.numel() == storage.size or not x.is_contiguous():
        return False
    dtype, itemsize = DTYPES[x.dtype], x.element_size()
    begin = (x.data_ptr() & MASK) // itemsize
    if dtype is not storage.dtype or not x.numel():
        return False
    with lock:
        tape, source, number = storage.tape, None, value
        if isinstance(value, Tensor):
            own = storages.get(value.data_ptr() >> SHIFT)
            if own is None or own.tape is not tape or own.dtype is not dtype:
                return False
            if value.shape != x.shape:  # told by the operation, where it does not spread
                return False
            number = tape.filled(own)
            if number is None:
                whole = value.numel() == own.size and value.is_contiguous()
                if not whole or tape.is_pending(own):
                    return False
                source = own.array
        if source is None and (number := element(number, dtype)) is None:
            return False
        engine = tape.engine
        try:
            if storage.generation == tape.generation or storage.array is None:
                first = element(tape.filled(storage), dtype)
                if first is None:
                    return False
                made = engine.empty(Type((storage.size,), dtype))
                engine.fill(made, 0, storage.size, first)
                storage.array = made
            if source is None:
                engine.fill(storage.array, begin, x.numel(), number)
            else:
                engine.copy(storage.array, begin, source)
        except HalError as error:
            raise told("a write", error) from error
        storage.generation = storage.value = -1
    return True


def _record_into(
    tape: Tape, key: Any, into: tuple[Any, ...], targets: Sequence[Tensor], scalars: list[float]
) -> None:
    elements = [t for t in into if type(t) is Operand]
    if not elements:
        return
    for t in elements:
        if t.repeats:
            raise RuntimeError(
                f"{key[0].name}: unsupported operation: more than one element of the written-to "
                "tensor refers to a single memory location. Please clone() the tensor before "
                "performing the operation."
            )
    n = tape.record((*key, into), scalars)[1]
    for t in targets:
        storage = storages.get(t.data_ptr() >> SHIFT)
        if storage is not None:  # none without elements
            tape.assign(n, storage)
        n += 1
    if tape.full():
        flush(tape)


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


def flush(tape: Tape) -> None:
    """Compute what somebody can still ask for of what is recorded. Raises as torch does."""
    sweep()
    try:
        tape.flush()
    except (HalError, GraphError, TypeError) as error:
        raise told("computing what was recorded", error) from error


def look() -> None:
    """Raise what was wrong before a wait."""
    pending = waited[:]
    waited.clear()
    for each in pending:
        each()


def host(x: Tensor) -> np.ndarray[Any, Any]:
    """The values of a tensor of the device, contiguous; waits for them."""
    if waited:
        look()
    shape = tuple(x.shape)
    dtype = DTYPES[x.dtype]
    if not x.numel():
        return np.zeros(shape, NUMPY[dtype])
    with lock:
        storage = storage_of(x)
        if dtype.bits != storage.dtype.bits:  # other elements of the same bytes
            memory = host(shared(storage, x.device.index, TORCH[storage.dtype]))
            row = memory.view(np.uint8)[(x.data_ptr() & MASK) :]
            element = NUMPY[dtype]
            row = row[: len(row) // element.itemsize * element.itemsize].view(element)
            steps = [s * element.itemsize for s in x.stride()]
            return np.lib.stride_tricks.as_strided(row, x.shape, steps).copy()
        whole = x.numel() == storage.size and x.is_contiguous()
        if not whole and dtype is storage.dtype and x.is_contiguous():
            array = None if storage.tape.is_pending(storage) else storage.array
            if array is not None:
                begin = (x.data_ptr() & MASK) // x.element_size()
                try:
                    return storage.tape.engine.get_part(array, begin, shape)
                except HalError as error:
                    raise told("reading a value", error) from error
        if not whole or dtype is not storage.dtype:
            x = call(_CLONE, (x,), {})[0]
            storage = storage_of(x)
        tape = storage.tape
        if tape.is_pending(storage):
            flush(tape)
        try:
            if storage.array is not None:
                return tape.engine.get(storage.array).reshape(shape)
            if storage.lost is not None:
                raise storage.lost.with_traceback(None)
        except HalError as error:
            raise told("reading a value", error) from error
        return np.zeros(shape, NUMPY[storage.dtype])  # undefined, as `empty` leaves it


def shared(storage: Storage, index: int, dtype: torch.dtype) -> Tensor:
    """A row of all bytes of a storage, as elements of that type."""
    count = storage.size * storage.dtype.bits // DTYPES[dtype].bits
    # One more tensor of torch on a storage.
    form = handles.form(index, (count,), dtype)
    slot, x = handles.tensor(form)
    storages[slot] = storage
    storage.slots += 1
    return x


def as_type(storage: Storage, index: int, dtype: torch.dtype) -> Tensor:
    """`shared` for any type; a storage of plain bytes becomes one of these elements."""
    wanted = DTYPES[dtype]
    if wanted.bits == storage.dtype.bits:
        return shared(storage, index, dtype)
    if storage.dtype is not DType.U8 or storage.tape.is_pending(storage):
        raise NotImplementedError(
            f"a storage of {TORCH[storage.dtype]} as {dtype} on {NAME}:{index}: elements of "
            "another width; copy it to the CPU"
        )
    if storage.array is not None:
        values = storage.tape.engine.get(storage.array).view(NUMPY[wanted])
        storage.array = storage.tape.engine.put(values, wanted)
    storage.dtype, storage.size = wanted, storage.size * 8 // wanted.bits
    return shared(storage, index, dtype)


def give_up(storage: torch.UntypedStorage) -> None:
    """Let go what is in a storage: it is undefined until it is written."""
    with lock:
        own = storages[storage.data_ptr() >> SHIFT]
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
            storage.array = storage.tape.engine.put(values, storage.dtype)
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
        if not _written_at_once(dst, src):
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
            made = from_cpu(values.to(dst.dtype), index)
            if not _written_at_once(dst, made):
                call_into(COPY, [dst], (made,), {})
    return dst


def synchronize(index: int) -> None:
    """Compute what is recorded for hal:index, and wait for it."""
    with lock:
        tape = tape_of(index)
        if waited:
            look()
        flush(tape)
    try:
        tape.engine.sync()
    except HalError as error:
        raise told("waiting for the device", error) from error


def view_of(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    """A tensor on the same storage."""
    return view_behind(x, size, stride, offset - x.storage_offset())


def view_behind(x: Tensor, size: Sequence[int], stride: Sequence[int], by: int) -> Tensor:
    """A tensor on the same storage, `by` elements behind x's first."""
    if is_inference():  # whose tensors cannot be made so
        with torch.inference_mode(False):
            return alias(x, size, stride, by)
    return alias(x, size, stride, by)


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
