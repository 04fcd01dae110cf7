"""Kill ranks under `torchrun --max-restarts`, and under torchft: how long until a step was done.

torchft is not in this project's environment: `pip install --target FOLDER torchft
opentelemetry-sdk opentelemetry-exporter-otlp-proto-http`, and PYTHONPATH=FOLDER.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

GIVEN_UP_S = 120.0
"""Ranks that do no step for so long have not come back."""

TORCHRUN = """
import os, sys, time
import torch.distributed as dist, torch
dist.init_process_group("gloo")
with open(f"{sys.argv[1]}/{dist.get_rank()}", "a", buffering=1) as file:
    file.write(f"start {os.getpid()} {time.monotonic()}\\n")
    while True:
        began_s = time.monotonic()
        dist.all_reduce(torch.zeros(1))
        file.write(f"step {os.getpid()} {began_s} {time.monotonic()}\\n")
        time.sleep(0.01)
"""
LIGHTHOUSE = """
import sys, time
from torchft.coordination import LighthouseServer
server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=100)
open(sys.argv[1], "w").write(server.address() + "\\n")
time.sleep(100_000)
"""
TORCHFT = """
import os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo
folder, rank, lighthouse = sys.argv[1:]
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=30)), min_replica_size=1,
    load_state_dict=lambda state: None, state_dict=lambda: {}, use_async_quorum=False,
    store_addr="127.0.0.1", store_port=store.port, rank=0, world_size=1,
    lighthouse_addr=lighthouse, replica_id=f"replica{rank}", hostname="127.0.0.1",
)
with open(f"{folder}/{rank}", "a", buffering=1) as file:
    file.write(f"start {os.getpid()} {time.monotonic()}\\n")
    while True:
        began_s = time.monotonic()
        manager.start_quorum()
        manager.allreduce(torch.zeros(1)).wait(timedelta(seconds=60))
        if manager.should_commit():
            line = f"{began_s} {time.monotonic()} {manager.num_participants()}"
            file.write(f"step {os.getpid()} {line}\\n")
        time.sleep(0.01)
"""
_quiet = partial(subprocess.Popen, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def torchrun(kills: int, rng: random.Random, ranks: int) -> list[float]:
    """Seconds from each kill to the first step that all its new ranks have done."""
    found: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        script = Path(name) / "steps.py"
        script.write_text(TORCHRUN)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(ranks), "--max-restarts", str(kills + 1), str(script)]
        # Else ranks that are started anew read in the agent's store where those before them
        # listened, and never meet (pytorch issue 135712; seen with 2.13)
        environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        with _quiet([*command, name], env=environment) as job:
            since_s = 0.0
            while len(found) <= kills:
                firsts = _await(Path(name), range(ranks), since_s, is_new=True)
                if firsts is None:
                    print(f"torchrun: no step within {GIVEN_UP_S:g} s of kill {len(found)}")
                    break
                found.append(max(firsts) - since_s)  # the first one is the start, and no kill
                time.sleep(0.2 + rng.random())
                victim = _rows(Path(name) / str(rng.randrange(ranks)))[-1][1]
                since_s = time.monotonic()
                if len(found) <= kills:
                    os.kill(int(victim), signal.SIGKILL)
            job.terminate()
    return found[1:]


def torchft(kills: int, rng: random.Random, ranks: int) -> list[float]:
    """Seconds from each kill to the first step that all who are left have done: torchft's own
    settings. The one that was killed is started anew, and is back before the next kill."""
    found: list[float] = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        address = Path(name) / "address"
        begin = partial(_begin, stack, name)
        begin(LIGHTHOUSE, str(address))
        until_s = time.monotonic() + GIVEN_UP_S
        while not address.exists() or not address.read_text().endswith("\n"):
            if time.monotonic() > until_s:
                print("torchft: its lighthouse does not come up")
                return []
            time.sleep(0.05)
        at = address.read_text()[:-1]
        begins = [partial(begin, TORCHFT, name, str(rank), at) for rank in range(ranks)]
        jobs = [start() for start in begins]
        since_s = 0.0
        while len(found) < kills:
            if _await(Path(name), range(ranks), since_s, is_new=False, together=ranks) is None:
                print(f"torchft: not all are together within {GIVEN_UP_S:g} s of kill {len(found)}")
                break
            time.sleep(0.2 + rng.random())
            victim, since_s = rng.randrange(ranks), time.monotonic()
            jobs[victim].kill()
            left = [rank for rank in range(ranks) if rank != victim]
            if (firsts := _await(Path(name), left, since_s, is_new=False)) is None:
                print(f"torchft: no step within {GIVEN_UP_S:g} s of kill {len(found)}")
                break
            found.append(max(firsts) - since_s)
            jobs[victim], since_s = begins[victim](), time.monotonic()
    return found


def _begin(stack: ExitStack, folder: str, text: str, *given: str) -> subprocess.Popen[bytes]:
    process = stack.enter_context(_quiet([sys.executable, "-c", text, *given], cwd=folder))
    stack.callback(process.kill)
    return process


def _await(
    folder: Path, ranks: Sequence[int], since_s: float, is_new: bool, together: int = 0
) -> list[float] | None:
    """When each of these ranks ended its first step that began after this moment: by a process that
    `is_new` since then, with so many others, if any are asked for. None where one does not."""
    until_s = time.monotonic() + GIVEN_UP_S
    while time.monotonic() < until_s:
        time.sleep(0.05)
        firsts = [_first(_rows(folder / str(r)), since_s, is_new, together) for r in ranks]
        if None not in firsts:
            return [first for first in firsts if first is not None]
    return None


def _first(rows: list[list[str]], since_s: float, is_new: bool, together: int) -> float | None:
    new = {row[1] for row in rows if row[0] == "start" and float(row[2]) > since_s}
    done = (
        float(row[3])
        for row in rows
        if row[0] == "step" and float(row[2]) > since_s and (row[1] in new or not is_new)
        if not together or int(row[4]) == together
    )
    return next(done, None)


def _rows(file: Path) -> list[list[str]]:
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [line.split() for line in lines if line.endswith("\n")]
