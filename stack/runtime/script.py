"""Running a script in this process, to look at what it computes."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from hal.core.errors import HalError
from stack.runtime.opening import close_all


class ScriptError(HalError):
    """The script did not run to its end."""

    next_step = "make the script run by itself first"


def run_script(script: str, args: Sequence[str]) -> object:
    """Run a script as `python SCRIPT ARGS` would, and close all engines; what it exits with, 0 for
    success.

    Ctrl-C ends the script, which counts as success. Raises ScriptError for a script that is
    missing, and whatever the script itself raises.
    """
    if not Path(script).is_file():
        raise ScriptError(f"there is no script {script!r}")
    before = sys.argv, sys.path[:]
    sys.argv = [script, *args]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        return end.code or 0
    except KeyboardInterrupt:
        pass
    finally:
        close_all()
        sys.argv, sys.path[:] = before
    return 0
