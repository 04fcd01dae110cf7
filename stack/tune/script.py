"""The graphs that a script computes on a device."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from hal.core.errors import HalError
from stack.compiler.program import GraphRequest
from stack.runtime.opening import close_all, engine_for


class ScriptError(HalError):
    """The script did not run to its end."""

    next_step = "make the script run by itself, then tune it"


def graphs_of(script: str, args: Sequence[str], device: str) -> list[GraphRequest]:
    """Run a script in this process and give the graphs that it had compiled for the device.

    Ctrl-C ends the script, and what it had until then counts. Raises ScriptError for a script that
    is missing or exits with another status than 0, and whatever the script itself raises.
    """
    if not Path(script).is_file():
        raise ScriptError(f"there is no script {script!r}")
    heard: list[GraphRequest] = []
    engine_for(device, heard=heard.append)
    before = sys.argv, sys.path[:]
    sys.argv = [script, *args]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code and not heard:
            raise ScriptError(f"{script} ended with status {end.code}") from end
        if end.code:
            click.echo(
                f"{script} ended with status {end.code}; what it had computed counts", err=True
            )
    except KeyboardInterrupt:
        pass
    finally:
        close_all()
        sys.argv, sys.path[:] = before
    return heard
