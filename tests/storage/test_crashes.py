"""A crash after any call of the operating system, with what was not synced lost, in part or not."""

import random
import shutil
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from stack.storage import Checkpoints
from stack.storage.disk import Disk
from stack.storage.folder import Folder
from stack.storage.repair import verify
from stack.storage.steps import Listing
from tests.storage.states import SMALL, differs, state


@pytest.fixture
def in_memory():
    """A folder of which nothing has to be synced, since what matters is only what is in it."""
    with TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


class Recorder:
    """A disk that does what it is told and writes it down, by file rather than by handle."""

    def __init__(self, root):
        self._disk, self._root = Disk(direct=True), root
        self.flags = self._disk.flags
        self.log, self._files, self._names = [], {}, {}

    def _note(self, kind, *rest):
        self.log.append((kind, *rest))

    def _at(self, path):
        return path.relative_to(self._root)

    def make_folder(self, path):
        self._disk.make_folder(path)
        self._note("folder", self._at(path))

    def create(self, path):
        handle = self._disk.create(path)
        self._names[path] = self._files[handle] = len(self.log)
        self._note("create", self._at(path), self._files[handle])
        return handle

    def open(self, path):
        handle = self._disk.open(path)
        self._files[handle] = self._names[path]
        return handle

    def allocate(self, handle, size):
        self._disk.allocate(handle, size)
        self._note("size", self._files[handle], size, max)

    def write(self, handle, data, offset):
        self._disk.write(handle, data, offset)
        self._note("data", self._files[handle], data.tobytes(), offset)

    def truncate(self, handle, size):
        self._disk.truncate(handle, size)
        self._note("size", self._files[handle], size, min)

    def sync(self, handle):
        self._disk.sync(handle)
        self._note("sync", self._files[handle])

    def sync_folder(self, path):
        self._disk.sync_folder(path)
        self._note("sync folder", self._at(path))

    def link(self, source, target):
        self._disk.link(source, target)
        self._names[target] = self._names[source]
        self._note("name", self._names[source], self._at(target), None)

    def rename(self, source, target):
        self._disk.rename(source, target)
        self._names[target] = self._names.pop(source)
        self._note("name", self._names[target], self._at(target), self._at(source))

    def remove(self, path):
        there = path.exists()
        self._disk.remove(path)
        if there:
            self._note("remove", self._at(path))

    def remove_folder(self, path):
        self._disk.remove_folder(path)
        self._note("remove folder", self._at(path))


def lasts(log, i):
    """Whether call i of a log has been made to last by a later one."""
    kind, *rest = log[i]
    if kind.startswith("sync"):
        return True
    if kind in ("data", "size"):
        return ("sync", rest[0]) in log[i:]
    paths = rest[1:] if kind == "name" else rest[:1]
    folders = {path.parent for path in paths if path is not None}
    return any(("sync folder", folder) in log[i:] for folder in folders)


def left(log, kept, target):
    """Make the folder that a crash leaves: after these calls, without those not in `kept`."""
    data, names = defaultdict(bytearray), {}
    target.mkdir()
    for i, (kind, *rest) in enumerate(log):
        if i not in kept or kind.startswith("sync"):
            continue
        if kind == "create":
            names[rest[0]] = rest[1]
        elif kind == "name":
            file, new, old = rest
            if old is None or names.get(old) == file:
                names.pop(old, None)
                names[new] = file
        elif kind == "remove":
            names.pop(rest[0], None)
        elif kind == "data":
            file, bytes_, offset = rest
            data[file].extend(bytes(max(0, offset + len(bytes_) - len(data[file]))))
            data[file][offset : offset + len(bytes_)] = bytes_
        elif kind == "size":
            file, size, bound = rest
            size = bound(size, len(data[file]))
            data[file] = data[file][:size] + bytes(max(0, size - len(data[file])))
    for name, file in names.items():
        (target / name).parent.mkdir(exist_ok=True)
        (target / name).write_bytes(data[file])


def check(folder, states):
    """What is left is one whole state, and the next save removes the rest."""
    with Checkpoints([Folder(folder)], limits=SMALL, deadline_s=120, keep=1) as c:
        loaded = c.load()
        assert not differs(loaded.tensors, states[loaded.step])
        listing = Listing.of(Folder(folder))
        for found in listing.committed:
            assert not verify([Folder(folder)], found).damages
        c.save(9, states[9])
        assert {f.name for f in folder.iterdir() if not f.name.startswith(".")} == {
            "step-000000000009"
        }
        assert not differs(c.load().tensors, states[9])
        return loaded.step


@pytest.mark.slow
@pytest.mark.turns
def test_a_crash_after_any_call_leaves_the_old_state_or_the_new_one(tmp_path, in_memory):
    root = tmp_path / "live"
    root.mkdir()
    disk = Recorder(root)
    states = {step: {"model": state(step)["optimizer"]} for step in (1, 2, 3, 4, 9)}
    starts = []
    store = Folder(root, disk, spare_from=1)
    with Checkpoints([store], limits=SMALL, deadline_s=120, keep=1) as c:
        for step in (1, 2, 3, 4):  # the third is the first to write over a file of a former step
            starts.append(len(disk.log))
            c.save(step, states[step])
    assert any(kind == "name" and ".spare" in str(rest[2]) for kind, *rest in disk.log)
    seen = set()
    choose = random.Random(7)
    for end in range(starts[3], len(disk.log) + 1):
        log = disk.log[:end]
        sure = {i for i in range(end) if lasts(log, i)}
        unsure = [i for i in range(end) if i not in sure]
        some = {i for i in unsure if choose.random() < 0.5}
        for kept in {frozenset(k) for k in (sure, sure | set(unsure), sure | some)}:
            folder = in_memory / "left"
            left(log, kept, folder)
            seen.add(check(folder, states))
            shutil.rmtree(folder)
    assert seen == {3, 4}


def test_a_call_that_was_not_made_to_last_may_be_lost(tmp_path):
    """The test above can fail: without the sync of a folder a commit may be lost."""
    root = tmp_path / "live"
    root.mkdir()
    disk = Recorder(root)
    with Checkpoints([Folder(root, disk)], limits=SMALL, deadline_s=120) as c:
        c.save(1, {"model": state(1)["optimizer"]})
    log = [call for call in disk.log if call[0] != "sync folder"]
    left(log, {i for i in range(len(log)) if lasts(log, i)}, tmp_path / "left")
    assert not Listing.of(Folder(tmp_path / "left")).committed
    with suppress(FileNotFoundError):
        shutil.rmtree(tmp_path / "left")
