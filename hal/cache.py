"""The folder in which HAL keeps what is slow to find out again, and whom to trust with it.

Programs are run as they are found here, so who writes here runs code as the user. Therefore a
folder that is another user's, or that others may write, is not used, and neither is such a file:
see decision 25.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import stat
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hal.files import clear_parts, write_whole

CACHE_VARIABLE = "HAL_CACHE_DIR"

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""A link in a cache is nobody's entry, and a pipe must not make its reader wait."""

MOST_NBYTES = 1 << 30
"""How many bytes the entries of a folder may have before those go that were not used for
longest."""

_NOTED_S = 86400.0
"""How old the time of an entry's last use may be: to note each would write to the disk at each."""


def cache_dir() -> Path:
    """$HAL_CACHE_DIR, $XDG_CACHE_HOME/hal or ~/.cache/hal. It need not exist yet."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hal"


class UntrustedCache(UserWarning):
    """A cache folder or an entry of it was not used, since others could have written it."""


class _Refused(OSError):
    """A folder or file is not its user's alone."""


class Cache:
    """Entries by name in the folder `below` of a cache directory, each behind its SHA-256; an empty
    directory keeps nothing.

    What is missing, damaged, another user's, or could have been written by others, is not there;
    an entry of that kind is removed. Folders are made for the user alone. Processes may share one.
    A folder that others can write is left alone with an `UntrustedCache` warning. Before this
    first adds to a folder with more than MOST_NBYTES, a quarter of that goes.
    """

    def __init__(self, directory: str | Path, *below: str) -> None:
        self._directory, self._below = str(directory), below
        self._cleared = False

    @property
    def is_open(self) -> bool:
        """Whether there is a directory."""
        return bool(self._directory)

    @property
    def path(self) -> Path:
        """The folder's name, for messages."""
        return Path(self._directory, *self._below)

    def get(self, name: str) -> bytes | None:
        """The content of an entry."""
        try:
            with self._opened() as folder:
                content = self._read(folder, name)
        except OSError as error:
            _warn(error)
            return None
        return content

    def put(self, name: str, content: bytes) -> None:
        """Keep an entry, if that can be done: without it the next start is only slower."""
        with suppress(OSError):
            self.write(name, content)

    def write(self, name: str, content: bytes) -> None:
        """Keep an entry. Raises OSError, with a sentence for a folder that is not to be used."""
        if not self._directory:
            return
        with self._opened(make=True) as folder:
            if not self._cleared:
                clear_parts(folder)
                _make_room(folder)
                self._cleared = True
            write_whole(folder, name, (_seal(content), b"\n", content), 0o600)

    def remove(self, name: str) -> None:
        """Let an entry go that turned out to be of no use."""
        with suppress(OSError), self._opened() as folder:
            os.unlink(name, dir_fd=folder)

    def names(self) -> list[str]:
        """The names of all entries, sorted."""
        try:
            with self._opened() as folder:
                found = os.listdir(folder)
        except OSError as error:
            _warn(error)
            return []
        return sorted(name for name in found if not name.startswith("."))

    @contextmanager
    def _opened(self, make: bool = False) -> Iterator[int]:
        """A descriptor of the folder. Raises OSError."""
        if not self._directory:
            raise FileNotFoundError("there is no cache directory")
        if make:
            make_folder(Path(self._directory))
        path = self._directory
        folder = os.open(path, _FOLDER)
        try:
            _check(os.fstat(folder), path, "folder")
            for part in self._below:
                path = f"{path}/{part}"
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=folder)
                inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
                os.close(folder)
                folder = inner
                _check(os.fstat(folder), path, "folder")
            yield folder
        finally:
            os.close(folder)

    def _read(self, folder: int, name: str) -> bytes | None:
        try:
            with open(os.open(name, _FILE, dir_fd=folder), "rb") as file:
                status = os.fstat(file.fileno())
                _check(status, "/".join((self._directory, *self._below, name)), "file")
                data = file.read() if stat.S_ISREG(status.st_mode) else b""
                if data and status.st_mtime < time.time() - _NOTED_S:
                    with suppress(OSError):  # such as on a disk that is mounted to be read
                        os.utime(file.fileno())
        except FileNotFoundError:
            return None
        except OSError as error:
            _warn(error)
            data = b""
        seal, _, content = data.partition(b"\n")
        if seal == _seal(content):
            return content
        with suppress(OSError):  # such as a folder under the name of an entry
            os.unlink(name, dir_fd=folder)
        return None


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for the user alone."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(0o700)


def _check(status: os.stat_result, path: str, what: str) -> None:
    """Raise `_Refused` for what is not this user's alone to write. Pure."""
    advice = f"set {CACHE_VARIABLE} to a folder of your own"
    if status.st_uid != os.geteuid():
        raise _Refused(
            f"the cache {what} {path} belongs to {_user(status.st_uid)}, not to "
            f"{_user(os.geteuid())}, who runs this; programs are run as they are found there, so "
            f"it is not used: {advice}"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(status.st_mode)
        raise _Refused(
            f"others than {_user(status.st_uid)} may write the cache {what} {path} (mode "
            f"{mode:04o}); programs are run as they are found there, so it is not used: if you "
            f"trust what is in it, chmod go-w {path}, else remove it, or {advice}"
        )


def _user(number: int) -> str:
    try:
        return f"{pwd.getpwuid(number).pw_name} (user {number})"
    except KeyError:
        return f"user {number}"


def _warn(error: OSError) -> None:
    if isinstance(error, _Refused):
        # Python shows a text once for each place, so a folder is spoken of once.
        warnings.warn(str(error), UntrustedCache, stacklevel=1)


def _make_room(folder: int) -> None:
    """Remove the entries of a folder that is too full that were not used for longest. Other
    processes may read and do the same: what they miss they make again."""
    entries: list[tuple[float, int, str]] = []
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and not name.startswith("."):
                entries.append((status.st_mtime, status.st_size, name))
    taken = sum(nbytes for _, nbytes, _ in entries)
    if taken <= MOST_NBYTES:
        return
    for _, nbytes, name in sorted(entries):
        if taken <= MOST_NBYTES * 3 // 4:
            break
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        taken -= nbytes


def _seal(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
