"""What a torch of another version gets than the one whose private names the device takes: torch
goes on, and the first use of the device, the compiler or the backend names both versions."""

from __future__ import annotations

import functools
import os
import sys
import types
from typing import Any, NoReturn

import torch

from stack.bridge.torch.names import NAME

VERSION = "2.13."
"""The versions of torch that are known."""


def fits() -> bool:
    """Whether this torch is one of them."""
    return str(torch.__version__).startswith(VERSION)


def refuse(*args: Any, **kwargs: Any) -> NoReturn:
    """Say why there is no device."""
    raise RuntimeError(
        f"the device {NAME!r} needs torch {VERSION}*, this is torch {torch.__version__}; "
        f"pip install 'torch=={VERSION}0'"
    )


class _Refusing(types.ModuleType):
    """`torch.hal`: what torch itself asks of every device says that there is none."""

    @staticmethod
    def is_available() -> bool:
        return False

    @staticmethod
    def device_count() -> int:
        return 0

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_utils":
            raise AttributeError(name)
        refuse()


def refuse_later() -> None:
    """Give the device its name, so that its use is refused here, unless torch has another
    accelerator, which it would no longer find: there torch says that it knows no such device."""
    if hasattr(torch, NAME):
        return
    module = _Refusing(f"torch.{NAME}")
    setattr(torch, NAME, module)
    sys.modules[module.__name__] = module
    meant = any(name in os.environ for name in ("HAL_DEVICES", "HAL_WORLD_RANK"))
    others: Any = getattr(torch, "accelerator", None)
    if not meant and (others is None or others.current_accelerator() is not None):
        return
    torch.utils.rename_privateuse1_backend(NAME)
    _library.fallback(refuse, "PrivateUse1")
    for name, otherwise in (
        ("_get_accelerator", torch.device("cpu")),
        ("_accelerator_getAccelerator", None),
    ):
        if hasattr(torch._C, name) and not meant:
            setattr(torch._C, name, lambda *args, otherwise=otherwise: otherwise)

    torch.Tensor.to = _told(torch.Tensor.to)


def _told(to: Any) -> Any:
    """`Tensor.to`, which asks for what a device has in C++ before any kernel is looked for."""

    @functools.wraps(to)
    def moved(*args: Any, **kwargs: Any) -> Any:
        try:
            return to(*args, **kwargs)
        except RuntimeError as error:
            if f"support for {NAME} devices" in str(error):
                refuse()
            raise

    return moved


_library = torch.library.Library("_", "IMPL")
