"""Our own C once more, compiled with a sanitizer into a folder of its own.

The normal modules stay as they are. `child/sitecustomize.py` makes a Python process, and those that
it starts, import the modules of the folder instead; a `gcc` in the folder's `bin` compiles the
emulator's process, which is built when it is used, in the same way.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from enum import StrEnum
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
BUILD_S = 300.0
_BUILDERS = ("build_engine.py", "plugins/cpu/build_native.py")
_SOURCES = ("stack/comm/engine/native/*", "plugins/cpu/src/hal_plugin_cpu/native/*")
_COMPILE = (
    "import runpy, sys; runpy.run_path(sys.argv[1])['ffibuilder'].compile(tmpdir=sys.argv[2])"
)
_WORKER_GCC = """#!/bin/sh
unset LD_PRELOAD
case " $* " in *" -rdynamic "*) exec {gcc} {flags} "$@" ;; esac
exec {gcc} "$@"
"""
_PLAIN_GCC = """#!/bin/sh
exec {gcc} "$@" -O0
"""
"""Behind what a builder asks for: every access stays, and GCC takes a third of the time."""


class Sanitizer(StrEnum):
    """What is looked for; the values are those of GCC's -fsanitize."""

    ADDRESS = "address,undefined"
    THREAD = "thread"

    @property
    def runtime(self) -> str:
        """The name of GCC's library that must be loaded first."""
        return "libasan.so" if self is Sanitizer.ADDRESS else "libtsan.so"

    @property
    def flags(self) -> tuple[str, ...]:
        """For GCC, when it compiles and when it links."""
        return (f"-fsanitize={self.value}", "-fno-omit-frame-pointer", "-g1")


def gcc() -> str | None:
    """GCC, whose sanitizers these are."""
    return shutil.which("gcc")


def runtime(sanitizer: Sanitizer) -> Path | None:
    """Where the compiler has the sanitizer's library; None where it has none."""
    return _library(sanitizer.runtime)


def preloaded(sanitizer: Sanitizer) -> str:
    """What a process that runs under the sanitizer loads first: with its library that of C++, whose
    exceptions it can follow only where it finds them at its start."""
    libraries = [runtime(sanitizer), _library("libstdc++.so.6")]
    return " ".join(str(library) for library in libraries if library is not None)


def _library(name: str) -> Path | None:
    command = [str(gcc()), f"-print-file-name={name}"]
    plain = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    found = subprocess.run(
        command, capture_output=True, text=True, timeout=BUILD_S, check=True, env=plain
    )  # a test that runs under one sanitizer asks, too, and not every gcc starts with it
    path = Path(found.stdout.strip())
    return path.resolve() if path.is_absolute() else None


def build(sanitizer: Sanitizer) -> Path:
    """The folder with the modules under their packages' names and `bin/gcc`, made unless there."""
    name = f"{sanitizer.name.lower()}-{_digest(sanitizer)}"
    folder = ROOT / "build" / "sanitizers" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        _take(lock)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as work:
                made = Path(work) / name
                _compile(sanitizer, Path(work), made)
                made.rename(folder)
    return folder


def _take(lock: IO[str]) -> None:
    """Wait until no other process builds the folder. Raises TimeoutError."""
    until_s = time.monotonic() + BUILD_S
    while time.monotonic() < until_s:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.1)
    raise TimeoutError(f"another process builds with {lock.name} for {BUILD_S:g} s")


def _digest(sanitizer: Sanitizer) -> str:
    paths = [ROOT / name for name in _BUILDERS]
    paths += [path for pattern in _SOURCES for path in sorted(ROOT.glob(pattern))]
    texts = (str(sanitizer.flags), _WORKER_GCC, _PLAIN_GCC)
    parts = [*(text.encode() for text in texts), *(path.read_bytes() for path in paths)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _compile(sanitizer: Sanitizer, work: Path, made: Path) -> None:
    flags = " ".join(sanitizer.flags)
    compiler = _script(work / "gcc", _PLAIN_GCC.format(gcc=gcc()))
    environment = os.environ | {"CFLAGS": flags, "LDFLAGS": flags, "CC": str(compiler)}
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _COMPILE, str(ROOT / builder), str(work)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for builder in _BUILDERS
    ]
    logs = [child.communicate(timeout=BUILD_S)[0] for child in running]
    failed = [log for child, log in zip(running, logs, strict=True) if child.returncode]
    if failed:
        raise RuntimeError(f"the C does not compile with {flags}:\n" + "\n".join(failed))
    for module in work.rglob("*.so"):
        target = made / module.relative_to(work)
        target.parent.mkdir(parents=True)
        module.rename(target)
    (made / "bin").mkdir()
    _script(made / "bin" / "gcc", _WORKER_GCC.format(gcc=gcc(), flags=flags))


def _script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path
