"""A soak of the tests' training, whose parameters have to be those of an undisturbed one.

    python -m benchmarks.fault_soak FAULTS [SEED] [--hosts 1]

On one host they are to have the same bits; sums between hosts have another order.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from stack.fault.soak import Job, soak

SCRIPT = Path(__file__).parent.parent / "tests" / "fault" / "train.py"
STEPS, STRUCK = 300, 200
"""Of a training; those in which faults happen."""
BETWEEN_HOSTS = 1e-5
"""How far parameters differ, relative to the largest."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("faults", type=int)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--hosts", type=int, default=1)
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = str(SCRIPT.parent.parent.parent)
    with tempfile.TemporaryDirectory() as name:
        command = (sys.executable, str(SCRIPT), name, str(STEPS))
        subprocess.run(command, check=True, timeout=600, stdin=subprocess.DEVNULL)
        wanted = np.fromfile(Path(name) / "final.bin", np.float32)

    def check(folder: Path) -> str:
        found = np.fromfile(folder / "final.bin", np.float32)
        if given.hosts == 1:
            return "" if found.tobytes() == wanted.tobytes() else "parameters have other bits"
        off = float(np.abs(found - wanted).max() / np.abs(wanted).max())
        return "" if off <= BETWEEN_HOSTS else f"parameters are off by {off:.2g}"

    job = Job((str(SCRIPT), ".", str(STEPS)), hosts=given.hosts, steps=STRUCK)
    report = soak(job, given.faults, given.seed, check, lambda text: print(text, flush=True))
    print(report)
    sys.exit(0 if report.is_well else 1)


if __name__ == "__main__":
    main()
