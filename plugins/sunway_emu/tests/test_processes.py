"""What a core group's process and folder outlive, and what not. Needs Linux."""

from __future__ import annotations

import signal
import subprocess
import sys

_OPENED = """
import os, select, signal, sys
import hal
from hal.core.values import ATHREAD_C, KernelSource, OpenOptions

device = hal.open("sunway:0", options=OpenOptions(settings={"memory_nbytes": str(1 << 20)}))
HEAD = '#include <slave.h>\\nconst char f_params[] = "";\\n'


def launched(body):
    program = device.load(KernelSource(ATHREAD_C, HEAD + "void f(void *v) {" + body + "}", "f", ()))
    queue = device.create_timeline(host_driven=False)
    return device.launch(device.bind(program, []), (1, 1, 1), queue, [])


device.wait([launched("")], 60, True)
"""
_ENOUGH_S = 40


def _run(text: str) -> subprocess.CompletedProcess[str]:
    """What a program says, until the last process that it has started ends: each has its output."""
    words = [sys.executable, "-c", _OPENED + text]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=_ENOUGH_S, check=False)


def test_a_core_group_ends_with_its_host():
    """The program would go on for minutes."""
    text = """
launched("for (long i = 0; i < 5000000; i++) athread_ssync_array();")
print("launched", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = _run(text)
    assert done.stdout == "launched\n"
    assert done.returncode == -signal.SIGKILL


def test_a_forked_process_leaves_the_folder():
    text = """
child = os.fork()
if not child:
    sys.exit(0)
ended, _, _ = select.select([os.pidfd_open(child)], [], [], 20)
assert ended and os.waitpid(child, os.WNOHANG)[1] == 0
device.wait([launched("athread_ssync_array();")], 60, True)
device.close()
print("done")
"""
    done = _run(text)
    assert (done.stdout, done.returncode) == ("done\n", 0)
