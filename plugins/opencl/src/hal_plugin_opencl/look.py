"""A look at the devices that starts no driver in this process, and survives one that crashes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import cache

from hal.core.errors import PluginError

_DEADLINE_S = 20.0
_VARIABLES = ("OCL_", "OPENCL_", "POCL_", "CUDA_VISIBLE", "ROCR_VISIBLE")
"""What the loader's and the drivers' environment variables begin with."""


def listed() -> tuple[str, ...]:
    """A line for each device. Raises PluginError when no driver is installed or one is broken."""
    return _listed(tuple(sorted(v for v in os.environ.items() if v[0].startswith(_VARIABLES))))


@cache
def _listed(environment: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    command = [sys.executable, "-m", "hal_plugin_opencl.find"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise PluginError(_broken(f"did not answer in {_DEADLINE_S:g} s")) from error
    if done.returncode:
        raise PluginError(_broken(_ended(done.returncode) + _last_words(done.stderr)))
    lines = json.loads(done.stdout.splitlines()[-1])
    if lines is None:
        raise PluginError(
            "no OpenCL driver (ICD) is installed; install the vendor's, "
            "or PoCL with `pip install hal-plugin-opencl[pocl]`"
        )
    return tuple(lines)


def _broken(what: str) -> str:
    return (
        f"the process that lists the OpenCL devices {what}; repair the driver, or leave it out: "
        "the variable OCL_ICD_VENDORS names the folder of the drivers (/etc/OpenCL/vendors)"
    )


def _ended(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"


def _last_words(printed: bytes) -> str:
    lines = printed.decode(errors="replace").strip().splitlines()
    return f" (it said: {lines[-1][:200]})" if lines else ""
