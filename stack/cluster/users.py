"""Accounts of this machine: who asks, and as whom a job runs."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass


class NotAllowed(InvalidCall):
    """It is somebody else's, or for the operator alone."""


@dataclass(frozen=True, slots=True)
class User:
    """An account, with its first group and the folder that is its home."""

    name: str
    uid: int
    gid: int
    home: str

    @property
    def is_own(self) -> bool:
        """Whether this process runs as this user."""
        return self.uid == os.getuid()

    def environment(self) -> dict[str, str]:
        """What a process that is started as this user finds: nothing of who starts it."""
        named = {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}
        return {"PATH": os.environ.get("PATH", os.defpath), **named}


def own() -> User:
    """Who this process runs as; an account without a name has its number for one."""
    try:
        return _user(pwd.getpwuid(os.getuid()))
    except KeyError:
        return User(str(os.getuid()), os.getuid(), os.getgid(), str(Path.home()))


def named(name: str) -> User:
    """The account of a name. Raises InvalidCall where there is none."""
    mine = own()
    if name == mine.name:
        return mine
    try:
        return _user(pwd.getpwnam(name))
    except KeyError:
        raise InvalidCall(f"there is no user {name!r} on this machine") from None


def _user(entry: pwd.struct_passwd) -> User:
    return User(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir)


def open_own(path: Path) -> BinaryIO:
    """Read a file that is its folder's owner's. He may put anything there, also the name of what is
    not his: a link, a pipe that nobody writes to. Raises FileNotFoundError for these."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise FileNotFoundError(f"{path} cannot be read: {error}") from error
    found, owner = os.fstat(descriptor), path.parent.stat().st_uid
    if not S_ISREG(found.st_mode) or found.st_uid != owner:
        os.close(descriptor)
        raise FileNotFoundError(f"{path} is no file of user {owner}")
    return os.fdopen(descriptor, "rb")
