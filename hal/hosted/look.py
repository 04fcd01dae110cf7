"""A look at a driver's devices that starts no driver in this process, and survives one that
crashes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache

from hal.cache import Cache
from hal.core.errors import PluginError
from hal.core.facts import dataclass

_DEADLINE_S = 20.0


@dataclass(frozen=True, slots=True)
class Look:
    """A program `module` that prints the devices, a line for each, as a JSON list in its last line,
    or null when no driver is installed, for which `absent` is the error's text. `repair` says what
    to do about a driver that is broken; variables that begin with one of `variables` decide what is
    found. Where `drivers` tells which drivers are installed, without starting one, what was seen
    can be kept for later processes."""

    module: str
    variables: tuple[str, ...]
    absent: str
    repair: str
    drivers: Callable[[], object] | None = None

    def listed(self) -> tuple[str, ...]:
        """A line for each device. Raises PluginError when no driver is installed or one is broken.
        A process looks once, as long as the variables stay."""
        return _listed(self, self._environment())

    def kept(self, cache: Cache) -> tuple[str, ...] | None:
        """The lines that an earlier process saw with the same drivers and variables, from a cache.
        Devices come and go: whoever goes by these lines makes sure that the driver, once it is
        started, lists the same, and calls `listed` where it does not."""
        content = cache.get(self._name()) if self.drivers else None
        try:
            lines = None if content is None else json.loads(content)
        except ValueError:
            return None
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            return None
        return tuple(lines)

    def keep(self, cache: Cache, lines: Sequence[str]) -> None:
        """Put what was seen into a cache."""
        if self.drivers:
            cache.put(self._name(), json.dumps(list(lines)).encode())

    def _environment(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(v for v in os.environ.items() if v[0].startswith(self.variables)))

    def _name(self) -> str:
        drivers = None if self.drivers is None else self.drivers()
        text = repr((self.module, self._environment(), sys.executable, drivers))
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


@cache
def _listed(look: Look, environment: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    command = [sys.executable, "-P", "-m", look.module]
    # numpy, which a binding may import, starts threads, and ends the process where it gets none.
    plain = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_DEADLINE_S, check=False, env=plain
        )
    except subprocess.TimeoutExpired as error:
        text = f"did not answer in {_DEADLINE_S:g} s"
        raise PluginError(_broken(look, text)) from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise PluginError(
            _broken(
                look, _ended(done.returncode) + (f" (it said: {said[-1][:200]})" if said else "")
            )
        )
    lines = json.loads(done.stdout.splitlines()[-1])
    if lines is None:
        raise PluginError(look.absent)
    return tuple(lines)


def tell(lines: Sequence[str] | None) -> None:
    """What the program of a look prints at last."""
    sys.stdout.write("\n" + json.dumps(lines) + "\n")


def _broken(look: Look, what: str) -> str:
    return f"the process that lists the devices ({look.module}) {what}; {look.repair}"


def _ended(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
