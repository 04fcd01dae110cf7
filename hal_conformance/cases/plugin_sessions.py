"""Sessions: opening, closing, what belongs to which, and what is left behind."""

from __future__ import annotations

import pickle
from collections.abc import Callable

from hal.core.device import Device
from hal.core.errors import HalError, InvalidCall, StaleHandle
from hal.core.values import AllocOptions, Handle, HealthState, OpenOptions, Point
from hal_conformance import expect
from hal_conformance.alone import alone
from hal_conformance.case import Cases, Level
from hal_conformance.expect import Unfit
from hal_conformance.held import check_held, held, resident_nbytes
from hal_conformance.rig import Rig

plugin_sessions = Cases("A", Level.CORE)


@plugin_sessions.case("open-twice", "open.sessions")
def _(rig: Rig) -> None:
    """Two sessions at once, each with its own memory."""
    other = rig.open()
    first, second = rig.buffer(b"\x01" * 64), rig.buffer(b"\x02" * 64, other)
    expect.same_bytes(rig.read(first), b"\x01" * 64, "the first session's buffer")
    expect.same_bytes(rig.read(second, other), b"\x02" * 64, "the second session's buffer")


@plugin_sessions.case("close-one-of-two", "open.sessions")
def _(rig: Rig) -> None:
    other = rig.open()
    buffer = rig.buffer(b"\x01" * 64)
    rig.buffer(64, other)
    other.close()
    expect.same_bytes(rig.read(buffer), b"\x01" * 64, "a buffer of the session that stays")


@plugin_sessions.case("foreign-buffer", "handle.stale", "open.sessions")
def _(rig: Rig) -> None:
    buffer = rig.buffer(64, rig.open())
    own = rig.buffer(64)
    device, timeline = rig.device, rig.timeline()
    for call in (
        lambda: device.free(buffer),
        lambda: device.fill(buffer.region(), b"\0", timeline, ()),
        lambda: device.copy(own.region(), buffer.region(), timeline, ()),
        lambda: device.copy(bytearray(64), buffer.region(), timeline, ()),
    ):
        expect.raises(StaleHandle, call)


@plugin_sessions.case("foreign-timeline", "handle.stale", "open.sessions")
def _(rig: Rig) -> None:
    timeline = rig.open().create_timeline(False)
    buffer = rig.buffer(64)
    point = Point(timeline, 1)
    device, own = rig.device, rig.timeline()
    expect.raises(StaleHandle, device.fill, buffer.region(), b"\0", timeline, ())
    expect.raises(StaleHandle, device.fill, buffer.region(), b"\0", own, [point])
    expect.raises(StaleHandle, device.wait, [point], 0, True)
    expect.raises(StaleHandle, device.free, timeline)


@plugin_sessions.case("unknown-setting", "open.refused")
def _(rig: Rig) -> None:
    options = OpenOptions(settings={"no_such_setting": "1"})
    error = expect.raises(
        InvalidCall, lambda: rig.setting.registry().open(rig.name, (), options).close()
    )
    expect.that("no_such_setting" in str(error), f"the error does not name it: {error}")


@plugin_sessions.case("close-twice", "close.twice")
def _(rig: Rig) -> None:
    rig.buffer(64)
    rig.device.close()
    rig.device.close()


@plugin_sessions.case("implementation-closes-twice", "close.twice")
def _(rig: Rig) -> None:
    """The plugin's own close, not only the handle's."""
    device = rig.open(wrappers=())
    close = device._close
    assert close is not None
    close()
    close()


@plugin_sessions.case("close-with-live-handles", "close.live")
def _(rig: Rig) -> None:
    device, timeline = rig.device, rig.timeline()
    buffer = rig.buffer(64)
    device.close()
    for call in (
        lambda: device.free(buffer),
        lambda: device.free(timeline),
        lambda: device.fill(buffer.region(), b"\0", timeline, ()),
        lambda: device.copy(buffer.region(), bytes(64), timeline, ()),
        lambda: device.wait([Point(timeline, 1)], 0, True),
    ):
        expect.raises(StaleHandle, call)


@plugin_sessions.case("use-after-close", "handle.stale")
def _(rig: Rig) -> None:
    device = rig.device
    device.close()
    expect.raises(StaleHandle, device.alloc, 16, AllocOptions())
    expect.raises(StaleHandle, device.create_timeline, False)


@plugin_sessions.case("unchecked-use-after-close", "handle.stale")
def _(rig: Rig) -> None:
    """Without the wrapper that validates, a closed device still does no harm."""
    device = rig.open(wrappers=())
    buffer, timeline = device.alloc(64, AllocOptions()), device.create_timeline(False)
    device.close()
    expect.raises(HalError, device.fill, buffer.region(), b"\0", timeline, ())
    expect.raises(HalError, device.alloc, 16, AllocOptions())


@plugin_sessions.case("health-after-close", "close.live")
def _(rig: Rig) -> None:
    device = rig.device
    device.close()
    expect.equal(device.health().state, HealthState.CLOSED, "the state")


@plugin_sessions.case("reopen", "open.sessions")
def _(rig: Rig) -> None:
    for turn in range(3):
        device = rig.open()
        buffer = rig.buffer(bytes([turn]) * 32, device)
        expect.same_bytes(rig.read(buffer, device), bytes([turn]) * 32, f"session {turn}")
        device.close()


@plugin_sessions.case("close-drains", "close.drains")
def _(rig: Rig) -> None:
    """Work that can run is done when close returns."""
    device = rig.device
    host = bytearray(1 << 20)
    buffer = rig.buffer(b"\x07" * (1 << 20))
    for _ in range(4):
        device.copy(host, buffer.region(), rig.timeline(), ())
    device.close()
    expect.same_bytes(bytes(host), b"\x07" * (1 << 20), "what the last copy wrote")


@plugin_sessions.case("close-with-work-that-cannot-run", "close.drains")
def _(rig: Rig) -> None:
    """Work behind a gate that nobody opens does not keep close from returning."""
    device, gate = rig.device, rig.gate()
    buffer = rig.buffer(64)
    device.fill(buffer.region(), b"\0", rig.timeline(), [gate.point])
    device.close()


@plugin_sessions.case("open-and-close-50", "open.leaks", timeout_s=60)
def _(rig: Rig) -> None:
    for turn in range(50):
        device = rig.open()
        rig.buffer(4096, device)
        device.close()
        if turn == 9:
            before = held()
    check_held(before, "40 sessions", slack=2)


@plugin_sessions.case("memory-comes-back", "open.leaks", timeout_s=60)
def _(rig: Rig) -> None:
    """Sessions that hold 8 MiB each when they close do not pile up in the process."""
    for turn in range(24):
        device = rig.open()
        rig.buffer(b"\x01" * (8 << 20), device)
        device.close()
        if turn == 7:
            before = resident_nbytes()
    grown = resident_nbytes() - before
    expect.that(grown < 64 << 20, f"16 sessions of 8 MiB left {grown} bytes in the process")


@plugin_sessions.case("dropped-without-close", "open.leaks")
def _(rig: Rig) -> None:
    """A device that its owner forgets ends without noise."""
    warnings = alone(
        """
        import gc, hal
        from hal.core.values import AllocOptions
        for _ in range(3):
            hal.open(name).alloc(64, AllocOptions())
            gc.collect()
        result = "ended"
        """,
        name=rig.name,
    )
    expect.equal(warnings, "ended", "the process")


@plugin_sessions.case("exit-while-open", "open.leaks")
def _(rig: Rig) -> None:
    """A process that ends with an open device and work in flight ends with success."""
    alone(
        """
        import hal
        from hal.core.values import AllocOptions, Point
        device = hal.open(name)
        gate, timeline = device.create_timeline(True), device.create_timeline(False)
        buffer = device.alloc(64, AllocOptions())
        device.fill(buffer.region(), b"\\0", timeline, [Point(gate, 1)])
        result = "exits"
        """,
        name=rig.name,
    )


@plugin_sessions.case("fork-refuses", "handle.stale")
def _(rig: Rig) -> None:
    """A forked child cannot use the parent's device, and the parent's goes on."""
    outcome = alone(
        """
        import os, select, warnings, hal
        from hal.core.errors import StaleHandle
        from hal.core.values import AllocOptions
        warnings.simplefilter("ignore")
        device = hal.open(name)
        child = os.fork()
        if child == 0:
            try:
                device.alloc(16, AllocOptions())
                os._exit(1)
            except StaleHandle:
                os._exit(7)
        select.select([os.pidfd_open(child)], [], [], 10)
        status = os.waitstatus_to_exitcode(os.waitpid(child, os.WNOHANG)[1])
        buffer = device.alloc(16, AllocOptions())
        device.close()
        result = [status, buffer.nbytes]
        """,
        name=rig.name,
    )
    expect.equal(outcome, [7, 16], "(exit of the child, bytes of the parent's buffer)")


@plugin_sessions.case("fork-and-open", "open.sessions")
def _(rig: Rig) -> None:
    """A forked child may open the device anew if its parent had not opened it."""
    outcome = alone(
        """
        import os, select, warnings, hal
        from hal.core.values import AllocOptions
        warnings.simplefilter("ignore")
        child = os.fork()
        if child == 0:
            with hal.open(name) as device:
                os._exit(device.alloc(16, AllocOptions()).nbytes)
        select.select([os.pidfd_open(child)], [], [], 10)
        result = os.waitstatus_to_exitcode(os.waitpid(child, os.WNOHANG)[1])
        """,
        name=rig.name,
    )
    expect.equal(outcome, 16, "the child's exit")


@plugin_sessions.case("not-pickled", "handle.stale")
def _(rig: Rig) -> None:
    expect.raises(InvalidCall, pickle.dumps, rig.device)


@plugin_sessions.case("two-plugins-together", "open.sessions")
def _(rig: Rig) -> None:
    rows = rig.setting.registry().devices()
    own = rig.name.partition(":")[0]
    others = [row.name for row in rows if row.plugin != own and row.status == "ok"]
    if not others:
        raise Unfit("no other plugin is installed")
    other = rig.setting.registry().open(others[0])
    try:
        expect.raises(StaleHandle, other.free, rig.buffer(16))
        expect.that(other.alloc(16, AllocOptions()).nbytes == 16, "the other plugin's device works")
    finally:
        other.close()


@plugin_sessions.case("every-handle-has-its-session", "handle.stale")
def _(rig: Rig) -> None:
    """Handles carry the device's name and its epoch."""
    for make in _makers(rig.device):
        handle = make()
        expect.equal(handle.device, rig.name, f"the device of {type(handle).__name__}")
        expect.equal(handle.epoch, rig.device.health().epoch, f"epoch of {type(handle).__name__}")


def _makers(device: Device) -> list[Callable[[], Handle]]:
    return [
        lambda: device.alloc(16, AllocOptions()),
        lambda: device.create_timeline(False),
        lambda: device.create_timeline(True),
    ]
