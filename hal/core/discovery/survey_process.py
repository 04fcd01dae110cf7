"""The process behind `survey`: it forks once per plugin and watches what becomes of them.

It imports no plugin itself, so it has one thread when it forks and stays whole. A fork tells how
far it got through a file, line by line, so that its last words survive it.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hal.core.description import GUESSED
from hal.core.device import Device
from hal.core.discovery.loading import Plugin, import_plugin, plugin_of, said
from hal.core.discovery.starving import PATIENCE, Allowance
from hal.core.errors import HalError
from hal.core.facts import dataclass
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
    "open": "opening",
    "describe": "describing itself",
}


@dataclass(frozen=True, slots=True)
class _Fork:
    """A plugin's process, the file of its notes, the file of what it printed, and its time."""

    pid: int
    notes: int
    printed: int
    allowance: Allowance


def answer(order: dict[str, Any]) -> None:
    """Try the plugins of an order and print what was found, as `survey` reads it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    deadline_s = order["deadline_s"]
    forks = {
        name: _start(name, module, order["opens"], deadline_s) for name, module in order["plugins"]
    }
    sys.stdout.write(json.dumps({name: _finish(fork, deadline_s) for name, fork in forks.items()}))


def examine(name: str, module: str, opens: bool, limit_s: float, note: Note) -> None:
    """Go through the stages with a plugin. Raises at the first that fails; of each device that ends
    its process it notes how. Whoever watches this process ends it with those that hang."""
    note("stage", "import")
    before = _running()
    imported = import_plugin(module)
    note("started", [text for text, there in _running().items() if there > before[text]])
    note("stage", "hooks")
    plugin = plugin_of(imported, name)
    note("stage", "enumerate")
    summaries = plugin.devices()
    note("devices", [[summary.index, summary.description] for summary in summaries])
    note("stage", "done")
    # Drivers may crash, hang and hold each other up: each device has a process of its own.
    children = {s.index: _open_apart(plugin, s.index, note) for s in summaries if opens}
    opening = {os.pidfd_open(pid): index for index, (pid, _) in children.items()}
    while opening:
        ended, _, _ = select.select(list(opening), [], [], limit_s)
        if not ended:
            return
        for descriptor in ended:
            os.close(descriptor)
            index = opening.pop(descriptor)
            pid, printed = children[index]
            _, status = os.waitpid(pid, os.WNOHANG)
            if status:
                note("ended", [f"{name}:{index}", status, _last_words(printed)])


def _running() -> dict[str, int]:
    """How many of each thing this process has that the import of a plugin may not start."""
    threads = len(os.listdir("/proc/self/task"))
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as children:
        return {"a thread": threads, "a process": len(children.read().split())}


def _open_apart(plugin: Plugin, index: int, note: Note) -> tuple[int, int]:
    """Open a device in a process of its own; gives that and the file of what it prints."""
    printed = file("printed")
    pid = os.fork()
    if pid:
        return pid, printed
    name, stage = f"{plugin.name}:{index}", "open"
    try:
        for stream in (1, 2):
            os.dup2(printed, stream)
        note("at", [name, stage])
        implementation = plugin.open(index, OpenOptions())
        stage = "describe"
        note("at", [name, stage])
        with Device(implementation, name) as device:
            info = device.info
            note("opened", [name, sorted(f.value for f in info.features), info.facts.get(GUESSED)])
    except HalError as error:
        note("refused", [name, stage, str(error)])
    except BaseException as error:  # noqa: BLE001  foreign code: its last words are the finding
        note("refused", [name, stage, said(error)])
    os._exit(0)


def file(name: str) -> int:
    """A file in memory in which several processes may write at once: what each of them writes goes
    behind all else. Without that two that write at the same time write to the same place."""
    made = os.memfd_create(name)
    fcntl.fcntl(made, fcntl.F_SETFL, fcntl.fcntl(made, fcntl.F_GETFL) | os.O_APPEND)
    return made


def _start(name: str, module: str, opens: bool, deadline_s: float) -> _Fork:
    notes, printed = file("notes"), file("printed")
    allowance, limit_s = Allowance(deadline_s), deadline_s * PATIENCE
    pid = os.fork()
    if pid == 0:
        # The life of a fork. It never returns into its parent's code.

        def note(kind: str, value: object) -> None:
            os.write(notes, json.dumps([kind, value]).encode() + b"\n")

        try:
            # A session of its own, so that its children end with it; an alarm if nobody ends it
            os.setsid()
            signal.setitimer(signal.ITIMER_REAL, limit_s + 1.0)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for ours, theirs in ((nothing, 0), (printed, 1), (printed, 2)):
                os.dup2(ours, theirs)
            examine(name, module, opens, limit_s, note)
        except HalError as error:
            note("cause", str(error))
        except BaseException as error:  # noqa: BLE001  foreign code: its last words are the finding
            note("cause", said(error))
        os._exit(0)
    return _Fork(pid, notes, printed, allowance)


def _finish(fork: _Fork, deadline_s: float) -> dict[str, Any]:
    in_time = fork.allowance.has_ended(fork.pid)
    with suppress(ProcessLookupError):
        os.killpg(fork.pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(fork.pid, signal.SIGKILL)  # it may not have made its own session yet
    killed = Allowance(_KILL_S).has_ended(fork.pid)
    found = _read(fork.notes)
    late = f"in {deadline_s:g} s" + (
        "" if killed else "; its process cannot be killed, it is stuck in the kernel"
    )
    if not found["cause"] and found["stage"] != "done":
        if in_time:
            _, status = os.waitpid(fork.pid, os.WNOHANG)
            found["cause"] = _ended(status, found["stage"]) + _last_words(fork.printed)
        else:
            found["cause"] = f"did not finish {_DOING[found['stage']]} {late}"
    answered = {row[0] for row in (*found["opened"], *found["refused"])}
    for name, stage in found.pop("at").items():
        if name not in answered:
            status, words = found["ended"].get(name, (0, ""))
            cause = (
                _ended(status, stage) + words
                if status
                else f"did not finish {_DOING[stage]} {late}"
            )
            found["refused"].append([name, stage, cause])
    del found["ended"]
    order = [f"{row[0]}" for row in found["devices"]]
    for kind in ("opened", "refused"):
        found[kind].sort(key=lambda row: order.index(row[0].rpartition(":")[2]))
    return found


def _read(notes: int) -> dict[str, Any]:
    """The notes: the last of a kind, all of what was opened and refused, and by device how far it
    came and how its process ended."""
    found: dict[str, Any] = {"stage": "import", "cause": "", "devices": [], "started": []}
    found |= {"opened": [], "refused": [], "at": {}, "ended": {}}
    for line in _bytes(notes).splitlines():
        kind, value = json.loads(line)
        match kind:
            case "opened" | "refused":
                found[kind].append(value)
            case "at" | "ended":
                found[kind][value[0]] = value[1] if kind == "at" else value[1:]
            case _:
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
