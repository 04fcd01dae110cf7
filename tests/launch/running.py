"""`hal run` as a user starts it, in a folder of its own."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LONG_S = 180
"""Ranks of three vendors compile all of a first step where the caches are empty."""
HAL = (sys.executable, "-c", "from hal_tools.cli import main; main(prog_name='hal')")


@dataclass
class Done:
    code: int
    out: list
    err: list


@dataclass
class Folder:
    """Where scripts are written and run."""

    path: Path

    def write(self, text, name="script.py"):
        (self.path / name).write_text(text)
        return name

    def start(self, *arguments, **options):
        """`hal run`, with pipes, in a session of its own."""
        pipe = subprocess.PIPE
        standard = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe}
        command = (*HAL, "run", *map(str, arguments))
        return subprocess.Popen(
            command, cwd=self.path, start_new_session=True, **{**standard, **options}
        )

    def run(self, *arguments):
        """Run it to its end."""
        with self.start(*arguments) as process:
            return finished(process)


def finished(process):
    """What a launcher wrote, and its exit status."""
    try:
        out, err = process.communicate(timeout=LONG_S)
    finally:
        process.kill()
    lines = [sorted(out.decode().splitlines()), err.decode().splitlines()]
    return Done(process.returncode, *lines)


def read_lines(pipe, count):
    """So many lines, as they come."""
    until_s, got = time.monotonic() + LONG_S, b""
    while got.count(b"\n") < count:
        ready = select.select([pipe], [], [], max(0.0, until_s - time.monotonic()))[0]
        data = os.read(pipe.fileno(), 1 << 16) if ready else b""
        assert data, f"only {got!r} came"
        got += data
    return sorted(got.decode().splitlines())


def read_to_end(screen, wanted=None):
    """What comes from a terminal until its last user has gone, or until it matches what is
    wanted."""
    until_s, got = time.monotonic() + LONG_S, b""
    while (
        not (wanted and re.search(wanted, got, re.DOTALL))
        and (select.select([screen], [], [], max(0.0, until_s - time.monotonic()))[0])
    ):
        try:
            got += os.read(screen, 1 << 16)
        except OSError:  # how Linux says that nobody has the terminal open any more
            break
    return got


def has_ended(process):
    """Whether a process ends soon, by its number; a zombie has ended."""
    until_s = time.monotonic() + LONG_S
    while time.monotonic() < until_s:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    return False
