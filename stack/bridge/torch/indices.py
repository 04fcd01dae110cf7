"""What torch asks its guard of the device: the guard in Python says that there is one device, and
is asked several times in each operator which one is current.

The guard is a C++ object with a table of virtual functions. It gets a copy of that table with
functions that are compiled: those that tell the kind, the current device and its stream, for which
the guard asks Python, and `deviceCount`, which tells the number of devices, so that autograd makes
a thread for each.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from pathlib import Path
from typing import Any

import torch

_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_PRIVATE = 20
"""`c10::DeviceType::PrivateUse1`."""
_KIND, _DEVICE, _STREAM, _COUNT = (0,), (1, 2), (5, 9), (15,)
"""The places of `type`, of `exchangeDevice` and `getDevice`, of `getStream` and `exchangeStream`,
and of `deviceCount` in the table, by c10/core/impl/DeviceGuardImplInterface.h of 2.13."""
_LENGTH = 48
"""More functions than there are."""
_kept: list[Any] = []
_told = [1]
"""How many devices torch sees."""


def tell_count(count: int) -> None:
    """Let torch see so many devices, at least. Where the process had a backward before, autograd
    has too few threads for them, and runs every later one on the thread that asks for it."""
    if count <= _told[0]:
        return
    _told[0] = count
    if _has_begun():
        autograd: Any = torch.autograd
        autograd._engine_run_backward = _on_one_thread(autograd._engine_run_backward)
    tell_device()


def tell_device() -> None:
    """Let torch ask no Python for the device."""
    from stack.bridge.torch import _parts  # noqa: PLC0415  (not by `import torch`)

    answers = _parts.guards(_told[0])
    if _kept:
        return
    library = ctypes.CDLL(f"{torch.__path__[0]}/lib/libc10.so")
    entry = ctypes.c_void_p.in_dll(library, _REGISTRY)
    guards = (ctypes.c_void_p * (_PRIVATE + 1)).from_address(ctypes.addressof(entry))
    found = guards[_PRIVATE]
    assert found, "the device has a guard since it was registered"
    guard = ctypes.c_void_p.from_address(found)
    table = (ctypes.c_void_p * (_LENGTH + 2))()
    # two words before the functions: the object's offset, and its type
    ctypes.memmove(table, guard.value - 16, ctypes.sizeof(table))  # type: ignore[operator]
    for places, answer in zip((_KIND, _DEVICE, _STREAM, _COUNT), answers, strict=True):
        for place in places:
            table[2 + place] = answer
    _kept.append(table)
    guard.value = ctypes.addressof(table) + 16


def _has_begun() -> bool:
    """Whether autograd has its threads, which it makes at the first backward and names."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            if (task / "comm").read_text().startswith("pt_autograd_"):
                return True
    return False


def _on_one_thread(run_backward: Any) -> Any:
    @functools.wraps(run_backward)
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return run_backward(*args, **kwargs)

    return run
