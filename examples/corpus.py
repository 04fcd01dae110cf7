"""Byte corpora: real text, split into training and validation parts, and batches as a pure function of the step."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

VALIDATION_EVERY = 10
"""Each tenth file is for validation; of a single file, its last tenth."""


class CorpusError(Exception):
    """The text cannot be read or is too short."""


@dataclass(frozen=True)
class Corpus:
    """Bytes to train on and bytes to validate on (uint8 vectors), and how many files they came from."""

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
    if len(validation) < 2 * context:
        raise CorpusError(
            f"the text has {len(train) + len(validation)} bytes; with a context of {context} it takes "
            f"at least {2 * context * VALIDATION_EVERY}: give more text with --text"
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


def batch(
    data: np.ndarray, seed: int, step: int, rows: int, context: int
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets (rows, context), int64: random windows that depend on seed and step alone."""
    rng = np.random.default_rng((seed, step))
    starts = rng.integers(0, len(data) - context, rows)
    windows = np.stack([data[s : s + context + 1] for s in starts]).astype(np.int64)
    return windows[:, :-1], windows[:, 1:]


def validation_batches(
    data: np.ndarray, count: int, rows: int, context: int
) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """At most `count` batches of windows spread evenly over the data, the same every time."""
    windows = min(count * rows, (len(data) - 1) // context) // rows * rows
    starts = np.linspace(0, len(data) - context - 1, windows).astype(int)
    for i in range(0, windows, rows):
        rows_of = np.stack([data[s : s + context + 1] for s in starts[i : i + rows]]).astype(
            np.int64
        )
        yield rows_of[:, :-1], rows_of[:, 1:]
