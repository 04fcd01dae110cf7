"""A job that meets and runs while processes of another user speak to all of its listeners:
`python -m benchmarks.soak.strangers --messages 100000 --seed 1`.

Three ranks of `hal run`, one of which says that it is of another host, make a group, compute and
close it, again and again; a rank that comes late keeps the others' listeners open. Beside them a
client of two `hal serve`, one at a port and one at a local socket that everybody may reach, opens
devices there, uses them and closes them, and keeps a session on each all the time. User id 65534
reads the addresses from /proc/net and sends garbage, silence, halves and echoes of the handshake.
Ends with 1 where the job or the client does not end well, or --limit seconds are exceeded by what
the strangers add to the slowest meeting, opening or step.
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
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from benchmarks.soak.apart import go_apart

NOBODY = 65534
RANKS = 3
STRANGERS = 2
HELD = 200
"""How many connections a stranger keeps open and says nothing more on."""
LEAST = 2
"""How many meetings and openings begin at least beside strangers, however fast they speak, and
without them before."""
START_S = 120.0
LONG_S = 600.0

HAL = [sys.executable, "-c", "from hal_tools.cli import main; main()"]

Address = bytes | tuple[str, int]


def listeners(ports: dict[int, str]) -> Iterator[tuple[str, Address]]:
    """Who listens in this network namespace, by kind. `ports` has the kinds of those that are
    known; any other one is a group's."""
    for line in Path("/proc/net/unix").read_text().splitlines():
        name, listens = line.split()[-1], line.split()[3] == "00010000"
        if name.startswith("@hal-group-") and listens:
            yield "group, local", b"\0" + name[1:].encode()
        if name.endswith("/served") and listens:
            yield "serve, local", name.encode()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A":
            port = int(words[1].partition(":")[2], 16)
            yield ports.get(port, "group, TCP"), ("127.0.0.1", port)


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
    sort = socket.SOCK_SEQPACKET if kind == "group, local" else socket.SOCK_STREAM
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


def be_a_stranger(ports: dict[int, str], messages: int, seed: int) -> None:
    """Send so many messages as another user, print how many by kind, and hold what is held until
    standard input ends."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    choose, held, sent = random.Random(seed), list[socket.socket](), Counter[str]()
    store = next(("127.0.0.1", port) for port, kind in ports.items() if kind == "store")
    until_s, there, looked_s = time.monotonic() + LONG_S, list(listeners(ports)), 0.0
    while sent.total() < messages and time.monotonic() < until_s:
        if time.monotonic() - looked_s > 0.005:
            there, looked_s = list(listeners(ports)), time.monotonic()
        # the kinds in turn, so that a group's get theirs though they are there for short times
        by_kind: dict[str, list[Address]] = {}
        for kind, address in there:
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
    print(json.dumps(sent), flush=True)
    select.select([sys.stdin], [], [], LONG_S)  # the silence of what is held is heard meanwhile


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


CLIENT = """
import contextlib, json, sys, time
from pathlib import Path
import hal
from hal.core.values import AllocOptions

def step(device):
    timeline, buffer = device.create_timeline(False), device.alloc(4096, AllocOptions())
    host = bytearray(4096)
    point = device.fill(buffer.region(), b"ab", timeline, ())
    point = device.copy(host, buffer.region(), timeline, (point,))
    assert device.wait([point], 60.0, True) and bytes(host) == b"ab" * 2048

folder, names, number = Path(sys.argv[1]), ("remote:0", "remote:1"), 0
with (folder / "client").open("w", buffering=1) as told, contextlib.ExitStack() as stack:
    held = [stack.enter_context(contextlib.closing(hal.open(name))) for name in names]
    print("open", flush=True)
    while not (folder / "stop").exists():
        for name, kept in zip(names, held):
            came_s = time.monotonic()
            with contextlib.closing(hal.open(name)) as device:
                met_s, slowest_s = time.monotonic(), 0.0
                for _ in range(20):
                    for used in (device, kept):
                        began_s = time.monotonic()
                        step(used)
                        slowest_s = max(slowest_s, time.monotonic() - began_s)
                    time.sleep(0.002)
            print(json.dumps([number, came_s, met_s, slowest_s]), file=told)
        number += 1
"""


def attack(
    folder: Path, messages: int, seed: int
) -> tuple[Counter[str], list[int], dict[str, float]]:
    """What was sent, how job and client ended, and when the attack began and was over."""
    (folder / "boot").write_text("the boot of another host\n")
    (folder / "job.py").write_text(JOB)
    command = [*HAL, "run", "-n", str(RANKS), "--devices", "cpu:0", "--deadline", "60"]
    sent, at = Counter[str](), {}
    with ExitStack() as stack:
        places = [
            stack.enter_context(served(folder, where))
            for where in ("127.0.0.1:0", f"unix:{folder}/served")
        ]
        (folder / "served").chmod(0o777)
        folder.chmod(0o755)
        job = stack.enter_context(started([*command, str(folder / "job.py"), str(folder)]))
        remote = {"HAL_REMOTE": " ".join(places)}
        client = stack.enter_context(
            started([sys.executable, "-c", CLIENT, str(folder)], **remote, **secret(folder))
        )
        store = said(job, RANKS).splitlines()[0]
        said(client, 1)
        ports = {port_of(store): "store", port_of(places[0].partition("/")[0]): "serve, TCP"}
        heard = [folder / name for name in (*(f"rank-{rank}" for rank in range(RANKS)), "client")]
        wait_for_meetings(heard)
        time.sleep(min(20.0, messages / 5000))  # without strangers
        at["begin"] = time.monotonic()
        share = [messages // STRANGERS + (i < messages % STRANGERS) for i in range(STRANGERS)]
        strangers = [_stranger(ports, n, seed * STRANGERS + i) for i, n in enumerate(share)]
        for process in strangers:
            sent += Counter(json.loads(said(process, 1, LONG_S + 30)))
        wait_for_meetings(heard)
        at["end"] = time.monotonic()
        for process in strangers:
            process.communicate(timeout=30)
        (folder / "stop").touch()
        codes = [job.wait(120), client.wait(120)]
    return sent, codes, at


@contextmanager
def started(command: list[str], **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process and its children, until the end."""
    surroundings = {**os.environ, **environment}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, start_new_session=True, env=surroundings
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def served(folder: Path, where: str) -> Iterator[str]:
    """A server of cpu:0; gives its entry for HAL_REMOTE."""
    with started([*HAL, "serve", "cpu:0", "--at", where], **secret(folder)) as server:
        yield said(server, 1).strip().removeprefix("HAL_REMOTE='").removesuffix("'")


def secret(folder: Path) -> dict[str, str]:
    """The variable that names the secret of servers and their client."""
    file = folder / "secret"
    if not file.exists():
        file.touch(0o600)
        file.write_text(os.urandom(16).hex())
    return {"HAL_REMOTE_SECRET": str(file)}


def said(process: subprocess.Popen[bytes], lines: int, most_s: float = START_S) -> str:
    """The first lines of a process."""
    assert process.stdout is not None
    told, until_s = b"", time.monotonic() + most_s
    while told.count(b"\n") < lines:
        assert time.monotonic() < until_s, f"{process.args} did not speak: {told!r}"
        if select.select([process.stdout], [], [], 1.0)[0]:
            part = os.read(process.stdout.fileno(), 1 << 12)
            assert part, f"{process.args} ended: {told!r}"
            told += part
    return told.decode()


def wait_for_meetings(told: list[Path]) -> None:
    """Return once `LEAST` more meetings or openings stand in each of the files."""
    until_s, before = time.monotonic() + START_S, [len(_lines(file)) for file in told]
    while min(len(_lines(file)) - n for file, n in zip(told, before, strict=True)) < LEAST:
        assert time.monotonic() < until_s, f"{before} meetings, and no more"
        time.sleep(0.02)


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def _stranger(ports: dict[int, str], messages: int, seed: int) -> subprocess.Popen[bytes]:
    options = ["--stranger", json.dumps(ports), "--messages", str(messages), "--seed", str(seed)]
    command = [sys.executable, "-m", __spec__.name, *options]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def measured(files: list[Path], at: dict[str, float]) -> dict[str, Any]:
    """How long meetings took from the coming of the last one, and the slowest steps, with and
    without strangers; in seconds. Each member of a meeting has a file."""
    rows = [[json.loads(line) for line in _lines(file)] for file in files]
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
@click.option("--stranger", hidden=True, help="Be one, where these ports are of these kinds.")
def main(messages: int, seed: int, limit_s: float | None, stranger: str | None) -> None:
    if stranger is not None:
        ports = {int(port): kind for port, kind in json.loads(stranger).items()}
        be_a_stranger(ports, messages, seed)
        return
    go_apart(__spec__.name)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sent, codes, at = attack(folder, messages, seed)
        found = {
            "ranks": measured([folder / f"rank-{rank}" for rank in range(RANKS)], at),
            "served": measured([folder / "client"], at),
        }
    added_s = max(
        row["attacked"][name] - row["quiet"][name]
        for row in found.values()
        for name in ("meeting_slowest_s", "step_slowest_s")
    )
    load = os.getloadavg()[0]
    result = {
        "seed": seed,
        "sent": sent,
        "codes": codes,
        "added_s": round(added_s, 4),
        "load": load,
    }
    print(json.dumps({**result, "seconds": round(at["end"] - at["begin"], 1), **found}, indent=2))
    whole = codes == [0, 0] and sent.total() == messages
    sys.exit(not whole or (limit_s is not None and added_s > limit_s))


if __name__ == "__main__":
    main()
