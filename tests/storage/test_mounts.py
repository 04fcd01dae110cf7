"""File systems that are full or take nothing any more, mounted for the test alone."""

import shutil
import subprocess
import sys

import pytest

UNSHARE = shutil.which("unshare")
MOUNT = 'mount -t tmpfs -o size=64m none "$1" && exec "$2" -c "$3" "$1"'
START = (str(UNSHARE), "--mount", "--map-root-user", "sh", "-c", MOUNT, "sh")

PROGRAM = """
import subprocess, sys
import numpy as np
from stack.storage import Checkpoints, StorageError

folder = sys.argv[1] + "/run"
small = {"model": {"w": np.arange(1 << 20, dtype=np.float32)}}
large = {"model": {"w": np.zeros(20 << 20, np.float32)}}

def refused(*words, **more):
    try:
        checkpoints.save(2, *words, **more)
        checkpoints.wait_idle()
    except StorageError as error:
        print(error)
    else:
        print("saved")
    with Checkpoints(folder) as others:
        loaded = others.load()
        assert others.steps() == [1] and (loaded.tensors["model"]["w"] == small["model"]["w"]).all()

checkpoints = Checkpoints(folder)
checkpoints.save(1, small)
refused(large)
refused(large, background=True)
checkpoints.close()  # a mount stays writable as long as a file is open for writing
subprocess.run(["mount", "-o", "remount,ro", sys.argv[1]], check=True, timeout=30)
checkpoints = Checkpoints(folder)
refused(small)
subprocess.run(["mount", "-o", "remount,rw", sys.argv[1]], check=True, timeout=30)
checkpoints.save(2, small)
print(checkpoints.steps())
checkpoints.close()
"""


@pytest.mark.slow
def test_a_full_disk_and_a_read_only_one_are_said_and_the_old_checkpoint_loads(tmp_path):
    words = (str(tmp_path), sys.executable)
    if not UNSHARE or subprocess.run([*START, *words, ""], timeout=60, check=False).returncode:
        pytest.skip("this user may mount nothing in a namespace of its own")
    done = subprocess.run(
        [*START, *words, PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    full, also_full, read_only, after = done.stdout.splitlines()
    for text in (full, also_full):
        assert "cannot take 83,890,176 bytes for step-000000000002/model.safetensors" in text
        assert "bytes are free, 83,890,176 needed: make space, or keep fewer steps" in text
    assert "the file system is read-only: save elsewhere, or mount it for writing" in read_only
    assert after == "[2, 1]"
