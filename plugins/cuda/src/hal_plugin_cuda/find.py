"""The CUDA devices of this machine. As a program: lists them as JSON in the last line.

A driver starts threads, so listing is done in a process of its own.
"""

from __future__ import annotations

from hal.hosted.look import tell
from hal_plugin_cuda.driver import Driver, DriverError, driver

_NO_DEVICE = 100


def devices(driver: Driver) -> list[str]:
    """A line for each device, in the driver's order."""
    count = driver.made("int", "cuDeviceGetCount")
    return [summary(driver, driver.made("int", "cuDeviceGet", i)) for i in range(count)]


def summary(driver: Driver, device: int) -> str:
    """The device in a line."""
    name = driver.ffi.new("char[256]")
    driver.call("cuDeviceGetName", name, 256, device)
    return str(driver.ffi.string(name).decode())


if __name__ == "__main__":
    try:
        tell(devices(driver()))
    except OSError:
        tell(None)
    except DriverError as error:
        if error.number != _NO_DEVICE:
            raise
        tell([])
