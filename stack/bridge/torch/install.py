"""Gives torch the kernels of the device."""

from __future__ import annotations

import functools
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from stack.bridge.torch import (
    algebra,
    alignments,
    around,
    attention,
    composed,
    draws,
    found,
    indices,
    kernels,
    optimizers,
    ranges,
    rows,
    special,
    vision,
)
from stack.bridge.torch.handles import SHIFT
from stack.bridge.torch.kernels import (
    NAME,
    call,
    call_in_place,
    call_into,
    new_tensor,
    view_behind,
    view_of,
)
from stack.bridge.torch.table import ROWS
from stack.bridge.torch.tape import Row, check_cast
from stack.recorder.window import contiguous_strides

_library = torch.library.Library("aten", "IMPL")
_kept: list[Any] = [_library]
_vision = torch.library.Library("torchvision", "IMPL")
"""Which may be imported later, or not at all."""


def install() -> None:
    """Register a kernel for each row, its forms in place and with `out`, and what tensors need
    beside operators."""
    own = dict(_OWN)
    for module in (draws, found, optimizers, algebra, composed, special, alignments):
        own |= module.KERNELS
    for name, kernel in own.items():
        _put(name, kernel)
    for name, row in ROWS.items():
        packet, _, overload = name.partition(".")
        operator = getattr(torch.ops.aten, packet, None)
        if operator is None:
            continue
        if (overload or "default") not in operator.overloads():
            continue
        _forms(operator, overload or "default", row, own)
    for name, kernel in vision.KERNELS.items():
        _vision.impl(name, kernel, "PrivateUse1")
    for key in ("Conjugate", "Negative"):
        library = torch.library.Library("aten", "IMPL")
        _kept.append(library)
        library.impl("_copy_from", torch.library.fallthrough_kernel, key)
    around.install()
    attention.install()
    indices.tell_device()


def _put(name: str, kernel: Any) -> None:
    _library.impl(name, ranges.checked(name, kernel), "PrivateUse1", allow_override=True)


def _exists(name: str) -> bool:
    """Whether it is an operator, and not TorchScript's alone."""
    return bool(torch._C._dispatch_has_kernel(f"aten::{name}"))


def _has_formula(name: str) -> bool:
    """Whether torch computes it by others, which carries its gradient: then it gets no kernel. But
    `linear` does, whose gradient is one operator, too: four recorded ones are one, and ten one."""
    key = "CompositeImplicitAutograd"
    has = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key)
    return bool(has) and name != "linear"


def _forms(packet: Any, overload: str, row: Row, own: dict[str, Any]) -> None:
    """The kernels of a row: as it is, in place, and into `out`."""
    op = getattr(packet, overload)
    base = op._schema.name.removeprefix("aten::")
    suffix = "" if overload == "default" else f".{overload}"
    takes_out = [a for a in op._schema.arguments if a.is_out]
    if takes_out:
        name = f"{base}{suffix}"
        if name not in own and not _has_formula(name):
            _put(name, _out_kernel(row, [a.name for a in takes_out], gives_out=True))
        return
    mutated = any(a.alias_info is not None and a.alias_info.is_write for a in op._schema.arguments)
    name = f"{base}{suffix}"
    if not mutated and name not in own and not _has_formula(name):
        _put(name, _kernel(row, op))
    inputs = [(a.name, str(a.type)) for a in op._schema.arguments]
    written = getattr(torch.ops.aten, f"{base}_", None)
    if written is not None:
        for other in written.overloads():
            twin = getattr(written, other)
            same = [(a.name, str(a.type)) for a in twin._schema.arguments] == inputs
            twin_name = f"{base}_" + ("" if other == "default" else f".{other}")
            if same and _exists(twin_name) and twin_name not in own and not _has_formula(twin_name):
                _put(twin_name, _in_place_kernel(row, base.startswith("_foreach_")))
    for other in packet.overloads():
        twin = getattr(packet, other)
        outs = [a.name for a in twin._schema.arguments if a.is_out]
        rest = [(a.name, str(a.type)) for a in twin._schema.arguments if not a.is_out]
        twin_name = f"{base}.{other}"
        fits = outs and rest == inputs and _exists(twin_name)
        if fits and twin_name not in own and not _has_formula(twin_name):
            _put(twin_name, _out_kernel(row, outs))


def _kernel(row: Row, op: Any) -> Any:
    returns = op._schema.returns
    if len(returns) == 1 and str(returns[0].type) == "Tensor":

        def one(*args: Any, **kwargs: Any) -> Tensor:
            return call(row, args, kwargs)[0]

        return one
    if len(returns) == 1:  # a list
        return lambda *args, **kwargs: call(row, args, kwargs)
    masked = [i for i, a in enumerate(op._schema.arguments) if a.name == "output_mask"]

    def many(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        made = iter(call(row, args, kwargs))
        if not masked:
            return tuple(made)
        return tuple([next(made) if wanted else None for wanted in args[masked[0]]])

    return many


def _in_place_kernel(row: Row, lists: bool) -> Any:
    if lists:

        def each(*args: Any, **kwargs: Any) -> None:
            if args[0]:
                call_into(row, args[0], args, kwargs)

        return each
    return lambda *args, **kwargs: call_in_place(row, args, kwargs)


def _out_kernel(row: Row, names: Sequence[str], gives_out: bool = False) -> Any:
    def into(*args: Any, **kwargs: Any) -> Any:
        outs = [kwargs.pop(name) for name in names]
        if gives_out:
            call_into(row, outs, args, {**kwargs, **dict(zip(names, outs, strict=True))})
        elif kernels.index_among((*args, *kwargs.values())) < 0:  # `out` alone is on the device
            raise kernels.apart(row.name, str(outs[0].device), torch.device("cpu"))
        else:
            for out, made in zip(outs, call(row, args, kwargs), strict=False):
                check_cast(made.dtype, out.dtype)
                if out.shape != made.shape:
                    out.resize_(made.shape)
                call_into(kernels.COPY, [out], (made,), {})
        return outs[0] if len(outs) == 1 else tuple(outs)

    return into


def without_row(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator without a kernel: by torch's own decomposition, on the host if that is allowed,
    or not at all."""
    formula = None if op in _within else decomposition_table.get(op)
    outs = [a.name for a in op._schema.arguments if a.is_out]
    if formula is not None and not any(a.alias_info is not None for a in op._schema.arguments):
        with _decomposing(op):
            return formula(*args, **kwargs)
    twin = _functional(op) if outs and op not in _within else None
    if twin is not None:
        into = [kwargs.pop(name) for name in outs]
        if any(a.name == "device" for a in twin._schema.arguments):  # it gives a tensor of its own
            kwargs |= {"dtype": into[0].dtype, "device": into[0].device}
        with _decomposing(op):
            made = decomposition_table[twin](*args, **kwargs)
        for out, value in zip(into, [made] if isinstance(made, Tensor) else made, strict=True):
            out.resize_(value.shape).copy_(value)
        return into[0] if len(into) == 1 else tuple(into)
    name = str(op)
    index = kernels.index_among((*args, *kwargs.values()))
    if os.environ.get(kernels.HOST) == "1":
        return _on_host(op, index, args, kwargs)
    known = kernels.names()
    device = f"{NAME}:{index} ({known[index]})" if 0 <= index < len(known) else NAME
    if _gives_complex(op, args, kwargs):
        raise NotImplementedError(
            f"{name} gives complex numbers, which {device} does not have: compute this part on the "
            "CPU (x.cpu()), or with pairs of real numbers"
        )
    raise NotImplementedError(
        f"{name} has no row on {device}, and torch has no decomposition of it. docs/torch-ops.md "
        f"and stack.bridge.torch.rows.ROWS list the operators; {kernels.HOST}=1 runs others on the "
        "host, and counts them in stack.bridge.torch.stats()"
    )


def _gives_complex(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a result would be complex."""

    def shown(a: Any) -> Any:
        return a.to("meta") if isinstance(a, Tensor) else a

    try:
        named = {k: shown(v) for k, v in kwargs.items() if k != "device"}
        made = op(*[shown(a) for a in args], **named)
    except Exception:  # noqa: BLE001  (torch's own function, which need not be there)
        return False
    parts = made if isinstance(made, tuple | list) else [made]
    return any(isinstance(x, Tensor) and x.is_complex() for x in parts)


_within: Counter[Any] = Counter()
"""Operators that are being decomposed: some of torch's formulas ask for their own operator."""


@contextmanager
def _decomposing(op: Any) -> Iterator[None]:
    _within[op] += 1
    try:
        yield
    finally:
        _within[op] -= 1
        if not _within[op]:
            del _within[op]


def _functional(op: Any) -> Any:
    """The operator that gives what this one writes into `out`, if torch can decompose it."""
    inputs = [(a.name, str(a.type)) for a in op._schema.arguments if not a.is_out]
    packet = op.overloadpacket
    for name in packet.overloads():
        twin = getattr(packet, name)
        own = [(a.name, str(a.type)) for a in twin._schema.arguments if a.name not in _OPTIONS]
        if own == inputs and twin in decomposition_table:
            return twin
    return None


_OPTIONS = ("dtype", "layout", "device", "pin_memory")
"""Of operators that make tensors of nothing."""


def _on_host(op: Any, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operator on copies; what it writes is copied back."""
    kernels.host_calls[str(op)] += 1
    copies: list[tuple[Tensor, Tensor]] = []

    def down(a: Any) -> Any:
        if isinstance(a, Tensor) and a.device.type == NAME:
            copies.append((a, kernels.to_cpu(a)))
            return copies[-1][1]
        if isinstance(a, torch.device):
            return torch.device("cpu")
        return type(a)([down(x) for x in a]) if isinstance(a, list | tuple) else a

    made = op(*[down(a) for a in args], **{k: down(v) for k, v in kwargs.items()})
    if any(a.alias_info is not None and a.alias_info.is_write for a in op._schema.arguments):
        for own, copy in copies:
            own.copy_(copy)

    def up(a: Any) -> Any:
        if isinstance(a, Tensor):
            for own, copy in copies:
                if a is copy:
                    return own
            return kernels.from_cpu(a, max(index, 0))
        return type(a)([up(x) for x in a]) if isinstance(a, list | tuple) else a

    return up(made)


# What tensors need beside operators


def _index_of(device: Any) -> int:
    found = torch.device(device or NAME).index
    current: int = torch.hal.current_device() if found is None else found
    return current


def _empty(size: Sequence[int], *, dtype: Any = None, layout: Any = None, device: Any = None,
           pin_memory: Any = None, memory_format: Any = None) -> Tensor:  # fmt: skip
    wanted = dtype or torch.get_default_dtype()
    strides = None
    if memory_format == torch.channels_last and len(size) == 4:
        _, c, h, w = size
        strides = (h * w * c, 1, w * c, c)
    return new_tensor(_index_of(device), tuple(size), wanted, strides)[0]


def _empty_strided(size: Sequence[int], stride: Sequence[int], *, dtype: Any = None,
                   layout: Any = None, device: Any = None,
                   pin_memory: Any = None) -> Tensor:  # fmt: skip
    shape, steps = tuple(size), tuple(stride)
    index, wanted = _index_of(device), dtype or torch.get_default_dtype()
    if steps == contiguous_strides(shape) or 0 in shape:
        return new_tensor(index, shape, wanted)[0]
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, steps, strict=True))
    return view_of(new_tensor(index, (reach,), wanted)[0], shape, steps, 0)


def _as_strided(x: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    for s in stride:
        if s < 0:
            raise RuntimeError(
                f"as_strided: negative strides are not supported, got {list(stride)}"
            )
    by = 0 if storage_offset is None else storage_offset - x.storage_offset()
    return view_behind(x, size, stride, by)


@functools.lru_cache(maxsize=4096)
def _viewed(
    shape: tuple[int, ...], strides: tuple[int, ...], size: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of a tensor under another size. Raises RuntimeError where elements would
    have to be copied."""
    wanted, count = size, math.prod(shape)
    if -1 in size:
        rest = math.prod(n for n in size if n != -1)
        if not rest or count % rest:
            raise RuntimeError(f"shape '{list(size)}' is invalid for input of size {count}")
        at = size.index(-1)
        wanted = (*size[:at], count // rest, *size[at + 1 :])
    if math.prod(wanted) != count:
        raise RuntimeError(f"shape '{list(wanted)}' is invalid for input of size {count}")
    found: tuple[int, ...] | None = contiguous_strides(wanted)
    dense = contiguous_strides(shape)
    pairs = zip(shape, strides, dense, strict=True)
    if not (0 in shape or all(n == 1 or a == b for n, a, b in pairs)):
        found = around.reshaped_strides(tuple(shape), strides, wanted)
    if found is None:
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one "
            "dimension spans across two contiguous subspaces). Use .reshape(...) instead."
        )
    return wanted, found


def _unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    if not x.dim():
        return view_of(x, (size,), (1,), x.storage_offset())
    a = dimension % x.dim()
    shape, strides = list(x.shape), list(x.stride())
    if size > shape[a] or step < 1:
        raise RuntimeError(f"unfold: {size} by {step} of axis {dimension} of {list(x.shape)}")
    count = (shape[a] - size) // step + 1
    strides.append(strides[a])
    shape[a], strides[a] = count, strides[a] * step
    return view_of(x, (*shape, size), strides, x.storage_offset())


def _view_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The same memory as elements of another type; of another width those of the last axis, which
    lie side by side."""
    old, new = x.dtype.itemsize, dtype.itemsize
    kernels.checked_type("view", kernels.tape_of(x.device.index), dtype)
    shape, strides, offset = list(x.shape), list(x.stride()), x.storage_offset()
    if old != new:
        if not shape or strides[-1] != 1:
            raise RuntimeError(
                f"view of {x.dtype} {shape} as {dtype}, whose elements have another width: the "
                f"last axis must have stride 1, got {strides}"
            )
        sizes = [shape[-1], offset, *strides[:-1]]
        if any(n * old % new for n in sizes):
            raise RuntimeError(
                f"view of {x.dtype} {shape} as {dtype}: the last size, the storage offset {offset} "
                f"and the strides {strides} before it must be multiples of {new // old}"
            )
        shape[-1], offset, *strides[:-1] = [n * old // new for n in sizes]
    if not x.numel():
        return new_tensor(x.device.index, shape, dtype)[0]
    storage = kernels.storage_of(x)
    return view_of(kernels.shared(storage, x.device.index, dtype), shape, strides, offset)


def _set_storage(x: Tensor, source: Any, offset: int = 0, size: Any = None, stride: Any = (),
                 ) -> Tensor:  # fmt: skip
    """x shows a storage."""
    index = x.device.index
    slot = source.data_ptr() >> SHIFT
    shape = (source.nbytes() // x.dtype.itemsize,) if size is None else tuple(size)
    if not slot:
        x.data = new_tensor(index, shape, x.dtype)[0]
        return x
    storage = kernels.storages[slot]
    if size is None and storage.dtype.bits != x.dtype.itemsize * 8:
        row = kernels.shared(storage, index, torch.uint8)
    else:
        row = kernels.as_type(storage, index, x.dtype)
    x.data = view_of(row, shape, stride or contiguous_strides(shape), offset)
    return x


def _clone(x: Tensor, *, memory_format: Any = None) -> Tensor:
    if memory_format in (None, torch.preserve_format):
        return call(ROWS["clone"], (x,), {})[0]
    return torch.empty_like(x, memory_format=memory_format).copy_(x)


def _arange(start: Any, end: Any, step: Any = 1, *, out: Tensor) -> Tensor:
    if not step:
        raise RuntimeError("arange: step must be nonzero")
    if (end - start) * step < 0:
        raise RuntimeError(
            f"arange: upper bound and lower bound inconsistent with step sign: {start} to {end} by "
            f"{step}"
        )
    count = max(0, math.ceil((end - start) / step))
    if out.numel() != count:
        out.resize_(count)
    call_into(ROWS["arange.start_out"], [out], (start, end, step), {"out": out})
    return out


def _eye(n: int, m: int | None = None, *, out: Tensor) -> Tensor:
    shape = (n, n if m is None else m)
    if out.shape != shape:
        out.resize_(shape)
    call_into(ROWS["eye.m_out"], [out], shape, {"out": out})
    return out


def _resize(x: Tensor, size: Sequence[int], memory_format: Any = None) -> Tensor:
    """Another shape; of a storage that is too small a larger one, with what it holds."""
    shape = tuple(size)
    count = 1
    for n in shape:
        count *= n
    held = kernels.storage_of(x).size - x.storage_offset() if x.data_ptr() >> SHIFT else 0
    if count <= held:
        x.data = view_of(x, shape, contiguous_strides(shape), x.storage_offset())
        return x
    fresh = new_tensor(x.device.index, shape, x.dtype)[0]
    if x.numel():
        old = view_of(x, (held,), (1,), x.storage_offset())
        view_of(fresh, (held,), (1,), 0).copy_(old)
    x.data = fresh
    return x


def _set_tensor(x: Tensor, source: Tensor) -> Tensor:
    x.data = source.view(source.shape)
    return x


def _batch_norm(x: Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool,
                momentum: float, eps: float) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    args = (x, weight, bias, mean, variance, training, float(momentum), float(eps))
    made = call(_BATCH_NORM, args, {})
    if len(made) == 5:
        call_into(kernels.COPY, [mean], (made[3],), {})
        call_into(kernels.COPY, [variance], (made[4],), {})
    return made[0], made[1], made[2]


def _batch_norm_with_update(
    x: Tensor, weight: Any, bias: Any, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    made = _batch_norm(x, weight, bias, mean, variance, True, momentum, eps)
    return (*made, new_tensor(x.device.index, (0,), torch.uint8)[0])


def _to_copy(x: Tensor, *, non_blocking: bool = False, **kwargs: Any) -> Tensor:
    """Copies wait for nothing that torch could pin memory of the host for."""
    dtype, device = kwargs.get("dtype"), kwargs.get("device") or x.device
    if dtype is not None and device.type == NAME:
        kernels.checked_type("_to_copy", kernels.tape_of(_index_of(device)), dtype)
    key = torch._C.DispatchKey.CompositeExplicitAutograd
    made: Tensor = torch.ops.aten._to_copy.default._op_dk(key, x, **kwargs)
    return made


_BATCH_NORM = Row("native_batch_norm", rows.inlined(rows.batch_norm))


_OWN: dict[str, Any] = {
    "empty.memory_format": _empty,
    "empty_strided": _empty_strided,
    "as_strided": _as_strided,
    "view": lambda x, size: view_behind(x, *_viewed(x.shape, x.stride(), tuple(size)), 0),
    "unfold": _unfold,
    "equal": lambda x, y: x.shape == y.shape and bool((x == y).all().item()),
    "view.dtype": _view_dtype,
    "_reshape_alias": lambda x, size, stride: view_behind(x, size, stride, 0),
    "arange.start_out": _arange,
    "eye.out": _eye,
    "eye.m_out": _eye,
    "clone": _clone,
    "record_stream": lambda x, stream: None,  # there is one order, and its memory is the tape's
    "_copy_from": kernels.copy_from,
    "_copy_from_and_resize": lambda src, dst: kernels.copy_from(src, dst.resize_(src.shape)),
    "_local_scalar_dense": lambda x: kernels.host(x).reshape(()).item(),
    "resize_": _resize,
    "set_.source_Storage": _set_storage,
    "set_.source_Storage_storage_offset": _set_storage,
    "set_.source_Tensor": _set_tensor,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "_batch_norm_with_update": _batch_norm_with_update,
    # whose last argument is what only cuDNN keeps
    "batch_norm_backward": lambda *args: torch.ops.aten.native_batch_norm_backward(*args[:-1]),
    "_to_copy": _to_copy,
    "_efficientzerotensor": lambda size, *, dtype=None, device=None, **rest: torch.zeros(
        size, dtype=dtype, device=device
    ),
}
"""By operator."""
