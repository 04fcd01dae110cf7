"""The suite on a CPU device; the other tests here are of what it has no case for.

Left to `hal conform cpu:0`: kernels (E, but for their grids) and the stack (J), which run on cpu:0
in the stack's own tests, and figures (K), which ask for a quiet machine. Each commit draws some of
the other groups' cases; with $HAL_TEST_ALL=1 all have their turn.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.draw import stream

SAMPLE = 30
HAL = str(Path(sys.executable).with_name("hal"))


@pytest.mark.slow
@pytest.mark.parametrize("chosen", ["--group=D,F", "--group=C,G,H,I", "--case=grid"])
def test_the_contract_is_kept(chosen):
    command = [HAL, "conform", "cpu:0", chosen, "--no-timed"]
    if os.environ.get("HAL_TEST_ALL") != "1":
        command += [f"--sample={SAMPLE}", f"--seed={stream(chosen).randrange(1 << 30)}"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0, f"{command}\n{run.stdout}{run.stderr}"
