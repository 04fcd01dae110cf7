"""Hashes: of JSON values, of the suite, of a plugin's files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_UNHASHED = ("__pycache__",)


def of_json(value: Any) -> str:
    """The hash of a JSON value, whatever the order of its keys and the spaces in its text."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def of_suite() -> str:
    """The hash of the suite: of every case, and of what runs and judges cases."""
    return of_folder(_HERE, "*.py")


def of_folder(folder: str | Path, pattern: str = "*") -> str:
    """The hash of all files of a folder whose name fits: of their places in it and contents."""
    folder = Path(folder)
    digest = hashlib.sha256()
    for path in sorted(folder.rglob(pattern)):
        if path.is_file() and not set(path.parts) & set(_UNHASHED):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()
