"""Host memory used as a buffer: no copy, and held until it is freed."""

from __future__ import annotations

import gc
import weakref

import numpy as np
from numpy.typing import NDArray

from hal.core.description import Feature
from hal.core.errors import InvalidCall, StaleHandle
from hal.core.values import AllocOptions
from hal_conformance import expect
from hal_conformance.additions import add_number, numbers
from hal_conformance.case import Cases, Level
from hal_conformance.cases.memory_alloc import address
from hal_conformance.rig import Rig

memory_host = Cases("C", Level.CORE)

IMPORT = (Feature.IMPORT_HOST,)


def noise(rig: Rig, count: int = 1000) -> NDArray[np.uint8]:
    """Random bytes as an array that can be written."""
    return rig.random.integers(0, 256, count, np.uint8)


@memory_host.case("import-host-reads", "import_host.same", needs=IMPORT)
def _(rig: Rig) -> None:
    array = noise(rig)
    buffer = rig.device.import_host(array.data)
    expect.equal(buffer.nbytes, array.nbytes, "the buffer's size")
    expect.same_bytes(rig.read(buffer), array.tobytes(), "the buffer")
    array[:] = noise(rig)
    expect.same_bytes(rig.read(buffer), array.tobytes(), "the buffer after the host wrote")


@memory_host.case("import-host-writes", "import_host.same", needs=IMPORT)
def _(rig: Rig) -> None:
    array, data = noise(rig), rig.noise(500)
    before = array.tobytes()
    buffer = rig.device.import_host(array.data)
    rig.write(buffer.region(3, 500), data)
    wanted = before[:3] + data + before[503:]
    expect.same_bytes(array.tobytes(), wanted, "the host memory after a copy to the buffer")
    rig.done(rig.device.fill(buffer.region(), b"\x66", rig.timeline(), ()))
    expect.same_bytes(array.tobytes(), b"\x66" * 1000, "the host memory after a fill")


@memory_host.case(
    "import-host-long", "import_host.same", needs=IMPORT, count=(65537, (1 << 20) + 3)
)
def _(rig: Rig, count: int) -> None:
    """Both sides see what the other one writes, also to memory of many pages."""
    array = noise(rig, count)
    buffer = rig.device.import_host(array.data)
    array[-1] ^= 0xFF
    expect.same_bytes(rig.read(buffer), array.tobytes(), "the buffer after the host wrote")
    rig.done(rig.device.fill(buffer.region(1, count - 2), b"\x66", rig.timeline(), ()))
    wanted = array[:1].tobytes() + b"\x66" * (count - 2) + array[-1:].tobytes()
    expect.same_bytes(array.tobytes(), wanted, "the host memory after a fill")


@memory_host.case("import-host-and-kernel", "import_host.same", needs=IMPORT)
def _(rig: Rig) -> None:
    array = numbers(rig)
    wanted = array + array.dtype.type(5)
    buffer = rig.device.import_host(array.data)
    rig.done(rig.launch(rig.program(add_number(rig, 5)), [buffer]))
    expect.same(array, wanted, "the host memory after a kernel")


@memory_host.case("import-host-copied-on", "import_host.same", needs=IMPORT)
def _(rig: Rig) -> None:
    array, target = noise(rig), rig.buffer(900)
    buffer = rig.device.import_host(array.data)
    source = buffer.region(7, 900)
    rig.done(rig.device.copy(target.region(), source, rig.timeline(), ()))
    expect.same_bytes(rig.read(target), array.tobytes()[7:907], "a copy on the device")


@memory_host.case(
    "import-host-address", "import_host.same", needs=(Feature.IMPORT_HOST, Feature.MAP)
)
def _(rig: Rig) -> None:
    array = noise(rig)
    buffer = rig.device.import_host(array.data)
    expect.equal(address(rig, buffer), array.ctypes.data, "where map shows the imported memory")


@memory_host.case("import-host-twice", "import_host.same", needs=IMPORT)
def _(rig: Rig) -> None:
    array = noise(rig)
    first, second = (rig.device.import_host(array.data) for _ in range(2))
    rig.done(rig.device.fill(first.region(), b"\x18", rig.timeline(), ()))
    rig.device.free(first)
    expect.same_bytes(rig.read(second), b"\x18" * 1000, "the second buffer of the same memory")


@memory_host.case("import-host-then-free", "import_host.same", needs=IMPORT)
def _(rig: Rig) -> None:
    array = noise(rig)
    data, buffer = array.tobytes(), rig.device.import_host(array.data)
    rig.device.free(buffer)
    fresh = [rig.device.alloc(1000, AllocOptions(zero=True)) for _ in range(3)]
    expect.same_bytes(array.tobytes(), data, "the host memory after the buffer was freed")
    array[:] = 1
    for other in fresh:
        expect.same_bytes(rig.read(other), bytes(1000), "a buffer allocated later")


@memory_host.case("import-host-is-held", "import_host.same", needs=IMPORT)
def _(rig: Rig) -> None:
    array = noise(rig)
    data, alive = array.tobytes(), weakref.ref(array)
    buffer = rig.device.import_host(array.data)
    del array
    gc.collect()
    expect.that(alive() is not None, "the host memory was let go before the buffer was freed")
    expect.same_bytes(rig.read(buffer), data, "the buffer")
    rig.device.free(buffer)
    rig.until(lambda: _gone(alive), "the end of the hold after the buffer was freed")


@memory_host.case(
    "import-host-is-held-while-in-use", "import_host.same", "free.deferred", needs=IMPORT
)
def _(rig: Rig) -> None:
    array, gate, target = noise(rig), rig.gate(), rig.buffer(1000)
    data, alive = array.tobytes(), weakref.ref(array)
    buffer = rig.device.import_host(array.data)
    del array
    point = rig.device.copy(target.region(), buffer.region(), rig.timeline(), [gate.point])
    rig.device.free(buffer)
    gc.collect()
    expect.that(alive() is not None, "the host memory was let go while a copy waited to use it")
    gate.open()
    expect.same_bytes(rig.read(target, waits=[point]), data, "the copy")
    rig.until(lambda: _gone(alive), "the end of the hold after the copy")


@memory_host.case(
    "import-host-ends-with-the-session", "import_host.same", "open.leaks", needs=IMPORT
)
def _(rig: Rig) -> None:
    array, other = noise(rig), rig.open()
    alive = weakref.ref(array)
    buffer = other.import_host(array.data)
    del array
    other.close()
    rig.until(lambda: _gone(alive), "the end of the hold after the session closed")
    expect.raises(StaleHandle, other.free, buffer)


@memory_host.case("import-host-strided", "call.refused", needs=IMPORT)
def _(rig: Rig) -> None:
    expect.raises(InvalidCall, rig.device.import_host, noise(rig).data[::2])


def _gone(alive: weakref.ReferenceType[NDArray[np.uint8]]) -> bool:
    gc.collect()
    return alive() is None
