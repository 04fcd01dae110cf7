"""The device "hal" as torch knows it, before anybody uses it. All of torch's private names that it
takes are here and in `handles` and `install`.

A program that never names the device is to see the torch that it knows. Torch itself takes any
private device for the machine's accelerator, so what asks for that is taught here to answer only
where the device is meant: named by HAL_DEVICES, given by `hal run`, or used.
"""

# The rest of the stack is imported at the first use, not by `import torch`.
# ruff: noqa: PLC0415

from __future__ import annotations

import functools
import itertools
import os
import sys
from typing import Any

import torch
from torch._opaque_base import OpaqueBaseMeta
from torch.nn.parameter import is_lazy
from torch.utils import backend_registration

from stack.bridge.torch import indices
from stack.bridge.torch.module import Event, Module
from stack.bridge.torch.names import DEVICES, NAME, listed, used

_JOB = "HAL_WORLD_RANK"


def register_device() -> None:
    """Give torch's private device its name. Kernels come at the first call. A second call does
    nothing."""
    if hasattr(torch, NAME):
        return
    backend_registration._setup_privateuseone_for_python_backend(NAME, Module(), _Hooks(), _Guard())
    indices.tell_count(len(listed()))  # a backward on the CPU may come before the first use
    _library.fallback(_first, "PrivateUse1")
    torch.nn.Module._apply = _apply_of(torch.nn.Module._apply)
    torch.serialization.register_package(5, _tag, _restored)
    torch.Tensor.pin_memory = _pinned_of(torch.Tensor.pin_memory, lambda x: x)
    torch.Tensor.is_pinned = _pinned_of(torch.Tensor.is_pinned, lambda x: False)
    torch.UntypedStorage.pin_memory = _pinned_of(torch.UntypedStorage.pin_memory, lambda x: x)
    torch.UntypedStorage.__new__ = _storages_of(torch.UntypedStorage.__new__)
    # What looks for the machine's accelerator finds this device where it is meant; `DataParallel`,
    # which copies a module to several devices by functions of one vendor's own, never does, and
    # runs the module where it is.
    for name, otherwise in (
        ("_get_accelerator", torch.device("cpu")),
        ("_accelerator_getAccelerator", None),
    ):
        setattr(torch._C, name, _meant_of(getattr(torch._C, name), otherwise))
    parallel: Any = sys.modules["torch.nn.parallel.data_parallel"]
    parallel._get_available_device_type = _kind_of(parallel._get_available_device_type)
    accelerator: Any = torch.accelerator
    for name, method in _ACCELERATOR.items():
        own = _own_of(getattr(accelerator, name), method)
        setattr(accelerator, name, _known_of(own) if name == "current_stream" else own)
        if hasattr(accelerator.memory, name):
            setattr(accelerator.memory, name, getattr(accelerator, name))
    _constructors()


def is_meant() -> bool:
    """Whether the device is this process's accelerator."""
    return bool(used) or any(name in os.environ for name in (DEVICES, _JOB))


_ACCELERATOR = {
    "synchronize": "synchronize",
    "current_stream": "current_stream",
    "current_device_index": "current_device",
    "set_device_index": "set_device",
    "empty_cache": "empty_cache",
    "memory_stats": "memory_stats",
    "memory_allocated": "memory_allocated",
    "max_memory_allocated": "max_memory_allocated",
    "memory_reserved": "memory_reserved",
    "max_memory_reserved": "max_memory_reserved",
    "reset_peak_memory_stats": "reset_peak_memory_stats",
    "reset_accumulated_memory_stats": "reset_peak_memory_stats",
    "get_memory_info": "mem_get_info",
}
"""Functions of `torch.accelerator` that have no hook in Python, and this device's own."""


_NONE = "Cannot access accelerator device when none is available."
"""What torch says where there is none."""


def _meant_of(asked: Any, otherwise: Any) -> Any:
    """Which accelerator there is."""

    def accelerator(*args: Any) -> Any:
        found = asked(*args)
        ours = found is not None and found.type == NAME
        return otherwise if ours and not is_meant() else found

    return accelerator


def _kind_of(asked: Any) -> Any:
    def kind() -> Any:
        found = asked()
        return None if found == NAME else found

    return kind


def _own_of(otherwise: Any, name: str) -> Any:
    @functools.wraps(otherwise)
    def function(*args: Any, **kwargs: Any) -> Any:
        found = torch.accelerator.current_accelerator()
        if found is None:
            raise RuntimeError(_NONE)
        if found.type != NAME:
            return otherwise(*args, **kwargs)
        return getattr(torch.hal, name)(*args, **kwargs)

    return function


def _known_of(current_stream: Any) -> Any:
    """`torch.accelerator.current_stream`, which Dynamo asks whenever it begins to trace, and for a
    device of ours in each call of what it compiled."""
    known: dict[Any, Any] = {}

    @functools.wraps(current_stream)
    def remembered(device: Any = None, /) -> Any:
        found = known.get(device)
        if found is None:
            leave_frames()
            found = current_stream(device)
            if found.device.type == NAME:
                known[found.device] = found
        return found

    return remembered


def leave_frames() -> None:
    """Let Dynamo, if it is there, trace nothing of what runs within the frames that it looks at."""
    rules: Any = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None and not _left:
        _left.append(True)
        for package in ("stack", "hal"):
            rules.add(package)


_left: list[bool] = []


def _constructors() -> None:
    """`torch.Generator` and `torch.Event` of this device are its own classes."""
    made = OpaqueBaseMeta.__call__

    def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is torch.Generator and _names_this(*args, **kwargs):
            from stack.bridge.torch.draws import Generator  # opens the stack

            return Generator(*args, **kwargs)
        return made(cls, *args, **kwargs)

    OpaqueBaseMeta.__call__ = call

    class Events(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, event)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if cls is not shown:
                return super().__call__(*args, **kwargs)
            if not args and kwargs.get("device") is None:
                kwargs["device"] = torch._C._get_accelerator()
            return (Event if _names_this(*args, **kwargs) else event)(*args, **kwargs)

    event = torch.Event
    shown = Events("Event", (event,), {"__doc__": event.__doc__})
    torch.Event = shown


def _storages_of(made: Any) -> Any:
    """Storages that are made by themselves: torch would call an allocator, which is none here."""

    def __new__(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if not _names_this(device):
            given = {} if device is None else {"device": device}
            return made(cls, *args, **given, **kwargs)
        count = args[0] if args else 0
        if isinstance(count, int):
            return torch.empty(count, dtype=torch.uint8, device=device).untyped_storage()
        return torch.tensor(count, dtype=torch.uint8, device=device).untyped_storage()

    return __new__


def _names_this(device: Any = None, **options: Any) -> bool:
    """Whether the arguments of a constructor name this device."""
    return device is not None and torch.device(device).type == NAME


_library = torch.library.Library("_", "IMPL")


def _first(op: Any, *args: Any, **kwargs: Any) -> Any:
    """What comes first installs all kernels; later, operators that have none come here."""
    from stack.bridge.torch import install

    if not used:
        used.append(True)
        install.install()
        return op(*args, **kwargs)
    return install.without_row(op, args, kwargs)


def _apply_of(otherwise: Any) -> Any:
    """Module.to between this device and another one: parameters stay the same objects, so that
    those which modules share, and those that an optimizer has, go on being so."""

    def _apply(self: torch.nn.Module, fn: Any, recurse: bool = True) -> Any:
        own = next(itertools.chain(self.parameters(), self.buffers()), None)
        if own is None or torch.__future__.get_swap_module_params_on_conversion():
            return otherwise(self, fn, recurse)
        probe = torch.empty(0, dtype=own.dtype, device=own.device)
        kinds = {own.device.type, fn(probe).device.type}
        if len(kinds) == 1 or NAME not in kinds:
            return otherwise(self, fn, recurse)
        tables = [m._parameters for m in (self.modules() if recurse else [self])]
        lazy = [(t, name, x) for t in tables for name, x in t.items() if is_lazy(x)]
        for table, name, _ in lazy:
            table[name] = None
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return otherwise(self, fn, recurse)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)
            for table, name, x in lazy:
                table[name] = _lazy_moved(x, fn)

    return _apply


def _lazy_moved(x: Any, fn: Any) -> Any:
    """The same parameter, whose shape nobody knows yet, where the function moves tensors."""
    moved = fn(torch.empty(0, dtype=x.dtype, device=x.device))
    if moved.device != x.device:
        twin = type(x)(x.requires_grad, device=moved.device, dtype=moved.dtype)
        torch.utils.swap_tensors(x, twin)
    return x


def _tag(storage: Any) -> str | None:
    """Where a storage is, in a file."""
    device = storage.device
    return f"{NAME}:{device.index}" if device.type == NAME else None


def _restored(storage: Any, location: str) -> Any:
    """A storage of a file is a tensor's of the device that the location names."""
    if not location.startswith(NAME):
        return None
    device = torch.device(location)
    flat = torch.empty(0, dtype=torch.uint8).set_(storage)
    return flat.to(device).untyped_storage()


def _pinned_of(otherwise: Any, answer: Any) -> Any:
    """Memory of the host is not pinned for this device: copies are made at once."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is not None and accelerator.type == NAME:
            return answer(self)
        if accelerator is None and otherwise.__name__ == "pin_memory":
            raise RuntimeError(_NONE)
        return otherwise(self, *args, **kwargs)

    return method


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def has_primary_context(self, index: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True
