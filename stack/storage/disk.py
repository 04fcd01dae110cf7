"""The calls of the operating system that a folder of checkpoints makes, and no others: what a crash
leaves follows from their order."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from stack.storage.memory import Bytes


class Disk:
    """Files on this machine, written past the page cache where the file system can."""

    def __init__(self, direct: bool) -> None:
        self.flags = os.O_CLOEXEC | (os.O_DIRECT if direct else 0)

    def make_folder(self, path: Path) -> None:
        """A folder in one that is there: not those around it, which may be on a disk that is gone.
        One that is there itself is no error."""
        path.mkdir(exist_ok=True)

    def create(self, path: Path) -> int:
        """Open a new file for writing. Raises FileExistsError."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | self.flags, 0o644)

    def open(self, path: Path) -> int:
        """Open a file for writing into."""
        return os.open(path, os.O_WRONLY | self.flags)

    def allocate(self, handle: int, size: int) -> None:
        """Take space up to `size` bytes."""
        os.posix_fallocate(handle, 0, size)

    def write(self, handle: int, data: Bytes, offset: int) -> None:
        """Write all of the data."""
        at = 0
        while at < len(data):
            at += os.pwrite(handle, data[at:].data, offset + at)

    def truncate(self, handle: int, size: int) -> None:
        """Cut a file to its size."""
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        """Make a file's bytes and size last."""
        os.fsync(handle)

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder last."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name. Raises FileExistsError."""
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Move a file, over another one that has the name."""
        os.rename(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file; one that is not there is no error."""
        path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder; one that has files, or is not there, stays as it is."""
        try:
            path.rmdir()
        except OSError:
            return


def takes_direct(folder: Path) -> bool:
    """Whether files in a folder can be read and written past the page cache; not where none can be
    made, as on a file system that is mounted for reading alone."""
    path = folder / f".direct-{os.getpid()}"
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EROFS, errno.EACCES, errno.EPERM):
            return False
        raise
    finally:
        with suppress(OSError):
            path.unlink()
    return True
