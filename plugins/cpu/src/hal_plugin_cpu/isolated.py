"""Compilation in a process of its own, for text that could end the one that compiles it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

from hal.core.errors import CompileError
from hal_plugin_cpu.jit import compile_here

DEADLINE_S = 20.0
"""How long a program may take to compile."""

_MEMORY_NBYTES = 8 << 30
_REFUSED = 3


def compile_isolated(text: str, entry: str) -> bytes:
    """As `compile_here`, by a process that may crash or never end.

    Raises CompileError also when it does.
    """
    request = json.dumps([text, entry]).encode()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-m", __name__]
    try:
        done = subprocess.run(
            command, input=request, env=environment, capture_output=True, timeout=DEADLINE_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        text = f"LLVM did not compile the program in {DEADLINE_S:g} s"
        raise CompileError(text, text) from error
    if done.returncode == 0:
        return done.stdout
    log = done.stderr.decode(errors="replace")
    if done.returncode == _REFUSED:
        message, log, line = json.loads(log)
        raise CompileError(message, log, line)
    last = log.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
    raise CompileError(f"LLVM failed on the program: {last[0]}", log or last[0])


def _main() -> int:
    """The process: a request on its input, object code on its output or a refusal on the other."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_NBYTES, _MEMORY_NBYTES))
    text, entry = json.load(sys.stdin)
    try:
        code = compile_here(text, entry)
    except CompileError as error:
        sys.stderr.write(json.dumps([str(error), error.log, error.line]))
        return _REFUSED
    sys.stdout.buffer.write(code)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
