"""Python code in a fresh interpreter, for what a process does once: import, exit, fork."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from typing import Any

from hal.conformance.expect import Wrong

ALONE_S = 30.0
"""The deadline of such a process: its start alone takes a second on a busy machine."""


def alone(code: str, environment: Mapping[str, str] | None = None, **given: Any) -> Any:
    """Run `code`, in which `given` are variables; gives what it assigned to `result`.

    Raises Wrong when the process fails, crashes or does not end.
    """
    return json.loads(_output(code, environment, given).rpartition("\n")[2])


def _output(code: str, environment: Mapping[str, str] | None, given: Mapping[str, Any]) -> str:
    head = f"import json\nglobals().update(json.loads({json.dumps(json.dumps(given))}))\n"
    text = head + textwrap.dedent(code) + "\nprint('\\n' + json.dumps(result), flush=True)\n"
    try:
        done = subprocess.run(
            [sys.executable, "-c", text],
            capture_output=True,
            text=True,
            timeout=ALONE_S,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Wrong(f"a fresh process did not end in {ALONE_S} s") from error
    if done.returncode:
        raise Wrong(f"a fresh process ended with {done.returncode}: {done.stderr.strip()[-600:]}")
    return done.stdout.rstrip("\n")
