"""Files that appear under their name whole or not at all.

A file is written under a temporary name in its own folder and then renamed. The writer holds a
lock on it meanwhile, which the kernel frees when the writer ends, however it does: so what a killed
writer left can be told from what is being written.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable
from contextlib import suppress

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def write_whole(
    folder: int,
    name: str,
    parts: Iterable[bytes],
    mode: int,
    exactly: bool = False,
    durable: bool = False,
) -> None:
    """Put a file with these bytes in the place of `name` in an open folder, in one moment.

    It gets `mode` less what the process's umask takes away, or `exactly` that mode. `durable`: it
    is on disk before it has its name, and its name before this returns. Raises OSError; the file
    that was there is then as before, and no other one is left.
    """
    part, file = _begun(folder, name, 0o600 if exactly else mode)
    try:
        with open(file, "wb") as stream:
            for data in parts:
                stream.write(data)
            stream.flush()
            if exactly:
                os.fchmod(file, mode)
            if durable:
                os.fsync(file)
            os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(part, dir_fd=folder)
        raise
    if durable:
        os.fsync(folder)


def clear_parts(folder: int, name: str | None = None) -> None:
    """Remove what killed writers left of the file `name` in an open folder, or of any file. What
    living ones are writing stays."""
    stem = ".+" if name is None else re.escape(name)
    pattern = re.compile(rf"\.{stem}\.[0-9a-f]{{16}}\.part", re.DOTALL)
    for part in filter(pattern.fullmatch, os.listdir(folder)):
        # It may be another user's, gone by now, locked, or where files cannot be locked.
        with suppress(OSError):
            file = os.open(part, _OLD, dir_fd=folder)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(part, dir_fd=folder)
            finally:
                os.close(file)


def _begun(folder: int, name: str, mode: int) -> tuple[str, int]:
    """A new temporary file's name, and its descriptor, which holds its lock."""
    while True:
        part = f".{name}.{os.urandom(8).hex()}.part"
        file = os.open(part, _NEW, mode, dir_fd=folder)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.stat(part, dir_fd=folder, follow_symlinks=False)
        except (BlockingIOError, FileNotFoundError):
            # `clear_parts` of another process took it for a dead writer's before it was locked.
            os.close(file)
        except OSError:
            return part, file  # files cannot be locked here, so nobody clears them
        else:
            return part, file
