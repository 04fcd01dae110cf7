"""The device "hal" as torch knows it, before anybody uses it. All of torch's private names that it
takes are here and in `handles` and `install`."""

# The rest of the stack is imported at the first use, not by `import torch`.
# ruff: noqa: PLC0415

from __future__ import annotations

import itertools
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils import backend_registration

NAME = "hal"
VERSION = "2.13."
"""The versions of torch whose private names these are."""


def register_device() -> None:
    """Give torch's private device its name. Kernels come at the first call. A second call does
    nothing."""
    if hasattr(torch, NAME):
        return
    if not torch.__version__.startswith(VERSION):
        _refuse_later()
        return
    backend_registration._setup_privateuseone_for_python_backend(NAME, Module(), _Hooks(), _Guard())
    _library.fallback(_first, "PrivateUse1")
    torch.nn.Module._apply = _apply_of(torch.nn.Module._apply)
    torch.serialization.register_package(5, _tag, _restored)
    torch.Tensor.pin_memory = _pinned_of(torch.Tensor.pin_memory, lambda x: x)
    torch.Tensor.is_pinned = _pinned_of(torch.Tensor.is_pinned, lambda x: False)


def _refuse_later() -> None:
    """A torch of another version has the module, and each use of it tells the versions."""

    class Refusing:
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            raise RuntimeError(
                f"the device {NAME!r} needs torch {VERSION}*, this is torch {torch.__version__}"
            )

    setattr(torch, NAME, Refusing())


_library = torch.library.Library("_", "IMPL")
_installed: list[bool] = []


def _first(op: Any, *args: Any, **kwargs: Any) -> Any:
    """What comes first installs all kernels; later, operators that have none come here."""
    from stack.bridge.torch import install

    if not _installed:
        _installed.append(True)
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
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return otherwise(self, fn, recurse)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)

    return _apply


def _tag(storage: Any) -> str | None:
    """Where a storage is, in a file."""
    device = storage.device
    return f"{NAME}:{device.index}" if device.type == NAME else None


def _restored(storage: Any, location: str) -> Any:
    """A storage of a file is a tensor's of the device that the location names."""
    if not location.startswith(NAME):
        return None
    return _moved(storage, torch.device(location))


def _moved(storage: Any, device: torch.device) -> Any:
    flat = torch.empty(0, dtype=torch.uint8).set_(storage)
    return flat.to(device).untyped_storage()


def _pinned_of(otherwise: Any, answer: Any) -> Any:
    """Memory of the host is not pinned for this device: copies are made at once."""

    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        accelerator = torch._C._get_accelerator().type
        return answer(self) if accelerator == NAME else otherwise(self, *args, **kwargs)

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


class Stream:
    """The one order in which a device does what is recorded for it: to wait for it inside of itself
    is to do nothing."""

    def __init__(self, module: Module, device: int) -> None:
        self._module, self.device_index = module, device

    @property
    def device(self) -> torch.device:
        return torch.device(NAME, self.device_index)

    def synchronize(self) -> None:
        """Compute what is recorded, and wait for it."""
        self._module.synchronize(self.device_index)

    def wait_stream(self, stream: Stream) -> None:
        """Go on after what is recorded in another device's order."""
        if stream.device_index != self.device_index:
            stream.synchronize()


class Module:
    """`torch.hal`."""

    def __init__(self) -> None:
        self._current = 0
        self._streams: dict[int, Stream] = {}

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def current_device(self) -> int:
        return self._current

    def set_device(self, device: Any) -> None:
        """New tensors without an index are there."""
        self._current = torch.device(NAME, device).index if isinstance(device, int) else (
            torch.device(device).index or 0
        )  # fmt: skip

    def device_count(self) -> int:
        """How many devices HAL_DEVICES names; one without it."""
        given = os.environ.get("HAL_DEVICES", "")
        return len([n for n in given.split(",") if n.strip()]) or 1

    def get_device_name(self, device: int = 0) -> str:
        """The device's name in the stack, "cpu:0"."""
        from stack.bridge.torch import kernels

        return kernels.names()[device]

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def synchronize(self, device: int | None = None) -> None:
        """Compute what is recorded, and wait for it."""
        from stack.bridge.torch import kernels

        kernels.synchronize(self._current if device is None else device)

    def current_stream(self, device: Any = None) -> Stream:
        """The order of a device, of which there is one."""
        index = self._current
        if device is not None:
            index = device if isinstance(device, int) else torch.device(device).index or 0
        return self._streams.setdefault(index, Stream(self, index))

    default_stream = current_stream

    def stream(self, stream: Stream | None) -> AbstractContextManager[None]:
        """A block whose work is in the device's one order, as outside of it."""
        return nullcontext()

    def manual_seed(self, seed: int) -> None:
        """Begin the seed's stream of random numbers on the current device."""
        self.manual_seed_all(seed)

    def manual_seed_all(self, seed: int) -> None:
        """The same on all devices."""
        from stack.bridge.torch import draws

        draws.manual_seed(seed)

    def get_rng_state(self, device: Any = NAME) -> torch.Tensor:
        """The key and the offset of the device's stream, uint8[16]."""
        from stack.bridge.torch import draws

        return draws.get_state(torch.device(device).index or 0)

    def set_rng_state(self, state: torch.Tensor, device: Any = NAME) -> None:
        """Go on where `get_rng_state` was."""
        from stack.bridge.torch import draws

        draws.set_state(torch.device(device).index or 0, state)

    def empty_cache(self) -> None:
        """Give memory that nothing is in back to the devices."""
        from stack.bridge.torch import kernels

        kernels.trim()

    def memory_allocated(self, device: int | None = None) -> int:
        """The bytes in use."""
        from stack.bridge.torch import kernels

        return kernels.memory(self._current if device is None else device)
