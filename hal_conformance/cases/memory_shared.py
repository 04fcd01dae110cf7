"""Buffers that several processes share, in a session, between sessions and between processes."""

from __future__ import annotations

from hal.core.description import Feature
from hal.core.errors import InvalidCall, Unsupported
from hal.core.values import AllocOptions, Buffer, SharedHandle
from hal_conformance import expect
from hal_conformance.additions import add_number, numbers
from hal_conformance.case import Cases, Level
from hal_conformance.elsewhere import Elsewhere
from hal_conformance.rig import Rig

memory_shared = Cases("C", Level.CORE)

IPC = (Feature.IPC,)
SHAREABLE = AllocOptions(shareable=True)


def elsewhere(rig: Rig) -> Elsewhere:
    """Another process with the device under test."""
    return Elsewhere(rig.name, rig.setting.settings, rig.setting.registry)


def shareable(rig: Rig, content: bytes) -> Buffer:
    """A shareable buffer of that content."""
    buffer = rig.device.alloc(len(content), SHAREABLE)
    rig.write(buffer.region(), content)
    return buffer


@memory_shared.case("share-with-a-session", "import.same", needs=IPC, nbytes=(1, 4096, 4097))
def _(rig: Rig, nbytes: int) -> None:
    data, other = rig.noise(nbytes), rig.open()
    ours = shareable(rig, data)
    theirs = other.import_buffer(rig.device.export_buffer(ours))
    expect.equal(theirs.nbytes, nbytes, "the imported buffer's size")
    expect.same_bytes(rig.read(theirs, other), data, "the imported buffer")
    rig.write(theirs.region(nbytes - 1, 1), bytes([data[-1] ^ 0xFF]), other)
    wanted = data[:-1] + bytes([data[-1] ^ 0xFF])
    expect.same_bytes(rig.read(ours), wanted, "the exported buffer after the importer wrote")


@memory_shared.case("share-and-kernel", "import.same", needs=IPC)
def _(rig: Rig) -> None:
    before, other = numbers(rig), rig.open()
    ours = shareable(rig, before.tobytes())
    theirs = other.import_buffer(rig.device.export_buffer(ours))
    program = rig.program(add_number(rig, 7), other)
    rig.done(rig.launch(program, [theirs], device=other), other)
    wanted = (before + before.dtype.type(7)).tobytes()
    expect.same_bytes(rig.read(ours), wanted, "the exported buffer after the importer's kernel")


@memory_shared.case("share-outlives-the-exporter-s-buffer", "export.lives", needs=IPC)
def _(rig: Rig) -> None:
    data, other = rig.noise(5000), rig.open()
    ours = shareable(rig, data)
    theirs = other.import_buffer(rig.device.export_buffer(ours))
    rig.device.free(ours)
    junk = [rig.device.alloc(5000, AllocOptions(shareable=True, zero=True)) for _ in range(3)]
    expect.same_bytes(rig.read(theirs, other), data, "the import after the exporter freed")
    other.free(theirs)
    expect.same_bytes(rig.read(junk[0]), bytes(5000), "a buffer of the exporter")


@memory_shared.case("share-outlives-the-exporter-s-session", "export.lives", needs=IPC)
def _(rig: Rig) -> None:
    data, exporter = rig.noise(5000), rig.open()
    ours = exporter.alloc(5000, SHAREABLE)
    rig.write(ours.region(), data, exporter)
    theirs = rig.device.import_buffer(exporter.export_buffer(ours))
    exporter.close()
    expect.same_bytes(rig.read(theirs), data, "the import after the exporter's session closed")


@memory_shared.case("share-outlives-the-importer", "export.lives", needs=IPC)
def _(rig: Rig) -> None:
    data, other = rig.noise(5000), rig.open()
    ours = shareable(rig, data)
    theirs = other.import_buffer(rig.device.export_buffer(ours))
    other.free(theirs)
    other.close()
    expect.same_bytes(rig.read(ours), data, "the export after the importer let go")


@memory_shared.case("share-with-a-process", "import.same", needs=IPC, once=True)
def _(rig: Rig) -> None:
    data, theirs_data, ours_data = rig.noise(9000), rig.noise(100), rig.noise(100)
    ours = shareable(rig, data)
    with elsewhere(rig) as other:
        other.take(rig.device.export_buffer(ours))
        expect.same_bytes(other.read(), data, "the buffer in the other process")
        other.write(1, theirs_data)
        rig.write(ours.region(5000, 100), ours_data)
        wanted = data[:1] + theirs_data + data[101:5000] + ours_data + data[5100:]
        expect.same_bytes(rig.read(ours), wanted, "the buffer here, after both wrote")
        expect.same_bytes(other.read(), wanted, "the buffer there, after both wrote")


@memory_shared.case(
    "share-from-a-process-that-dies", "export.lives", "import.same", needs=IPC, once=True
)
def _(rig: Rig) -> None:
    data = rig.noise(9000)
    with elsewhere(rig) as other:
        buffer = rig.device.import_buffer(other.export(data))
        expect.same_bytes(rig.read(buffer), data, "the import")
        other.kill()
        expect.same_bytes(rig.read(buffer), data, "the import after the exporter died")
        rig.write(buffer.region(), bytes(9000))
        expect.same_bytes(rig.read(buffer), bytes(9000), "the import after a later write")


@memory_shared.case("share-with-a-process-that-dies", "export.lives", needs=IPC, once=True)
def _(rig: Rig) -> None:
    data = rig.noise(9000)
    ours = shareable(rig, data)
    with elsewhere(rig) as other:
        other.take(rig.device.export_buffer(ours))
        other.write(8999, b"!")
        other.kill()
    expect.same_bytes(rig.read(ours), data[:-1] + b"!", "the export after the importer died")


@memory_shared.case("share-freed-there-and-lives-here", "export.lives", needs=IPC, once=True)
def _(rig: Rig) -> None:
    data = rig.noise(9000)
    with elsewhere(rig) as other:
        buffer = rig.device.import_buffer(other.export(data))
        other.free()
        other.export(bytes(9000))
        expect.same_bytes(rig.read(buffer), data, "the import after the exporter freed")


@memory_shared.case("share-after-the-exporter-is-gone", "import.same", needs=IPC, once=True)
def _(rig: Rig) -> None:
    with elsewhere(rig) as other:
        shared = other.export(b"gone")
        other.kill()
    expect.raises(InvalidCall, rig.device.import_buffer, shared)


@memory_shared.case("share-needs-a-shareable-buffer", "call.refused", needs=IPC)
def _(rig: Rig) -> None:
    expect.raises(InvalidCall, rig.device.export_buffer, rig.buffer(16))


@memory_shared.case("share-by-an-unknown-mechanism", "call.refused", needs=IPC)
def _(rig: Rig) -> None:
    shared = SharedHandle("no such mechanism", (1, 2), 16)
    expect.raises(Unsupported, rig.device.import_buffer, shared)
