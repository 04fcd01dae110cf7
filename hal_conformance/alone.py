"""Python code in a fresh interpreter, for what a process does once: import, exit, fork."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from typing import IO, Any

from hal_conformance import busy
from hal_conformance.expect import Wrong

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
    # Files, not pipes: a child that the code left behind would keep a pipe open.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", text],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        try:
            code_ended = busy.end_of(process, ALONE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):  # all of it has ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=ALONE_S)
        said, complaints = (_content(file) for file in (out, err))
    if code_ended is None:
        raise Wrong(f"a fresh process did not end in {ALONE_S} s")
    if code_ended:
        raise Wrong(f"a fresh process ended with {code_ended}: {complaints.strip()[-600:]}")
    return said.rstrip("\n")


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
