"""The process behind `hal.core.survey`: it forks once per plugin and watches what becomes of them.

It imports no plugin itself, so it has one thread when it forks and stays whole. A fork tells how
far it got through a file, line by line, so that its last words survive it.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from hal.core.device import Device
from hal.core.errors import HalError
from hal.core.loading import Plugin, import_plugin, plugin_of, said
from hal.core.values import OpenOptions

Note = Callable[[str, object], None]
"""Writes one finding down: its kind and its value."""

_TAIL = 4096
"""Bytes of a plugin's output that are searched for its last line."""

_KILL_S = 2.0
"""How long a killed process may take to end."""

_DOING = {
    "import": "importing",
    "hooks": "checking its hooks",
    "enumerate": "enumerating",
    "open": "opening a device",
    "describe": "describing a device",
}


@dataclass(frozen=True, slots=True)
class _Fork:
    """A plugin's process, the file of its notes and the file of what it printed."""

    pid: int
    notes: int
    printed: int


def answer(order: dict[str, Any]) -> None:
    """Try the plugins of an order and print what was found, as `hal.core.survey` reads it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    deadline_s = order["deadline_s"]
    ends = time.monotonic() + deadline_s
    forks = {
        name: _start(name, module, order["opens"], deadline_s) for name, module in order["plugins"]
    }
    sys.stdout.write(
        json.dumps({name: _finish(fork, ends, deadline_s) for name, fork in forks.items()})
    )


def examine(name: str, module: str, opens: bool, note: Note) -> None:
    """Go through the stages with a plugin. Raises at the first that fails."""
    note("stage", "import")
    imported = import_plugin(module)
    note("stage", "hooks")
    plugin = plugin_of(imported, name)
    note("stage", "enumerate")
    summaries = plugin.devices()
    note("devices", [[summary.index, summary.description] for summary in summaries])
    for summary in summaries if opens else ():
        _open(plugin, summary.index, note)


def _open(plugin: Plugin, index: int, note: Note) -> None:
    note("stage", "open")
    implementation = plugin.open(index, OpenOptions())
    note("stage", "describe")
    with Device(implementation, f"{plugin.name}:{index}") as device:
        note("opened", [device.name, sorted(f.value for f in device.info.features)])


def _start(name: str, module: str, opens: bool, deadline_s: float) -> _Fork:
    notes, printed = os.memfd_create("notes"), os.memfd_create("printed")
    pid = os.fork()
    if pid == 0:
        _run(name, module, opens, deadline_s, notes, printed)
    return _Fork(pid, notes, printed)


def _run(
    name: str, module: str, opens: bool, deadline_s: float, notes: int, printed: int
) -> NoReturn:
    """The life of a fork. It never returns into its parent's code."""

    def note(kind: str, value: object) -> None:
        os.write(notes, json.dumps([kind, value]).encode() + b"\n")

    try:
        _set_apart(deadline_s, printed)
        examine(name, module, opens, note)
        note("stage", "done")
    except HalError as error:
        note("cause", str(error))
    except BaseException as error:  # noqa: BLE001  foreign code: its last words are the finding
        note("cause", said(error))
    os._exit(0)


def _set_apart(deadline_s: float, printed: int) -> None:
    """A session of its own, so that its children end with it; an alarm if nobody ends it."""
    os.setsid()
    signal.setitimer(signal.ITIMER_REAL, deadline_s + 1.0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for ours, theirs in ((nothing, 0), (printed, 1), (printed, 2)):
        os.dup2(ours, theirs)


def _finish(fork: _Fork, ends: float, deadline_s: float) -> dict[str, Any]:
    in_time = _has_ended(fork.pid, ends)
    with suppress(ProcessLookupError):
        os.killpg(fork.pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(fork.pid, signal.SIGKILL)  # it may not have made its own session yet
    killed = _has_ended(fork.pid, time.monotonic() + _KILL_S)
    found = _read(fork.notes)
    if not found["cause"] and found["stage"] != "done":
        stage = found["stage"]
        if in_time:
            _, status = os.waitpid(fork.pid, os.WNOHANG)
            found["cause"] = _ended(status, stage) + _last_words(fork.printed)
        else:
            stuck = "" if killed else "; its process cannot be killed, it is stuck in the kernel"
            found["cause"] = f"did not finish {_DOING[stage]} in {deadline_s:g} s{stuck}"
    return found


def _has_ended(pid: int, ends: float) -> bool:
    descriptor = os.pidfd_open(pid)
    try:
        left = max(0.0, ends - time.monotonic())
        return bool(select.select([descriptor], [], [], left)[0])
    finally:
        os.close(descriptor)


def _read(notes: int) -> dict[str, Any]:
    found: dict[str, Any] = {"stage": "import", "cause": "", "devices": [], "opened": []}
    for line in _bytes(notes).splitlines():
        kind, value = json.loads(line)
        if kind == "opened":
            found["opened"].append(value)
        else:
            found[kind] = value
    return found


def _ended(status: int, stage: str) -> str:
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name} at {stage}"
    return f"ended its process with status {os.waitstatus_to_exitcode(status)} at {stage}"


def _last_words(printed: int) -> str:
    """The last line that the plugin printed, often the assertion of a driver."""
    lines = _bytes(printed)[-_TAIL:].decode(errors="replace").strip().splitlines()
    return f"; it printed last: {lines[-1][:200]}" if lines else ""


def _bytes(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)
