"""The suite on a CPU device; the other tests here are of what it has no case for.

Left to `hal conform cpu:0`: kernels (E, but for their grids) and the stack (J), which run on cpu:0
in the stack's own tests, and figures (K), which ask for a quiet machine.
"""

import subprocess
import sys
from pathlib import Path

import pytest

HAL = str(Path(sys.executable).with_name("hal"))


@pytest.mark.slow
@pytest.mark.parametrize("chosen", ["--group=D,F", "--group=C,G,H,I", "--case=grid"])
def test_the_contract_is_kept(chosen):
    command = [HAL, "conform", "cpu:0", chosen, "--no-timed"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
