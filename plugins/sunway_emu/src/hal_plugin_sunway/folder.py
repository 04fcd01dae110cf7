"""Folders that go with the process that made them, also where it is killed. Needs Linux."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import weakref
from pathlib import Path

from hal.core.errors import PluginError

_PREFIX = "hal-sunway-emu-"


class Folder:
    """A new folder, which goes with this object or at the end of the process that made it: one that
    was forked from that leaves it alone. Raises PluginError when none can be made.

    The process holds a lock on the folder. The kernel frees it when the process and its forks have
    ended, however they did; then the next folder of the same user clears this one away.
    """

    def __init__(self) -> None:
        try:
            # Remove the folders of this user whose processes were killed.
            for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
                held = _locked(str(left)) if _is_own(left) else None
                if held is not None:
                    shutil.rmtree(left, ignore_errors=True)
                    os.close(held)
            self.name, lock = _made()
        except OSError as error:
            raise PluginError(
                f"no folder for compiled programs can be made in {tempfile.gettempdir()}: {error}; "
                "set TMPDIR to a folder with room, or raise `ulimit -n`"
            ) from error
        self._end = weakref.finalize(self, _remove, self.name, lock, os.getpid())

    def cleanup(self) -> None:
        """Remove the folder; a second time nothing happens."""
        self._end()


def _made() -> tuple[str, int]:
    """A new folder and the descriptor that holds its lock."""
    while True:
        name = tempfile.mkdtemp(prefix=_PREFIX)
        lock = _locked(name)
        if lock is not None and Path(name).exists():
            return name, lock
        # Another process took the folder for a dead one's before it was locked, and cleared it.
        if lock is not None:
            os.close(lock)


def _remove(name: str, lock: int, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(name, ignore_errors=True)
        os.close(lock)


def _is_own(path: Path) -> bool:
    """Whether the path is a folder, no link to one, of this user."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _locked(folder: str) -> int | None:
    """A descriptor that holds the folder's lock; None where another one does, or where the folder
    has gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
