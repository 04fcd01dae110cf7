"""A network of one's own, in which nobody else's sockets are."""

from __future__ import annotations

import os
import subprocess
import sys

_APART = "HAL_SOAK_APART"
_LONG_S = 86_400.0


def go_apart(module: str) -> None:
    """Start this program again in a network namespace of its own, with a loopback alone, and end as
    it does. Needs root."""
    if os.environ.get(_APART):
        return
    if os.geteuid():
        sys.exit("a network namespace and other user ids need root")
    command = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    again = [sys.executable, "-m", module, *sys.argv[1:]]
    done = subprocess.run([*command, *again], env={**os.environ, _APART: "1"}, timeout=_LONG_S)
    sys.exit(done.returncode)
