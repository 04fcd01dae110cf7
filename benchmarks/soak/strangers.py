"""A job that meets and runs while processes of another user speak to all of its listeners:
`python -m benchmarks.soak.strangers --messages 100000 --seed 1`.

Three ranks of `hal run`, one of which says that it is of another host, make a group, compute and
close it, again and again; a rank that comes late keeps the others' listeners open. User id 65534
reads their addresses from /proc/net and sends garbage, silence, halves and echoes of the handshake.
Ends with 1 where the job does not end well, or --limit seconds are exceeded by what the strangers
add to the slowest meeting or step.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from benchmarks.soak.apart import go_apart

NOBODY = 65534
RANKS = 3
STRANGERS = 2
HELD = 200
"""How many connections a stranger keeps open and says nothing more on."""
LEAST_S = 4.0
"""How long a stranger stays at least: some meetings begin meanwhile, however fast it speaks."""
QUIET_S = 1.0
START_S = 120.0
LONG_S = 600.0

Address = bytes | tuple[str, int]


def listeners() -> Iterator[tuple[str, Address]]:
    """Who listens in this network namespace, by kind."""
    for line in Path("/proc/net/unix").read_text().splitlines():
        name = line.split()[-1]
        if name.startswith("@hal-group-") and line.split()[3] == "00010000":  # it listens
            yield "group, local", b"\0" + name[1:].encode()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A":
            yield "tcp", ("127.0.0.1", int(words[1].partition(":")[2], 16))


def payload(choose: random.Random, hello: bytes) -> bytes:
    """What a stranger says."""
    match choose.randrange(7):
        case 0:
            return choose.randbytes(choose.randrange(1, 400))
        case 1:
            return b"5".ljust(256)
        case 2:
            return b"null".ljust(96)
        case 3:
            return '[1,"life","é"]'.encode().ljust(256)
        case 4:
            return b"[" * 256
        case 5:  # an echo of the listener's own greeting, in the form of a proof
            return (hello + choose.randbytes(96))[:96]
        case _:
            return struct.pack(">I", choose.choice([0, 5, 96, 1 << 31])) + choose.randbytes(92)


def speak(kind: str, address: Address, choose: random.Random, held: list[socket.socket]) -> None:
    """One message: a connection, and what is said on it. Raises OSError where nobody hears."""
    family = socket.AF_UNIX if isinstance(address, bytes) else socket.AF_INET
    sort = socket.SOCK_SEQPACKET if isinstance(address, bytes) else socket.SOCK_STREAM
    link = socket.socket(family, sort)
    link.settimeout(0.2)
    try:
        link.connect(address)
        hello = b""
        if choose.random() < 0.2:
            with suppress(OSError):
                hello = link.recv(64)
        if choose.random() < 0.8:
            with suppress(OSError):
                link.send(payload(choose, hello))
        if choose.random() < 0.1:
            linger = struct.pack("ii", 1, 0)  # end by a reset
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if choose.random() < 0.3:
            held.append(link)
            if len(held) > HELD:
                held.pop(choose.randrange(len(held))).close()
            return
    except OSError:
        link.close()
        raise
    link.close()


def be_a_stranger(store: Address, messages: int, seed: int) -> None:
    """Send so many messages as another user; prints how many by kind."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    choose, held, sent = random.Random(seed), list[socket.socket](), Counter[str]()
    until_s, there, looked_s = time.monotonic() + LONG_S, list(listeners()), 0.0
    while sent.total() < messages and time.monotonic() < until_s:
        if time.monotonic() - looked_s > 0.005:
            there, looked_s = list(listeners()), time.monotonic()
        # the kinds in turn, so that a group's get theirs though they are there for short times
        by_kind: dict[str, list[Address]] = {}
        for kind, address in there:
            if kind == "tcp":
                kind = "store" if address == store else "group, TCP"
            by_kind.setdefault(kind, []).append(address)
        kind = min(by_kind, key=lambda one: sent[one])
        try:
            speak(kind, choose.choice(by_kind[kind]), choose, held)
            sent[kind] += 1
        except OSError:
            looked_s = 0.0  # it has gone
            if kind != "store":
                with suppress(OSError):
                    speak("store", store, choose, held)
                    sent["store"] += 1
    while held and time.monotonic() < until_s - LONG_S + LEAST_S:
        time.sleep(0.1)  # whose silence is heard by meetings that begin now
    print(json.dumps(sent))


JOB = """
import json, sys, time
from pathlib import Path
import numpy as np
from stack.comm.engine import links
from stack.comm.group import Group
from stack.comm.store import Store
from stack.comm.world import World

world, folder = World.from_environment(), Path(sys.argv[1])
if world.rank == world.size - 1:
    links._BOOT = folder / "boot"  # it is of another host, so that the others reach it by TCP
store, number, data = Store.of(world), 0, np.ones(4096, np.float32)
with (folder / f"rank-{world.rank}").open("w", buffering=1) as told, Group.of(world) as all_ranks:
    print(world.store, flush=True)
    while all_ranks.all_reduce(np.array([(folder / "stop").exists()]))[0] == 0:
        if number % world.size == world.rank:
            time.sleep(0.2)
        came_s = time.monotonic()
        place = store, world.store, f"again-{number}", world.rank, world.size, 60.0
        with Group.join(*place) as group:
            met_s, slowest_s = time.monotonic(), 0.0
            for _ in range(50):
                began_s = time.monotonic()
                assert (group.all_reduce(data.copy()) == world.size).all()
                slowest_s = max(slowest_s, time.monotonic() - began_s)
                time.sleep(0.002)
        print(json.dumps([number, came_s, met_s, slowest_s]), file=told)
        number += 1
"""


def attack(folder: Path, messages: int, seed: int) -> tuple[Counter[str], int, dict[str, float]]:
    """What was sent, how the job ended, and when the attack began and was over."""
    (folder / "boot").write_text("the boot of another host\n")
    (folder / "job.py").write_text(JOB)
    command = [
        sys.executable,
        "-c",
        "from hal_tools.cli import main; main()",
        "run",
        "-n",
        str(RANKS),
    ]
    command += ["--devices", "cpu:0", "--deadline", "60", str(folder / "job.py"), str(folder)]
    sent, at = Counter[str](), {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as job:
        assert job.stdout is not None
        try:
            told, until_s = b"", time.monotonic() + START_S
            while told.count(b"\n") < RANKS:
                assert time.monotonic() < until_s, f"the ranks did not begin: {told!r}"
                if select.select([job.stdout], [], [], 1.0)[0]:
                    told += os.read(job.stdout.fileno(), 1 << 12)
            port = int(told.splitlines()[0].rpartition(b":")[2])
            time.sleep(max(4.0, min(20.0, messages / 5000)))  # meetings without strangers
            at["begin"] = time.monotonic()
            share = [messages // STRANGERS + (i < messages % STRANGERS) for i in range(STRANGERS)]
            strangers = [_stranger(port, n, seed * STRANGERS + i) for i, n in enumerate(share)]
            for process in strangers:
                sent += Counter(json.loads(process.communicate(timeout=LONG_S + 30)[0]))
            at["end"] = time.monotonic()
            time.sleep(QUIET_S)
            (folder / "stop").touch()
            job.wait(120)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
    return sent, job.returncode, at


def _stranger(port: int, messages: int, seed: int) -> subprocess.Popen[bytes]:
    options = ["--stranger", str(port), "--messages", str(messages), "--seed", str(seed)]
    command = [sys.executable, "-m", __spec__.name, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def measured(folder: Path, at: dict[str, float]) -> dict[str, Any]:
    """How long meetings took from the coming of the last rank, and the slowest steps, with and
    without strangers; in seconds."""
    rows = [
        [json.loads(line) for line in (folder / f"rank-{rank}").read_text().splitlines()]
        for rank in range(RANKS)
    ]
    found: dict[str, list[tuple[float, float]]] = {"quiet": [], "attacked": []}
    for ranks in zip(*rows, strict=False):
        came_s, met_s = max(row[1] for row in ranks), max(row[2] for row in ranks)
        when = "attacked" if at["begin"] <= came_s <= at["end"] else "quiet"
        found[when].append((met_s - came_s, max(row[3] for row in ranks)))
    return {when: _summary(times) for when, times in found.items()}


def _summary(times: list[tuple[float, float]]) -> dict[str, Any]:
    meetings, steps = sorted(m for m, _ in times), sorted(s for _, s in times)
    return {
        "meetings": len(times),
        "meeting_median_s": round(meetings[len(meetings) // 2], 4),
        "meeting_slowest_s": round(meetings[-1], 4),
        "step_slowest_s": round(steps[-1], 4),
    }


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--messages", type=click.IntRange(1), default=100_000)
@click.option("--seed", type=int, default=1)
@click.option("--limit", "limit_s", type=float, help="What strangers may add, in seconds.")
@click.option("--stranger", type=int, hidden=True, help="Be one, where the store is at this port.")
def main(messages: int, seed: int, limit_s: float | None, stranger: int | None) -> None:
    if stranger is not None:
        be_a_stranger(("127.0.0.1", stranger), messages, seed)
        return
    go_apart(__spec__.name)
    with tempfile.TemporaryDirectory() as name:
        sent, code, at = attack(Path(name), messages, seed)
        found = measured(Path(name), at)
    quiet, attacked = found["quiet"], found["attacked"]
    added_s = max(attacked[name] - quiet[name] for name in ("meeting_slowest_s", "step_slowest_s"))
    load = os.getloadavg()[0]
    result = {"seed": seed, "sent": sent, "job": code, "added_s": round(added_s, 4), "load": load}
    print(json.dumps({**result, "seconds": round(at["end"] - at["begin"], 1), **found}, indent=2))
    whole = code == 0 and sent.total() == messages
    sys.exit(not whole or (limit_s is not None and added_s > limit_s))


if __name__ == "__main__":
    main()
