"""No wait in the tree lacks a deadline: whatever breaks, everybody comes back and says so."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.core.native_waits import native_waits_in
from tests.core.waits import waits_in
from tests.draw import sample

ROOT = Path(__file__).parents[2]
PYTHON = [
    "hal/**/*.py",
    "hal_conformance/**/*.py",
    "hal_tools/**/*.py",
    "stack/**/*.py",
    "plugins/*/src/**/*.py",
    "examples/**/*.py",
]
DRAWN = ["plugins/*/tests/**/*.py", "benchmarks/**/*.py", "tests/**/*.py"]
"""Of which nobody's work waits: each run reads one file of eight of them."""
NATIVE = ["plugins/*/src/**/native/*.c", "stack/**/native/*.c"]
CPU = "plugins/cpu/src/hal_plugin_cpu/native"


@dataclass(frozen=True)
class Allowed:
    """A wait that has no deadline in its own line, and why that is right."""

    path: str
    code: str
    reason: str


TILE = "no wait of the host: an instruction of the tile language, which is only written down here"
ORDERS = "waits for orders, which is all that it is for; the pipe ends when its parent ends"
TOLD = "the thread has been told to end, runs nothing but our own code, and sleeps in slices"
FOLLOWED = "follows a job while it is here; each question to the daemon has a deadline"
SAVED = "the process does not end before its last save has, whose waits have deadlines themselves"
LOADS = "waits for a call of the device that this thread would else make itself"
CASES = "each case has its time, after which its process is ended"
ALLOWED = [
    Allowed("hal_conformance/cases/kernels_scratch.py", "b.wait()", TILE),
    Allowed("stack/compiler/templates/pieces.py", "b.wait()", TILE),
    Allowed("tests/tile/test_interpret.py", "b.wait()", TILE),
    Allowed("tests/compiler/llvm/test_memory.py", "b.wait()", TILE),
    Allowed("tests/compiler/simt/test_tiles.py", "b.wait()", TILE),
    Allowed("hal_conformance/worker.py", "sys.stdin.buffer.readline()", ORDERS),
    Allowed("hal_conformance/worker.py", "os.read(0, 1)", ORDERS),
    Allowed("hal_conformance/conform.py", "early[group].result()", CASES),
    Allowed("hal_conformance/conform.py", "wait(early.values())", CASES),
    Allowed("hal_conformance/elsewhere.py", "for line in sys.stdin:", ORDERS),
    Allowed("hal_conformance/elsewhere_group.py", "sys.stdin.readline()", ORDERS),
    Allowed("tests/trial/hal_plugin_trial1/compiler.py", "for line in sys.stdin:", ORDERS),
    Allowed("tests/hosted/members.py", "for line in sys.stdin:", ORDERS),
    Allowed("tests/hosted/members.py", "sys.stdin.readline()", ORDERS),
    Allowed("benchmarks/comm_ranks.py", "for line in sys.stdin:", ORDERS),
    Allowed("benchmarks/serving.py", "for _ in sys.stdin:", ORDERS),
    Allowed("benchmarks/storage_ranks.py", "for line in sys.stdin:", ORDERS),
    Allowed("plugins/opencl/src/hal_plugin_opencl/beside.py", "for line in sys.stdin:", ORDERS),
    Allowed("stack/runtime/programs.py", "begun[s].result()", LOADS),
    Allowed("stack/storage/threads.py", "self._tasks.get()", ORDERS),
    Allowed("stack/cluster/command.py", "while True:", FOLLOWED),
    Allowed("stack/storage/background.py", "Thread(target=run", SAVED),
    Allowed(f"{CPU}/watch.c", "pthread_join(dev->watch, NULL)", TOLD),
    Allowed(f"{CPU}/workers.c", "pthread_join(w->thread, NULL)", TOLD),
]


def files(patterns):
    """Every file but this one, which is full of waits."""
    found = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    return [path for path in found if path != Path(__file__)]


def found(paths, waits):
    """(path, wait) of every wait."""
    return [
        (str(path.relative_to(ROOT)), wait) for path in paths for wait in waits(path.read_text())
    ]


def row_of(path, wait):
    rows = [r for r in ALLOWED if r.path == path and wait.code.startswith(r.code)]
    return rows[0] if rows else None


@pytest.mark.slow
def test_no_wait_in_the_tree_lacks_a_deadline():
    others = files(DRAWN)
    drawn = sample("waits", others, len(others) // 8)
    waits = found(files(PYTHON) + drawn, waits_in) + found(files(NATIVE), native_waits_in)
    wrong = [
        f"{path}:{wait.line}: `{wait.code.splitlines()[0]}` can wait for ever; {wait.advice}"
        for path, wait in waits
        if row_of(path, wait) is None
    ]
    assert not wrong, "\n".join(wrong)
    left_out = {str(path.relative_to(ROOT)) for path in {*others} - {*drawn}}
    seen = {row for row in ALLOWED if row.path not in left_out}
    unused = seen - {row_of(path, wait) for path, wait in waits}
    assert not unused, f"these waits are gone, so drop their rows: {unused}"


@pytest.mark.parametrize(
    "code",
    [
        "event.wait()",
        "event.wait(None)",
        "event.wait(timeout=None)",
        "event.wait(math.inf)",
        "thread.join()",
        "self._queue.get()",
        "queue.get(block=True)",
        "lock.acquire()",
        "lock.acquire(True)",
        "lock.acquire(timeout=-1)",
        "future.result()",
        "changed.wait_for(ready)",
        "changed.wait_for(ready, None)",
        "child.communicate()",
        "child.communicate(b'go')",
        "import subprocess\nsubprocess.run(['ls'])",
        "from subprocess import check_output as out\nout(['ls'])",
        "import subprocess\nwith subprocess.Popen(['ls']) as child:\n    child.stdin.close()",
        "from concurrent.futures import wait\nwait(futures)",
        "import os\nos.waitpid(child, 0)",
        "import os\nos.wait()",
        "import select\nselect.select([pipe], [], [])",
        "import select\nselect.select([pipe], [], [], None)",
        "import select\npoll = select.poll()\npoll.poll()",
        "selector.select()",
        "import socket\nlink = socket.socket()\nlink.connect(address)",
        "import socket\nlink = socket.socket()\nlink.setblocking(True)\nlink.recv(1)",
        "import socket\nlink = socket.socket()\nlink.settimeout(None)\nlink.accept()",
        "import socket\nlink = socket.socket()\nsocket.recv_fds(link, 1, 1)",
        "connection.recv()",
        "import sys\nsys.stdin.readline()",
        "for line in child.stdout:\n    print(line)",
        "stream.read1()",
        "import time\nwhile not done:\n    time.sleep(0.01)",
        "import os\nos.read(number, 1)",
        "input()",
        "import fcntl\nfcntl.flock(file, fcntl.LOCK_EX)",
        "import threading\nthreading.Thread(target=run).start()",
        "import threading\nthreading.Thread(target=run, daemon=False).start()",
        "PROGRAM = '''\nimport os\nos.waitpid(pid, 0)\n'''",
        "run(f'''\n    thread.join()\n    print({name})\n''')",
    ],
)
def test_a_wait_without_a_deadline_is_found(code):
    assert len(list(waits_in(code))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "event.wait(5)",
        "event.wait(timeout=left_s)",
        "device.wait([point], 5, True)",
        "', '.join(names)",
        "os.path.join(a, b)",
        "thread.join(5)",
        "table.get(key)",
        "queue.get(timeout=1)",
        "from contextvars import ContextVar\n_mode = ContextVar('mode')\n_mode.get()",
        "lock.acquire(timeout=5)",
        "lock.acquire(False)",
        "lock.acquire(blocking=False)",
        "with lock:\n    count += 1",
        "future.result(5)",
        "changed.wait_for(ready, 5)",
        "child.communicate(timeout=5)",
        "import subprocess\nsubprocess.run(['ls'], timeout=5)",
        "import subprocess\nsubprocess.run(['ls'], **options)",
        "import subprocess\nwith subprocess.Popen(['ls']) as child:\n    child.kill()",
        "import os\nos.waitpid(child, os.WNOHANG)",
        "child.poll()",
        "for _ in range(100):\n    time.sleep(0.01)",
        "while not done and time.monotonic() < end:\n    time.sleep(0.01)",
        "import select\nselect.select([pipe], [], [], 0.1)",
        "import select\npoll = select.poll()\npoll.poll(100)",
        "import socket\nlink = socket.socket()\nlink.settimeout(1)\nlink.recv(1)",
        "import socket\nlink = socket.socket()\nlink.setblocking(False)\nself.link.recv(1)",
        "tokens.accept('(')",
        "import os, select\ndef f():\n    select.select([n], [], [], 1)\n    os.read(n, 1)",
        "path.open().read()",
        "import fcntl\nfcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "import threading\nthreading.Thread(target=run, daemon=True).start()",
        "TEXT = '''\nA join() that is told about.\n'''",
    ],
)
def test_a_wait_with_a_deadline_is_not_found(code):
    assert not list(waits_in(code))


def test_a_wait_is_found_in_its_line():
    inside = "PROGRAM = '''\nimport os\nos.wait()\n'''"
    assert [w.line for w in waits_in(f"import os\n\n{inside}\nthread.join()\n")] == [7, 5]


@pytest.mark.parametrize(
    "code",
    [
        "hc_futex_wait(&t->seq, seen, -1);",
        "hc_shared_wait(word, 0, ns < 0 ? -1 : ns);",
        "return (int)syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);",
        "return syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, ns < 0 ? NULL : &t, NULL, 0);",
        "pthread_cond_wait(&l->changed, &l->lock);",
        "pthread_join(thread, NULL);",
        "sem_wait(&ready);",
        "while (poll(fds, 2,\n            -1) < 0) continue;",
        "got = read(fd, bytes, sizeof bytes);",
        "return recv(fd, bytes, 1, 0);",
        "waitpid(pid, &status, 0);",
    ],
)
def test_a_native_wait_without_a_deadline_is_found(code):
    [wait] = native_waits_in(f"/* pthread_join(a, b) */\nvoid f(void) {{\n    {code}\n}}\n")
    assert wait.line == 3


@pytest.mark.parametrize(
    "code",
    [
        "hc_futex_wait(&t->seq, seen, left_ns);",
        "syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);",
        "syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);",
        "pthread_cond_timedwait(&dev->idle, &dev->lock, &until);",
        "pthread_mutex_lock(&dev->lock);",
        "poll(fds, 2, 100);",
        "// pthread_join(thread, NULL);",
        "already_read(fd);",
        "return recv(fd, bytes, 1, MSG_DONTWAIT);",
    ],
)
def test_a_native_wait_with_a_deadline_is_not_found(code):
    assert not list(native_waits_in(f"int read(int fd);\nvoid f(void) {{\n    {code}\n}}\n"))
