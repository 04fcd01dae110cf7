"""A folder that keeps what was compiled. It may hold anything, go away or be read-only: then it is
as if it were empty."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

_NBYTES = hashlib.sha256().digest_size


def fetch(cache_dir: str, built: Path) -> bool:
    """Put what is kept under the name of `built` there; False where nothing whole is kept."""
    if not cache_dir:
        return False
    try:
        data = (Path(cache_dir) / built.name).read_bytes()
    except OSError:
        return False
    content, digest = data[:-_NBYTES], data[-_NBYTES:]
    if hashlib.sha256(content).digest() != digest:
        return False
    _write(built, content)
    return True


def keep(cache_dir: str, built: Path) -> None:
    """Keep a file under its name, if that can be done."""
    if cache_dir:
        content = built.read_bytes()
        with suppress(OSError):
            Path(cache_dir).mkdir(parents=True, exist_ok=True)
            _write(Path(cache_dir) / built.name, content + hashlib.sha256(content).digest())


def _write(path: Path, data: bytes) -> None:
    """A file that is there whole or not at all, executable as what it holds may be."""
    number, partial = tempfile.mkstemp(".part", dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), 0o700)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise
