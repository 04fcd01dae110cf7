"""Train without any fault beside busy loops, and say who was called dead, slow or wrong.

    python -m benchmarks.fault_alarms MINUTES [--busy 8] [--ranks 4] [--hosts 1] [--nice 0]

With `--hosts 2` all ranks are on one host and the spare on another one, an agent each, so that the
launcher misses the one with the ranks as soon as it may. Whatever is found is a false alarm. Ends
with 1 where somebody is called dead, or where there are more alarms than one in 100 steps.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.fault_kills import SCRIPT, Events

FORGIVEN = ("slow", "wrong")
"""What is only named, or undone."""

END_S = 60.0
"""How long the job may take to end when it is asked to."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("minutes", type=float)
    parser.add_argument("--busy", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--hosts", type=int, default=1, choices=(1, 2))
    parser.add_argument("--nice", type=int, default=0)
    given = parser.parse_args()
    os.nice(given.nice)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        for _ in range(given.busy):
            loop = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(loop.kill)
        file = Path(name) / "events"
        command = [sys.executable, "-m", "hal", "run", "-n", str(given.ranks), "--least", "1"]
        command += ["--spares", "1", "--restarts", "9", "--devices", "cpu:0"]
        if given.hosts == 2:
            hosts = Path(name) / "hosts"
            hosts.write_text(f"one slots={given.ranks}\ntwo\n")
            command += ["--hosts", str(hosts), "--address", "127.0.0.1"]
            command += ["--shell", "sh -c 'eval \"exec $1\"' {host}"]
        command += ["--events", str(file), str(SCRIPT), name, "1000000"]
        environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parent.parent.parent)}
        job = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        stack.callback(job.kill)
        loads, until_s = [], time.monotonic() + given.minutes * 60
        while time.monotonic() < until_s and job.poll() is None:
            time.sleep(5.0)
            loads.append(os.getloadavg()[0])
        seen = Events(file).read()
        job.terminate()
        job.wait(timeout=END_S)
    steps = max((e["step"] for e in seen if e["event"] == "step"), default=0)
    found = [e for e in seen if e["event"] in ("found", "lost")]
    dead = [e for e in found if e.get("kind") not in FORGIVEN]
    load = f"load {min(loads, default=0):.0f} to {max(loads, default=0):.0f}"
    print(f"{steps} steps in {given.minutes:g} minutes beside {given.busy} busy loops, {load}:")
    print(f"{len(dead)} called dead, {len(found) - len(dead)} other alarms")
    for event in found:
        print({key: event.get(key) for key in ("at_s", "event", "kind", "rank", "step", "why")})
    sys.exit(0 if steps and not dead and len(found) * 100 <= steps else 1)


if __name__ == "__main__":
    main()
