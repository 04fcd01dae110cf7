"""A look at the installed plugins from outside: each is tried in a process of its own.

A plugin that crashes, hangs, leaves through `sys.exit` or starts threads at import does so there.
The process that asks imports no vendor module.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from hal.core.description import DeviceSummary
from hal.core.discovery.manifest import Found
from hal.core.discovery.starving import PATIENCE
from hal.core.errors import InvalidCall, PluginError
from hal.core.facts import dataclass

DEADLINE_VARIABLE = "HAL_SURVEY_S"
DEADLINE_S = 10.0
"""How long a plugin may take for all stages together, as `Allowance` counts it."""

STAGES = ("import", "hooks", "enumerate")
"""What is tried with a plugin, in this order, before its devices are opened and described."""

_GRACE_S = 20.0
"""What the surveying process itself may take beyond the plugins' deadline."""

_START = """
import json, sys
order = json.load(sys.stdin)
sys.path[:] = order["path"]
from hal.core.discovery.survey_process import answer
answer(order)
"""


@dataclass(frozen=True, slots=True)
class Opened:
    """A device that could be opened: the features that it declares, and which of its numbers nobody
    has confirmed."""

    name: str
    features: tuple[str, ...]
    guessed: str


@dataclass(frozen=True, slots=True)
class RefusedDevice:
    """A device that could not be opened or described: the `stage`, "open" or "describe", and
    why."""

    name: str
    stage: str
    cause: str


@dataclass(frozen=True, slots=True)
class PluginLook:
    """What a process of its own found out about a plugin.

    `cause` is "" when it lists its devices, else it says why it got no further than `stage`.
    `started` says what its import did that an import may not. Where devices were to be opened, each
    is `opened` or `refused`.
    """

    plugin: str
    stage: str
    cause: str
    devices: tuple[DeviceSummary, ...] = ()
    started: tuple[str, ...] = ()
    opened: tuple[Opened, ...] = ()
    refused: tuple[RefusedDevice, ...] = ()


def survey(plugins: Sequence[Found], opens: bool = False) -> dict[str, PluginLook]:
    """Try each plugin, all at once; with `opens` also open, describe and close its devices, each in
    a process of its own.

    Ends within $HAL_SURVEY_S (10) seconds and a little more, for which no plugin waited for a
    processor; on the busiest machine within 20 times as many. Gives a look for every plugin, by
    name. Raises InvalidCall for a value of the variable that is no time, PluginError when no
    Python process can be started.
    """
    if not plugins:
        return {}
    text = os.environ.get(DEADLINE_VARIABLE, "")
    try:
        seconds = float(text) if text else DEADLINE_S
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 3600:
        raise InvalidCall(
            f"{DEADLINE_VARIABLE} is {text!r}; it must be a number of seconds below 3600"
        )
    answers = _ask(
        {
            "path": sys.path,
            "plugins": [[found.name, found.module] for found in plugins],
            "opens": opens,
            "deadline_s": seconds,
        }
    )
    return {found.name: _look(found.name, answers[found.name]) for found in plugins}


def _ask(order: dict[str, Any]) -> dict[str, Any]:
    import subprocess  # noqa: PLC0415  (to open a device takes no survey)

    command = [sys.executable, "-P", "-c", _START]
    limit_s = order["deadline_s"] * PATIENCE + _GRACE_S
    # numpy, which most plugins import, would start threads that are not the plugin's.
    quiet = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command,
            input=json.dumps(order).encode(),
            capture_output=True,
            timeout=limit_s,
            env=quiet,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        late = isinstance(error, subprocess.TimeoutExpired)
        why = f"gave no answer within {limit_s:g} s" if late else "cannot be started"
        text = f"{command[0]} {why}: {error}"
        raise PluginError(f"the plugins cannot be surveyed: {text}") from error
    try:
        answers: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        last = " ".join(done.stderr.decode(errors="replace").splitlines()[-1:])
        text = f"{command[0]} ended with status {done.returncode} and said {last!r}"
        raise PluginError(f"the plugins cannot be surveyed: {text}") from error
    return answers


def _look(name: str, answer: dict[str, Any]) -> PluginLook:
    return PluginLook(
        name,
        answer["stage"],
        answer["cause"],
        tuple(DeviceSummary(*pair) for pair in answer["devices"]),
        tuple(answer["started"]),
        tuple(Opened(device, tuple(f), guessed) for device, f, guessed in answer["opened"]),
        tuple(RefusedDevice(*row) for row in answer["refused"]),
    )
