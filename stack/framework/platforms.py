"""What programs ask of PyTorch's own kinds of devices, which are not here, and of the accelerator
that they find.

A device here has the name of its plugin, and `accelerator` says which one a program runs on.
PyTorch's namespaces of one kind of device each say that there is none, so that a program that asks
first goes on without; settings that choose among PyTorch's implementations are kept and change
nothing.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stack.framework.amp import GradScaler
from stack.framework.devices import Device, default_device, engine, placed
from stack.framework.errors import absent


class Namespace(ModuleType):
    """Names below one of the framework's: it can be imported from."""

    def __init__(self, name: str, doc: str | None, **held: Any) -> None:
        super().__init__(f"{__package__}.{name}", doc)
        vars(self).update(held)
        sys.modules[self.__name__] = self

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            present = [n for n in dir(self) if not n.startswith("_")]
            raise absent(self.__name__.removeprefix(f"{__package__}."), name, present)


class Settings(Namespace):
    """Settings that are kept and change nothing; a name that is none of them is refused."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("__"):
            getattr(self, name)
        super().__setattr__(name, value)


def _none_here(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(
        "there is no device of this kind of PyTorch's here; ask is_available() first, or take "
        "get_default_device() and `accelerator`, which know every device"
    )


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Nothing: there is no device of this kind."""


def _zero(*args: Any, **kwargs: Any) -> int:
    """0: there is no device of this kind."""
    return 0


def _no(*args: Any, **kwargs: Any) -> bool:
    """False: there is no device of this kind."""
    return False


def _switched_off(*args: Any, **kwargs: Any) -> GradScaler:
    """A scaler that is not enabled, as PyTorch's is without such a device."""
    return GradScaler(enabled=False)


def _no_cast(*args: Any, **kwargs: Any) -> Any:
    """Nothing is cast: there is no device of this kind."""
    return nullcontext()


_ANSWERS: dict[str, Any] = {
    **dict.fromkeys(("is_available", "is_initialized", "is_built", "is_bf16_supported"), _no),
    **dict.fromkeys(("device_count", "memory_allocated", "max_memory_allocated"), _zero),
    **dict.fromkeys(("memory_reserved", "max_memory_reserved"), _zero),
    **dict.fromkeys(("manual_seed", "manual_seed_all", "seed", "seed_all"), _nothing),
    **dict.fromkeys(("empty_cache", "init", "ipc_collect"), _nothing),
    **dict.fromkeys(("current_device", "set_device", "get_device_name", "synchronize"), _none_here),
    **dict.fromkeys(("get_device_properties", "get_device_capability", "mem_get_info"), _none_here),
    **dict.fromkeys(("reset_peak_memory_stats", "Stream", "Event", "stream"), _none_here),
    **dict.fromkeys(("current_stream", "default_stream", "CUDAGraph", "graph"), _none_here),
}


def _platform(name: str) -> Namespace:
    """The namespace of a kind of device that is not here."""
    old = Namespace(
        f"{name}.amp", "Old names of `amp`.", GradScaler=_switched_off, autocast=_no_cast
    )
    return Namespace(name, f"`{name}`: no device is of this kind.", **_ANSWERS, amp=old)


cuda, mps, xpu = _platform("cuda"), _platform("mps"), _platform("xpu")


@contextmanager
def _as_before(*args: Any, **kwargs: Any) -> Any:
    """A block in which other implementations would be chosen: there is one of each operation."""
    yield


def _backends() -> Namespace:
    at = "backends"
    products = Settings(
        f"{at}.cuda.matmul",
        "How products are computed.",
        allow_tf32=False,
        allow_fp16_reduced_precision_reduction=True,
        allow_bf16_reduced_precision_reduction=True,
        fp32_precision="none",
    )
    attention = {
        name: _nothing
        for kind in ("flash", "mem_efficient", "math", "cudnn")
        for name in (f"enable_{kind}_sdp", f"{kind}_sdp_enabled")
    }
    own = Settings(
        f"{at}.cuda", "Choices.", matmul=products, is_built=_no, sdp_kernel=_as_before, **attention
    )
    convolutions = Settings(
        f"{at}.cudnn",
        "How convolutions are computed.",
        benchmark=False,
        deterministic=False,
        enabled=True,
        allow_tf32=True,
        benchmark_limit=10,
        fp32_precision="none",
        is_available=_no,
        version=_nothing,
        flags=_as_before,
    )
    others = {
        name: Settings(f"{at}.{name}", "Not here.", is_available=_no, is_built=_no, enabled=True)
        for name in ("mps", "mkl", "mkldnn", "openmp", "xpu", "xnnpack")
    }
    return Settings(
        at, "Choices among PyTorch's implementations.", cuda=own, cudnn=convolutions, **others,
        fp32_precision="none",
    )  # fmt: skip


backends = _backends()


def _accelerator_available() -> bool:
    """Whether the default device is another one than the host's processor."""
    return Device(default_device()).type != "cpu"


def _current_accelerator(check_available: bool = False) -> Device | None:
    """The default device, or None where that is the host's processor."""
    return placed(None) if _accelerator_available() else None


def _accelerator_count() -> int:
    """1 where there is an accelerator: each rank has its own."""
    return int(_accelerator_available())


def _synchronize(device: str | None = None) -> None:
    """Wait for all that was submitted to a device, or to the default one."""
    engine(placed(device)).sync()


def _accelerator_index() -> int:
    """The default device's number within its plugin."""
    return Device(default_device()).index


accelerator = Namespace(
    "accelerator",
    "The device that a program runs on, where that is not the host's processor.",
    is_available=_accelerator_available,
    current_accelerator=_current_accelerator,
    device_count=_accelerator_count,
    synchronize=_synchronize,
    current_device_index=_accelerator_index,
    current_device_idx=_accelerator_index,
    empty_cache=_nothing,
)

version = Namespace("version", "Of what PyTorch was built with: nothing.", cuda=None, hip=None)
