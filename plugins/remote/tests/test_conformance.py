"""A remote device keeps the contract where a connection could break it: order, waits and peers.

`hal conform remote:0` runs the whole suite, with `hal serve` for the device that is meant. Here
each commit draws a sample of the two groups; $HAL_REMOTE_CASES=all takes all.
"""

import os
import subprocess

import pytest
from hal_plugin_remote.address import places

from tests.draw import stream

SAMPLE = 16

PLUGIN = {"HAL_CPU_DEVICES": "8", "HAL_CPU_PROGRESS": "0.2", "HAL_CPU_MEMORY": str(1 << 30)}


@pytest.mark.turns
@pytest.mark.slow
def test_order_waits_and_peers(serve, hal_command):
    serve(*(f"cpu:{i}" for i in range(8)), **PLUGIN)
    assert len(places()) == 8
    command = [hal_command, "conform", "remote:0", "--group", "F,G", "--no-timed"]
    if os.environ.get("HAL_REMOTE_CASES") != "all":
        command += ["--sample", str(SAMPLE), "--seed", str(stream("remote").randrange(1 << 30))]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, f"{command}\n{run.stdout}{run.stderr}"
