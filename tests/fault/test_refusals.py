"""What an elastic job refuses before its first step, in words."""

import os

import pytest

from stack.fault.generations import Memory
from stack.launch.keeping import settle, whole_step
from tests.fault import train
from tests.launch.running import Folder

ELASTIC = ("-n", 1, "--least", "1", "--devices", "cpu:0")


@pytest.mark.slow
def test_a_script_that_declares_no_state(tmp_path):
    folder, lines = Folder(tmp_path), ["from stack.comm.group import Group"]
    lines += ["from stack.comm.world import World", "Group.of(World.from_environment())"]
    done = folder.run(*ELASTIC, folder.write("\n".join(lines)))
    assert done.code == 1
    assert "what a rank holds has to be declared: make groups from" in "\n".join(done.err)


@pytest.mark.slow
def test_a_kept_state_of_other_shapes(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    (tmp_path / "out").mkdir()
    memory = Memory.made(2, 64)
    memory.begin(7, b"{}", 64, 0)[:] = 1
    memory.end(5, 1)
    settle(tmp_path / "kept", [memory.descriptor], is_well=False)
    os.close(memory.descriptor)
    done = Folder(tmp_path).run(*ELASTIC, "--keep", "kept", train.__file__, tmp_path / "out", 9)
    assert done.code == 1
    said = "\n".join(done.err)
    assert "the state that was kept on this host is of another training, with 64 bytes" in said
    assert not list((tmp_path / "out").iterdir())
    assert whole_step(tmp_path / "kept/state.bin") == 5
