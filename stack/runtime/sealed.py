"""Files of a cache that several processes share: written as a whole, with their checksum."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path


def read_sealed(path: Path) -> bytes | None:
    """The content of a file, None where it is missing, unreadable or damaged."""
    try:
        seal, _, content = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    return content if seal == _seal(content) else None


def write_sealed(path: Path, content: bytes) -> None:
    """Put a file in its place, from one moment to the next. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        whole = Path(folder, path.name)
        whole.write_bytes(_seal(content) + b"\n" + content)
        os.replace(whole, path)


def _seal(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
