"""A program on a Ray of its own."""

import json
import os
import subprocess
import sys

WAIT_S = 300.0
OWN = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is told to Ray's makers
    "RAY_memory_monitor_refresh_ms": "0",  # who else fills this machine's memory ends no rank
    "RAY_raylet_start_wait_time_s": "120",  # nor does who else keeps it busy
}


def run(program, folder, *arguments):
    """What a program prints last, as JSON. It runs in a network of its own, in which Ray takes
    127.0.0.1."""
    apart = 'ip link set lo up && exec "$@"'
    command = ["unshare", "-n", "sh", "-c", apart, "sh", sys.executable, "-c", program]
    done = subprocess.run(
        [*command, str(folder), *arguments],
        env={**os.environ, **OWN},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
