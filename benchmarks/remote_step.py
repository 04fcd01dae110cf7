"""What a step of examples/train_gpt.py takes on a remote device, against the device itself.

    python -m benchmarks.remote_step [DEVICE] [--steps 12] [--rounds 2]

The server is another process of this machine, over TCP on the loopback. Both train in turns, and
each counts by its best step behind the third. Ends with 1 beyond `MOST` times the time, or where a
loss differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.remote_kills import served

MOST = 1.3
WARM = 3
LONGEST_S = 280.0
SCRIPT = Path(__file__).parents[1] / "examples" / "train_gpt.py"


def trained(device: str, steps: int) -> tuple[float, list[float]]:
    """The most tokens/s of a step, and the losses."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "steps.json"
        command = [sys.executable, str(SCRIPT), "--device", device, "--steps", str(steps)]
        command += ["--out", folder, "--json", str(log)]
        subprocess.run(command, check=True, capture_output=True, timeout=LONGEST_S)
        rows = [row for row in map(json.loads, log.read_text().splitlines()) if "loss" in row]
    return max(row["tokens_per_s"] for row in rows[WARM:]), [row["loss"] for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("device", nargs="?", default="cpu:0")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    fastest = {given.device: 0.0, "remote:0": 0.0}
    losses: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "secret"
        secret.touch(0o600)
        secret.write_text(os.urandom(16).hex())
        os.environ["HAL_REMOTE_SECRET"] = str(secret)
        with served(given.device, "127.0.0.1:0") as server:
            for device in list(fastest) * given.rounds:
                tokens_per_s, losses[device] = trained(device, given.steps)
                fastest[device] = max(fastest[device], tokens_per_s)
            server.terminate()
    here, there = fastest.values()
    same = len(set(map(tuple, losses.values()))) == 1
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
    print(
        f"a step on remote:0 takes {here / there:.2f} times that on {given.device} ({MOST}): ",
        end="",
    )
    print(
        f"{there:.0f} against {here:.0f} tokens/s; losses {'equal' if same else 'differ'}; {load}"
    )
    sys.exit(0 if same and here / there <= MOST else 1)


if __name__ == "__main__":
    main()
