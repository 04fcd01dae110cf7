"""Journeys run on the real device, most of them as a person would: through commands."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import stack.framework as ht

TINY = str(Path(__file__).with_name("tiny.py"))
TEXT = str(Path(json.__file__).parent)
SCREEN = 25
"""Lines that a person sees at once."""


@dataclass(frozen=True)
class Ended:
    """A command that ended."""

    code: int
    out: str
    err: str

    def assert_clear_error(self, *words):
        """It failed, and says on one screen what is wrong, in these words among others."""
        assert self.code not in (0, None), self.out
        said = self.out + self.err
        assert "Traceback" not in said, said
        assert len(said.splitlines()) < SCREEN, said
        for word in words:
            assert word in self.err, self.err


@dataclass(frozen=True)
class Commands:
    """Runs commands in a folder of the test, with a compile cache that all tests share."""

    folder: Path
    environment: dict[str, str]
    started: list[subprocess.Popen] = field(default_factory=list)

    def start(self, *command, env=None, **options):
        process = subprocess.Popen(
            [str(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            env=self.environment | (env or {}),
            **options,
        )
        self.started.append(process)
        return process

    def ended(self, process):
        out, err = process.communicate(timeout=120)
        return Ended(process.returncode, out.decode(), err.decode())

    def end_all(self):
        """End what a failed test left running."""
        for process in self.started:
            with process:
                process.kill()

    def hal(self, *arguments, **options):
        """The command `hal`, as it is installed."""
        return self.ended(self.start(Path(sys.executable).with_name("hal"), *arguments, **options))

    def start_training(self, *arguments, text=TEXT, **options):
        """The training script with a tiny model, in the folder `out`."""
        given = ("--out", "out", "--text", text, *arguments)
        return self.start(sys.executable, TINY, *given, **options)

    def train(self, *arguments, **options):
        return self.ended(self.start_training(*arguments, **options))


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """The variables of commands: nothing of the caller's settings, one compile cache."""
    base = tmp_path_factory.getbasetemp()
    # Each of several workers has a folder below the one that is theirs together.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HAL_")}
    return kept | {"HAL_CACHE_DIR": str(shared / "hal-cache"), "COLUMNS": "200"}


@pytest.fixture
def commands(tmp_path, environment):
    commands = Commands(tmp_path, environment)
    yield commands
    commands.end_all()


@pytest.fixture(autouse=True)
def _on_the_cpu():
    ht.set_default_device("cpu:0")


def wait_until(process, happened):
    """Return once `happened()`, which must be before the process ends."""
    end = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate(timeout=60)
        time.sleep(0.01)


def read_until(stream, words):
    """Read from a pipe up to these words."""
    read = b""
    while words not in read:
        assert select.select([stream], [], [], 120)[0], read
        part = os.read(stream.fileno(), 1 << 16)
        assert part, read
        read += part
