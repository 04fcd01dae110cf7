"""What a core group's process and folder outlive, and what not. Needs Linux."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hal_plugin_sunway.folder import Folder

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


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """The folder for temporary files, of this process and of those that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def _run(text: str) -> subprocess.CompletedProcess[str]:
    """What a program says, until the last process that it has started ends: each has its output."""
    words = [sys.executable, "-c", text]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=_ENOUGH_S, check=False)


def test_a_core_group_ends_with_its_host_and_the_next_one_clears_its_folders(place):
    """The program would go on for minutes."""
    text = """
launched("for (long i = 0; i < 5000000; i++) athread_ssync_array();")
print("launched", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = _run(_OPENED + text)
    assert done.stdout == "launched\n"
    assert done.returncode == -signal.SIGKILL
    assert list(place.iterdir())
    Folder().cleanup()
    assert not list(place.iterdir())


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
    done = _run(_OPENED + text)
    assert (done.stdout, done.returncode) == ("done\n", 0)
    assert not list(Path(tempfile.gettempdir()).iterdir())


def test_a_forked_process_outlives_the_emulator_of_the_one_that_made_it(place):
    text = """
import os, sys, time
from hal.cache import Cache
from hal_plugin_sunway import toolchain

cache = Cache(os.environ["TMPDIR"] + "/cache")
first = toolchain.worker(cache)
if os.fork():
    sys.exit(0)
ends = time.monotonic() + 20
while first.exists() and time.monotonic() < ends:
    time.sleep(0.01)
print(first.exists(), toolchain.worker(cache).exists())
"""
    done = _run(text)
    assert (done.stdout, done.returncode) == ("False True\n", 0)
    assert [left.name for left in place.iterdir()] == ["cache"]


_FOLDER = "import os, signal\nfrom hal_plugin_sunway.folder import Folder\nfolder = Folder()\n"


def test_only_folders_of_ended_processes_are_cleared(place):
    mine = Folder()
    killed = _run(_FOLDER + "print(folder.name, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)")
    assert killed.returncode == -signal.SIGKILL
    assert {str(left) for left in place.iterdir()} == {mine.name, killed.stdout.strip()}
    assert _run(_FOLDER).returncode == 0
    assert [str(left) for left in place.iterdir()] == [mine.name]
    mine.cleanup()


def test_what_only_has_the_name_stays(place):
    target = place / "target"
    target.mkdir()
    (place / "hal-sunway-emu-link").symlink_to(target)
    (place / "hal-sunway-emu-file").write_text("")
    Folder().cleanup()
    assert {p.name for p in place.iterdir()} == {
        "target",
        "hal-sunway-emu-link",
        "hal-sunway-emu-file",
    }


def test_folders_that_are_made_at_once_leave_each_other_alone(place):
    def one(_):
        folder = Folder()
        file = Path(folder.name) / "file"
        file.write_text("mine")
        try:
            return file.read_text()
        finally:
            folder.cleanup()

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(one, range(100))) == ["mine"] * 100
    assert not list(place.iterdir())
