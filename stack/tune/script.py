"""The graphs that a script computes on a device."""

from __future__ import annotations

from collections.abc import Sequence

import click

from stack.compiler.program import GraphRequest
from stack.runtime.opening import engine_for
from stack.runtime.script import ScriptError, run_script


def graphs_of(script: str, args: Sequence[str], device: str) -> list[GraphRequest]:
    """Run a script in this process and give the graphs that it had compiled for the device.

    Ctrl-C ends the script, and what it had until then counts. Raises ScriptError for a script that
    is missing or exits with another status than 0 before it has computed anything, and whatever the
    script itself raises.
    """
    heard: list[GraphRequest] = []
    engine_for(device, heard=heard.append)
    status = run_script(script, args)
    if status and not heard:
        raise ScriptError(f"{script} ended with status {status}")
    if status:
        click.echo(f"{script} ended with status {status}; what it had computed counts", err=True)
    return heard
