"""`hal run` with real processes: what ranks are told, how they end, and what is shown."""

import os
import pty
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stack.launch.again import pause_after
from tests.launch.running import HAL, LONG_S, finished, has_ended, read_lines, read_to_end

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
HERE = ("--devices", "cpu:0")

MEET = """
import os, sys
from stack.comm.store import Store
from stack.comm.world import World

world = World.from_environment()
store = Store.of(world)
store.set(f"{world.rank}", b"here")
store.wait([str(rank) for rank in range(world.size)])
cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
print(world.rank, world.size, world.local_rank, world.local_size, world.device, cpus, *sys.argv[1:])
print("note", file=sys.stderr)
"""


def test_ranks_meet_and_each_has_its_place_device_and_processors(folder):
    done = folder.run("-n", 3, "--devices", "cpu:0,cpu:1", folder.write(MEET), "-n", "--x=1")
    cpus = sorted(os.sched_getaffinity(0))
    shares = [cpus[len(cpus) * i // 3 : len(cpus) * (i + 1) // 3] for i in range(3)]
    shares = shares if len(cpus) >= 3 else [[cpus[i % len(cpus)]] for i in range(3)]
    assert done.out == [
        f"[{i}] {i} 3 {i} 3 cpu:{i % 2} {','.join(map(str, shares[i]))} -n --x=1" for i in range(3)
    ]
    assert sorted(done.err) == ["[0] note", "[1] note", "[2] note"]
    assert done.code == 0


def test_a_module_runs_and_its_output_is_kept_as_it_is(folder):
    text = "import os\nos.write(1, b'\\xff\\x00 no end')\nos.write(2, b'x\\r\\n' * 30000)\n"
    folder.write(text, "part.py")
    done = folder.run("-n", 2, *HERE, "--log-dir", "logs", "-m", "part")
    assert (done.code, done.out, done.err) == (0, [], [])
    for rank in (0, 1):
        kept = folder.path / "logs" / f"rank-{rank}"
        assert kept.with_suffix(".stdout").read_bytes() == b"\xff\x00 no end"
        assert kept.with_suffix(".stderr").read_bytes() == b"x\r\n" * 30000


def test_a_full_disk_ends_the_job_with_its_name(folder):
    (folder.path / "rank-0.stdout").symlink_to("/dev/full")
    script = folder.write("import time\nprint('one')\ntime.sleep(600)\n")
    done = folder.run("-n", 1, *HERE, "--log-dir", ".", script)
    assert done.code == 1
    assert "output cannot be kept in rank-0.stdout: [Errno 28] No space left" in done.err[0]


FAIL = """
import os, signal, sys, time
from stack.comm.store import Store
from stack.comm.world import World

world = World.from_environment()
store = Store.of(world)
store.set(f"{world.rank}", b"here")
store.wait([str(rank) for rank in range(world.size)])
if world.rank == 1:
    if sys.argv[1] == "raise":
        raise ValueError("loss is not finite")
    os.kill(os.getpid(), int(sys.argv[1]))
with store.watch("no more") as watch:
    watch.next(60)
"""


@pytest.mark.parametrize(
    ("how", "code", "first"),
    [
        ("raise", 1, "rank 1 failed: exit status 1: ValueError: loss is not finite"),
        ("9", 137, "rank 1 failed: killed by SIGKILL"),
        ("11", 139, "rank 1 failed: killed by SIGSEGV: Fatal Python error: Segmentation fault"),
    ],
)
def test_the_first_cause_is_shown_and_the_others_are_ended(folder, how, code, first):
    done = folder.run("-n", 3, *HERE, folder.write(FAIL), how)
    assert done.code == code
    said = [line for line in done.err if not line.startswith("[")]
    assert said[0] == f"hal run: {first}"
    assert said[1] == "  rank 1 ran on this host, device cpu:0"
    assert said[-1] == "  ranks 0, 2: killed by SIGTERM"


KEPT = """
import sys, time
from pathlib import Path
from stack.comm.world import World

rank = World.from_environment().rank
done = Path("checkpoint")
step = int(done.read_text()) if done.exists() else 0
print("from", step, flush=True)
if rank == 0:
    done.write_text(str(step + 1))
    if step < int(sys.argv[1]):
        raise ValueError(f"step {step}")
elif step < int(sys.argv[1]):
    time.sleep(600)
"""


def test_output_without_room_is_an_error_that_says_so(folder):
    script = folder.write("print('said')")
    with open("/dev/full", "wb") as full, folder.start(*HERE, script, stdout=full) as process:
        said = process.communicate(timeout=LONG_S)[1].decode()
    assert process.returncode == 1
    assert "error: the ranks' output cannot be shown: [Errno 28] No space left" in said


def test_what_ranks_write_to_closed_streams_goes_nowhere(folder):
    """Not into what else would have taken the streams' numbers."""
    script = folder.write("import os, sys\nprint('said')\nopen('ran', 'w').write(sys.argv[1])")
    hal = " ".join(shlex.quote(part) for part in (*HAL, "run", *HERE, script, "yes"))
    done = subprocess.run(f"{hal} >&- 2>&-", shell=True, cwd=folder.path, timeout=LONG_S)
    assert done.returncode == 0
    assert (folder.path / "ran").read_text() == "yes"


def said_by_launcher(done):
    return [line for line in done.err if line.startswith("hal run:")]


def test_a_job_that_fails_is_started_again_and_goes_on(folder):
    logs = ("--log-dir", "logs")
    done = folder.run("-n", 2, *HERE, "--restarts", 2, *logs, folder.write(KEPT), 1)
    assert done.code == 0
    assert said_by_launcher(done) == [
        "hal run: rank 0 failed: exit status 1: ValueError: step 0",
        "hal run: starts the job again in 1 s, 1 of 2",
    ]
    seen = [folder.path / "logs" / name / "rank-0.stdout" for name in (".", "restart-1")]
    assert [path.read_text() for path in seen] == ["from 0\n", "from 1\n"]


def test_a_job_is_given_up_after_its_restarts_with_the_first_cause(folder):
    done = folder.run("-n", 1, *HERE, "--restarts", 1, folder.write(KEPT), 9)
    assert done.code == 1
    assert said_by_launcher(done) == [
        "hal run: rank 0 failed: exit status 1: ValueError: step 0",
        "hal run: starts the job again in 1 s, 1 of 1",
        "hal run: rank 0 failed: exit status 1: ValueError: step 1",
        "hal run: gives up after 2 starts; the first cause: rank 0 failed: exit status 1: "
        "ValueError: step 0",
    ]


AGAIN = """
import os, signal, sys
from stack.comm.world import World
from stack.launch.progress import kept

world = World.from_environment()
if sys.argv[1] == "forward":
    kept(world.restart)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
raise ValueError("as always")
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            "same",
            [
                "rank 0 failed: exit status 1: ValueError: as always",
                "starts the job again in 1 s, 1 of 2",
                "rank 0 failed: exit status 1: ValueError: as always",
                "does not start the job again: it failed twice in the same way, rank 0 failed: "
                "exit status 1: ValueError: as always",
            ],
        ),
        (
            "forward",
            [
                "rank 0 failed: exit status 1: ValueError: as always",
                "starts the job again in 1 s, 1 of 1",
                "rank 0 failed: exit status 1: ValueError: as always",
                "gives up after 2 starts; the first cause: rank 0 failed: exit status 1: "
                "ValueError: as always, after step 0",
            ],
        ),
        (
            "killed",
            [
                "rank 0 failed: killed by SIGKILL",
                "starts the job again in 1 s, 1 of 1",
                "rank 0 failed: killed by SIGKILL",
                "gives up after 2 starts; the first cause: rank 0 failed: killed by SIGKILL",
            ],
        ),
    ],
)
def test_a_failure_that_comes_back_the_same_is_not_repeated(folder, how, said):
    restarts = 2 if how == "same" else 1
    done = folder.run("-n", 1, *HERE, "--restarts", restarts, folder.write(AGAIN), how)
    assert said_by_launcher(done) == [f"hal run: {line}" for line in said]


def test_pauses_between_restarts_grow_and_are_bounded():
    assert [pause_after(n) for n in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert pause_after(10**6) == 60


def test_a_pause_ends_when_somebody_asks(folder):
    with folder.start("-n", 1, *HERE, "--restarts", 9, folder.write(KEPT), 99) as process:
        said, until_s = b"", time.monotonic() + LONG_S
        while b"starts the job again in 1 s" not in said:
            assert time.monotonic() < until_s
            if select.select([process.stderr], [], [], LONG_S)[0]:
                said += os.read(process.stderr.fileno(), 1 << 16)
        process.send_signal(signal.SIGTERM)
        done = finished(process)
    assert done.code == 128 + signal.SIGTERM


PARENT = """
import os, subprocess, sys
import numpy as np
from stack.comm.group import Group
from stack.comm.world import World

world = World.from_environment()
if len(sys.argv) == 1 and world.rank == 1:  # a child that joins in its parent's place, and first
    command = [sys.executable, __file__, "child"]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60)
    print(f"{os.getpid()} {child.returncode} {child.stderr.splitlines()[-1]}", flush=True)
with Group.of(world) as group:
    print("sum", group.all_reduce(np.ones(1))[0], flush=True)
"""


def test_a_child_of_a_rank_does_not_take_its_place(folder):
    done = folder.run("-n", 2, *HERE, folder.write(PARENT))
    assert done.code == 0
    assert [line for line in done.out if "sum" in line] == ["[0] sum 2.0", "[1] sum 2.0"]
    (told,) = [line for line in done.out if "sum" not in line]
    process, words = re.fullmatch(r"\[1\] (\d+) 1 (.*)", told).groups()
    assert f"rank 1 is taken by process {process} on host {socket.gethostname()}" in words


def test_a_job_that_was_asked_to_end_is_not_started_again(folder):
    with folder.start("-n", 1, *HERE, "--restarts", 3, folder.write(GRACEFUL)) as process:
        assert read_lines(process.stdout, 1) == ["[0] ready"]
        process.send_signal(signal.SIGINT)
        done = finished(process)
    assert (done.code, done.out) == (130, ["[0] saved"])
    assert len(said_by_launcher(done)) == 1


GRACEFUL = """
import signal, sys, time

def end(number, frame):
    print("saved", flush=True)
    sys.exit(7)

signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
for _ in range(600):
    time.sleep(0.1)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_every_rank_end_in_its_own_way(folder, number):
    with folder.start("-n", 2, *HERE, folder.write(GRACEFUL)) as process:
        assert read_lines(process.stdout, 2) == ["[0] ready", "[1] ready"]
        process.send_signal(number)
        done = finished(process)
    assert done.out == ["[0] saved", "[1] saved"]
    assert done.code == 128 + number
    assert done.err == [
        f"hal run: the launcher was asked to end by {number.name}",
        "  ranks 0, 1: exit status 7",
    ]


STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


def test_a_rank_that_does_not_end_is_killed_when_its_grace_is_over(folder):
    """A job of a cluster says how long it needs to save; that was 30 s for every one."""
    with folder.start("-n", 1, *HERE, "--grace", 0.1, folder.write(STUBBORN)) as process:
        assert read_lines(process.stdout, 1) == ["[0] ready"]
        process.send_signal(signal.SIGTERM)
        process.wait(LONG_S / 3)
        done = finished(process)
    assert done.code == 143
    assert done.err[-1] == "  rank 0: killed by SIGKILL"


CHILDREN = """
import os, subprocess, sys, time
child = "import subprocess, sys, time\\n"
child += "made = subprocess.Popen(['sleep', '600'])\\n"
child += "print(made.pid, flush=True)\\n"
child += "time.sleep(600)\\n"
made = subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
print(os.getpid(), flush=True)
print(made.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("victim", ["launcher", "agent"])
def test_sigkill_leaves_no_process_not_even_children_in_other_sessions(folder, victim):
    with folder.start("-n", 2, *HERE, folder.write(CHILDREN)) as process:
        made = [int(line.split()[1]) for line in read_lines(process.stdout, 6)]
        assert len(set(made)) == 6
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as children:
            agent = int(children.read())
        os.kill(process.pid if victim == "launcher" else agent, signal.SIGKILL)
        done = finished(process)
    assert done.code == (-9 if victim == "launcher" else 1)
    assert [p for p in [agent, *made] if not has_ended(p)] == []
    if victim == "agent":
        assert done.err[0] == "hal run: this host is lost: its agent ended (killed by SIGKILL)"


ONE_BY_ONE = """
import pathlib, time
print("one", flush=True)
for _ in range(18_000):
    if pathlib.Path("read").exists():
        break
    time.sleep(0.01)
print("two")
"""


def test_a_terminal_shows_colours_and_how_far_the_job_is(folder):
    screen, terminal = pty.openpty()
    script = folder.write(ONE_BY_ONE)
    coloured = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    with folder.start(
        *("-n", 1, *HERE, script), stdout=terminal, stderr=terminal, env=coloured
    ) as process:
        os.close(terminal)
        got = read_to_end(screen, b"one.*hal run: running.*KiB")
        folder.write("", "read")
        got += read_to_end(screen)
        assert process.wait(LONG_S) == 0
    os.close(screen)
    assert b"\x1b[36m[0]\x1b[0m one" in got
    assert re.search(
        rb"\r\x1b\[Khal run: running, 1 of 1 ranks, \d+:\d\d, store \d+ keys, \d+ KiB", got
    )
    assert b"\r\x1b[K\x1b[36m[0]\x1b[0m two" in got
    assert b"\r\x1b[K" in got[got.rindex(b"hal run: running") :], "what is left is the job's own"


SHELL = """
import os, sys
host, command = sys.argv[1], sys.argv[-1]
if host == "dead":
    sys.exit("connect to host dead: No route to host")
print("welcome to", host, flush=True)
os.execvp("sh", ["sh", "-c", command])
"""


def far(folder, hosts, *arguments):
    shell = f"{sys.executable} {folder.path / folder.write(SHELL, 'shell.py')} {{host}}"
    names = ("--hosts", folder.write(hosts, "hosts"), "--shell", shell)
    return folder.run(*names, "--address", "127.0.0.1", *HERE, *arguments)


def test_ranks_of_several_hosts_meet(folder):
    done = far(folder, "node1 slots=2\nnode2 devices=cpu:7\n", folder.write(MEET))
    seen = [line.split()[:6] for line in done.out]
    assert seen == [
        ["[0]", "0", "3", "0", "2", "cpu:0"],
        ["[1]", "1", "3", "1", "2", "cpu:0"],
        ["[2]", "2", "3", "0", "1", "cpu:7"],
    ]
    assert done.code == 0


def test_a_host_that_cannot_be_reached_ends_the_job_before_it_starts(folder):
    done = far(folder, "node1\ndead\n", folder.write("print('never')"))
    assert (done.code, done.out) == (1, [])
    text = "dead is lost: its agent ended (exit status 1): connect to host dead: No route to host"
    assert done.err == [f"hal run: {text}"]


def test_the_ranks_of_the_example_compute_together(folder):
    done = folder.run("-n", 3, "--devices", "cpu:0", ROOT / "examples/all_reduce.py")
    assert (done.code, done.err) == (0, [])
    said = [line.partition("] ")[2] for line in done.out]
    assert said == ["the sum over 3 ranks is [3.0, 3.0, 3.0, 3.0]"] * 3
