"""Memory that other processes map: of the driver's, named by a descriptor, and given back by the
driver when no process maps it any more."""

from __future__ import annotations

import os
from typing import Any

from hal.core.errors import InvalidCall
from hal.core.values import SharedHandle
from hal.hosted import passed
from hal.hosted.passed import OFFERS, Token
from hal_plugin_cuda.context import Context
from hal_plugin_cuda.driver import DriverError

KIND, _HANDLE = "cuda-descriptor", "CUmemGenericAllocationHandle"
_PINNED, _ON_DEVICE, _DESCRIPTOR, _READ_WRITE, _LEAST = 1, 1, 1, 3, 0
"""`CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_LOCATION_TYPE_DEVICE`, `CU_MEM_HANDLE_TYPE_POSIX_FILE_
DESCRIPTOR`, `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`, `CU_MEM_ALLOC_GRANULARITY_MINIMUM`."""


class Mapped:
    """Physical memory, mapped for a device. It is of no context, and outlives one that a fault has
    ended; in one that hangs it stays."""

    host: Any = None
    """As `Block`: it is not memory of the host."""

    def __init__(self, context: Context, device: int, handle: Any, size: int) -> None:
        self.context, self.size, self._handle = context, size, handle
        self._offers = list[Token]()
        self._made: list[tuple[str, tuple[Any, ...]]] = [("cuMemRelease", (handle,))]
        """What gives back what has been made so far, the last first."""
        driver = context.driver
        self.address = driver.made("CUdeviceptr", "cuMemAddressReserve", size, 0, 0, 0)
        self._made.append(("cuMemAddressFree", (self.address, size)))
        driver.call("cuMemMap", self.address, size, 0, handle, 0)
        self._made.append(("cuMemUnmap", (self.address, size)))
        access = driver.ffi.new("CUmemAccessDesc *", ((_ON_DEVICE, device), _READ_WRITE))
        driver.call("cuMemSetAccess", self.address, size, access, 1)

    def exported(self, nbytes: int) -> SharedHandle:
        """Its name for another process."""
        made = self.context.driver.made
        found = made("int", "cuMemExportToShareableHandle", self._handle, _DESCRIPTOR, 0)
        self._offers.append(OFFERS.offer(found))
        return SharedHandle(KIND, (*self._offers[-1], self.size), nbytes)

    def release(self) -> None:
        """Let go of it when nothing runs in its context."""
        self.context.when_idle(self._end)

    def _end(self) -> None:
        while self._offers:
            OFFERS.withdraw(self._offers.pop())
        while self._made:
            name, args = self._made.pop()
            self.context.give_back(name, *args)

    def __del__(self) -> None:
        if not self.context.hangs:
            self._end()


def shareable(context: Context, device: int, nbytes: int) -> Mapped:
    """New memory of at least so many bytes. Raises DriverError."""
    driver = context.driver
    wanted = driver.ffi.new("CUmemAllocationProp *")
    wanted.type, wanted.handles = _PINNED, _DESCRIPTOR
    wanted.location = (_ON_DEVICE, device)
    unit = driver.made("size_t", "cuMemGetAllocationGranularity", wanted, _LEAST)
    size = -(-max(nbytes, 1) // unit) * unit
    return Mapped(context, device, driver.made(_HANDLE, "cuMemCreate", size, wanted, 0), size)


def attached(context: Context, device: int, shared: SharedHandle) -> Mapped:
    """The memory that another process names. Raises Unsupported, InvalidCall."""
    descriptor, size = passed.attached(shared, KIND)
    driver = context.driver
    try:
        name, of = "cuMemImportFromShareableHandle", driver.ffi.cast("void *", descriptor)
        return Mapped(context, device, driver.made(_HANDLE, name, of, _DESCRIPTOR), size)
    except DriverError as error:
        raise InvalidCall(f"import_buffer: {shared} cannot be mapped: {error}") from error
    finally:
        os.close(descriptor)
