"""Kill the server of a remote device wherever its client may be, and say how soon that one hears.

    python -m benchmarks.remote_kills [DEVICE] [--times 1]

Each place is a client of its own, with a server of its own that is killed while the client is
there, or before it comes there. What it hears is to be DeviceLost with the cause, within 1 s of the
kill, or of the call behind it. Ends with 1 where it is not.
"""

from __future__ import annotations

import argparse
import os
import select
import subprocess
import sys
import tempfile
import threading
import time

from hal.core.errors import DeviceLost, FailureKind
from plugins.remote.tests.test_loss import AFTER, DURING, Client, again

MOST_S = 1.0
LONGEST_S = 60.0
THERE_S = 0.3
"""After so long a client is where it is to be."""
CAUSE = "the connection to the server ended"


def served(device: str, at: str) -> subprocess.Popen[str]:
    """A server of the device at an address, which `remote:0` is then at."""
    server = subprocess.Popen(
        [sys.executable, "-m", "hal", "serve", device, "--at", at],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    if not select.select([server.stdout], [], [], LONGEST_S)[0]:
        raise TimeoutError(f"the server of {device} says nothing")
    line = server.stdout.readline().strip()
    os.environ["HAL_REMOTE"] = line.removeprefix("HAL_REMOTE='").removesuffix("'")
    return server


def heard(device: str, place: str, is_after: bool) -> tuple[float, BaseException | None]:
    """Seconds until the client in a place heard of the loss, and what."""
    killed, found = threading.Event(), list[BaseException | None]()
    with tempfile.TemporaryDirectory() as name, served(device, f"unix:{name}/s") as server:
        client = Client()

        def be_there() -> None:
            try:
                if is_after:
                    again(lambda: AFTER[place](client))
                else:
                    DURING[place](client, killed)
            except Exception as error:  # noqa: BLE001  whatever it is, it is looked at
                found.append(error)

        thread = threading.Thread(target=be_there, daemon=True)
        if not is_after:
            thread.start()
            time.sleep(THERE_S)
        began_s = time.monotonic()
        server.kill()
        killed.set()
        if is_after:
            server.wait(LONGEST_S)
            began_s = time.monotonic()
            thread.start()
        thread.join(LONGEST_S)
        took_s = time.monotonic() - began_s
        client.device.close()
    return took_s, found[0] if found else None


def wrong(took_s: float, error: BaseException | None) -> str:
    """What is wrong with that, "" for nothing."""
    if not isinstance(error, DeviceLost):
        return f"it heard {error!r}"
    failure = error.failure
    if failure.kind is not FailureKind.DEVICE_LOST or CAUSE not in failure.message:
        return f"the cause is {failure}"
    return f"it took {took_s:.2f} s" if took_s > MOST_S else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("device", nargs="?", default="cpu:0")
    parser.add_argument("--times", type=int, default=1)
    given = parser.parse_args()
    places = [(place, False) for place in DURING] + [(place, True) for place in AFTER]
    times, defects = list[float](), 0
    for place, is_after in places * given.times:
        took_s, error = heard(given.device, place, is_after)
        times.append(took_s)
        if why := wrong(took_s, error):
            defects += 1
            print(f"{place}{' after it' if is_after else ''}: {why}", flush=True)
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
    print(f"{len(times)} kills of a server of {given.device} in {len(places)} places: ", end="")
    print(f"{defects} wrong; heard of within {max(times):.3f} s at most; {load}")
    sys.exit(1 if defects else 0)


if __name__ == "__main__":
    main()
