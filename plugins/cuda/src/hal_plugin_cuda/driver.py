"""The driver's own interface, opened at run time: libcuda comes with the driver, and nothing of a
toolkit is needed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import cffi

from hal.core.errors import HalError, PluginError

LIBRARY = "libcuda.so.1"
HEADER = Path(__file__).with_name("driver.h")

OUT_OF_MEMORY, NOT_READY, CONTEXT_GONE = 2, 600, 709
"""Numbers of the driver: no memory is left; an event has not come yet; the context has ended."""

ADDRESSES = (700, 716, 717)
STICKY = (214, 220, 226, *ADDRESSES, 702, CONTEXT_GONE, 710, 714, 715, 718, 719, 721, 810, 911, 999)
"""Errors after which every call of the context fails: memory and links whose errors cannot be
corrected, wrong addresses, traps, failed assertions, what the driver does not know."""

OLDEST = 12000
"""The first driver with all of these functions, and with cubins of every NVRTC of its major."""


def shown(version: int) -> str:
    """A number of a version of CUDA as people write it."""
    return f"{version // 1000}.{version % 1000 // 10}"


class DriverError(HalError):
    """A call that the driver refused, by its number."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


class Driver:
    """The functions of the driver, and those of the host's C library, which Python does not wait
    for. Raises OSError where there is no driver."""

    def __init__(self) -> None:
        self.ffi = cffi.FFI()
        self.ffi.cdef(HEADER.read_text())
        self.library: Any = self.ffi.dlopen(LIBRARY)
        self.host: Any = self.ffi.dlopen(None)
        self.version: int = self.made("int", "cuDriverGetVersion")

    @property
    def major(self) -> int:
        """The version of CUDA that it is for."""
        return self.version // 1000

    def call(self, name: str, *args: Any) -> None:
        """Call a function. Raises DriverError with its name and the driver's words."""
        number = getattr(self.library, name)(*args)
        if number:
            raise DriverError(number, f"{name}: {self.words(number)}")

    def made(self, type: str, name: str, *args: Any) -> Any:
        """What a function puts where its first argument points."""
        place = self.ffi.new(f"{type} *")
        self.call(name, place, *args)
        return place[0]

    def words(self, number: int) -> str:
        """What a number of the driver means."""
        found = self.ffi.new("const char *[2]")
        library, string = self.library, self.ffi.string
        if library.cuGetErrorName(number, found) or library.cuGetErrorString(number, found + 1):
            return f"error {number} of the driver"
        return f"{string(found[0]).decode()} ({number}): {string(found[1]).decode()}"

    def attribute(self, number: int, device: int) -> int:
        """A fact about a device (`CUdevice_attribute`)."""
        found: int = self.made("int", "cuDeviceGetAttribute", number, device)
        return found


@cache
def driver() -> Driver:
    """The driver of this process, started. Raises OSError where there is none, DriverError when it
    does not start, PluginError when it is too old."""
    found = Driver()
    if found.version < OLDEST:
        raise PluginError(
            f"the driver is for CUDA {shown(found.version)}, and CUDA {shown(OLDEST)} or newer is "
            "needed: update it to 525 or newer"
        )
    found.call("cuInit", 0)
    return found
