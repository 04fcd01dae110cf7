"""The engine's C, fed with what no rank says, under AddressSanitizer and UBSan."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.sanitizers.build import ROOT, Sanitizer, gcc

NATIVE = ROOT / "stack" / "comm" / "engine" / "native"
HARNESS = Path(__file__).with_name("fuzz.c")
_INCLUDED = {"group.c", "message.c", "ring.c"}
_OF_PYTHON = {"caller.c"}
BUILD_S = 300


def build(folder: Path) -> Path:
    """The fuzzer, compiled into a folder."""
    program = folder / "fuzz"
    left_out = _INCLUDED | _OF_PYTHON
    sources = [str(path) for path in NATIVE.glob("*.c") if path.name not in left_out]
    flags = [*Sanitizer.ADDRESS.flags, "-fno-sanitize-recover=all", "-O0", "-std=gnu11", "-pthread"]
    command = [str(gcc()), *flags, f"-I{NATIVE}", str(HARNESS), *sources, "-o", str(program)]
    subprocess.run(command, check=True, timeout=BUILD_S)
    return program


def fuzz(program: Path, frames: int, seed: int, deadline_s: float) -> tuple[int, str]:
    """Exit status and words of a run of so many frames."""
    command = [str(program), str(frames), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s, check=False)
    return done.returncode, done.stdout + done.stderr
