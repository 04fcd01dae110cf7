"""Byte corpora: real text in a training part, which becomes a shard of tokens, and a validation
part."""

from __future__ import annotations

import fcntl
import hashlib
import sysconfig
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from stack.storage.data import add_tokens, shards_in

VALIDATION_EVERY = 10
"""Each tenth file is for validation; of a single file, its last tenth."""

SHARD = "tokens.bin"
LOCK_S = 120.0
"""How long a process waits for another one that makes the shard."""


class CorpusError(Exception):
    """The text cannot be read or is too short."""


@dataclass(frozen=True)
class Corpus:
    """Bytes to train on and to validate on (uint8 vectors), and how many files they came from."""

    train: np.ndarray
    validation: np.ndarray
    files: int


def standard_library() -> list[Path]:
    """The source of the running interpreter's standard library, without its tests and packages."""
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"test", "tests", "site-packages", "idlelib", "lib2to3", "__pycache__", "ensurepip"}
    found = (p for p in root.rglob("*.py") if skipped.isdisjoint(p.relative_to(root).parts))
    return sorted(found, key=lambda p: p.relative_to(root).as_posix())


def load(paths: Sequence[str], context: int) -> Corpus:
    """Read files (and all files in folders); without paths the standard library.

    Raises CorpusError naming the path that cannot be read, or when there is less text than two
    contexts of `context` bytes for each part.
    """
    files = standard_library() if not paths else list(_expanded(paths))
    texts = [_read(p) for p in files]
    if len(texts) < VALIDATION_EVERY:
        whole = b"\n".join(texts)
        cut = len(whole) - len(whole) // VALIDATION_EVERY
        parts = whole[:cut], whole[cut:]
    else:
        held = texts[VALIDATION_EVERY - 1 :: VALIDATION_EVERY]
        rest = [t for i, t in enumerate(texts) if i % VALIDATION_EVERY != VALIDATION_EVERY - 1]
        parts = b"\n".join(rest), b"\n".join(held)
    train, validation = (np.frombuffer(p, np.uint8) for p in parts)
    if min(len(train), len(validation)) < 2 * context:
        raise CorpusError(
            f"the text has {len(train)} bytes to train on and {len(validation)} to validate on; a "
            f"context of {context} takes {2 * context} of each: give more text with --text "
            f"(about {2 * context * VALIDATION_EVERY} bytes in all)"
        )
    return Corpus(train, validation, len(files))


def _expanded(paths: Iterable[str]) -> Iterable[Path]:
    for name in paths:
        path = Path(name)
        if path.is_dir():
            yield from sorted(p for p in path.rglob("*") if p.is_file())
        else:
            yield path


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CorpusError(f"cannot read text from {path}: {error.strerror}") from None


def shard_of(tokens: np.ndarray, folder: Path, make: bool) -> Path:
    """The folder, below this one, whose one shard these tokens (uint8) are; its name follows from
    them. Where it is to be made, it is there afterwards; of several processes one makes it."""
    found = folder / hashlib.blake2b(tokens, digest_size=8).hexdigest()
    if not make:
        return found
    found.mkdir(parents=True, exist_ok=True)
    with (found / "lock").open("w") as lock:
        _take(lock)
        if not shards_in(found):
            tokens.tofile(found / SHARD)
            add_tokens(found, SHARD, "uint8")
    return found


def _take(lock: TextIO) -> None:
    """Wait until no other process makes the shard. Raises CorpusError where that takes too long."""
    until_s = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise CorpusError(
                    f"another process has held {lock.name} for {LOCK_S:g} s; end it"
                ) from None
            time.sleep(0.05)
        else:
            return


def pairs(windows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets (rows, context), int64, of windows of context + 1 tokens."""
    tokens = np.stack(windows).astype(np.int64)
    return tokens[:, :-1], tokens[:, 1:]


def validation_batches(
    data: np.ndarray, count: int, rows: int, context: int
) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """One to `count` batches of windows spread evenly over the data, the same every time.

    Windows overlap only where there is too little data for one batch.
    """
    windows = max(1, min(count, (len(data) - 1) // (context * rows))) * rows
    starts = np.linspace(0, len(data) - context - 1, windows).astype(int)
    for i in range(0, windows, rows):
        rows_of = np.stack([data[s : s + context + 1] for s in starts[i : i + rows]]).astype(
            np.int64
        )
        yield rows_of[:, :-1], rows_of[:, 1:]
