"""One unmodified PyTorch program on several devices: `python -m benchmarks.torch_devices`.

Trains `examples/torch_gpt.py` on PyTorch's CPU device and on each device named, a process at a
time, draws `docs/torch-devices.png`, and says how far the losses are apart.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from benchmarks.machine import ROOT

PEER = "PyTorch's CPU device"
DEVICES = ("cpu:0", "opencl:0", "sunway:0")
MOST_S = 3600


def losses(device: str | None, steps: int) -> np.ndarray:
    """The loss of each step, (steps,), on a device of HAL or (None) of PyTorch."""
    name = "cpu" if device is None else "hal"
    given = [str(ROOT / "examples" / "torch_gpt.py"), "--device", name, "--steps", str(steps)]
    env = os.environ | ({} if device is None else {"HAL_DEVICES": device})
    ended = subprocess.run(
        [sys.executable, *given], env=env, timeout=MOST_S, text=True, stdout=-1, check=True
    )
    return np.array([float(found) for found in re.findall(r"loss (\S+)", ended.stdout)])


def main(devices: Sequence[str], steps: int) -> None:
    theirs = losses(None, steps)
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    at = np.arange(1, steps + 1)
    left.plot(at, theirs, color="black", linewidth=4, alpha=0.25, label=PEER)
    for device in devices:
        mine = losses(device, steps)
        apart = np.abs(mine - theirs) / theirs
        print(f"{device}: last loss {mine[-1]:.6f}, at most {apart.max():.1e} apart", flush=True)
        left.plot(at, mine, linewidth=1, label=device)
        # Losses are printed with 6 digits after the point: what is nearer counts as half a digit.
        right.plot(at, np.maximum(apart, 0.5e-6 / theirs), linewidth=1, label=device)
    left.set(xlabel="step", ylabel="loss", title="examples/torch_gpt.py, unmodified")
    right.set(xlabel="step", yscale="log", title=f"relative distance from {PEER}")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(ROOT / "docs" / "torch-devices.png", dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("devices", nargs="*", default=DEVICES)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    main(options.devices, options.steps)
