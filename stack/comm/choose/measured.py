"""Times of programs that were measured, on disk.

A file holds the rows of one network as text, a row a line after two lines of head:

    hal-comm-measured 1 0f...                      the format, and the SHA-256 of what follows
    network 3c...                                  its signature
    all-reduce ring/4 1048576 0.00031              kind, algorithm, bytes, seconds
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from hal.cache import make_folder
from hal.core.facts import dataclass
from hal.files import write_whole
from stack.comm.plan.error import PlanError
from stack.comm.plan.program import PlanKind
from stack.comm.plan.text import KINDS

FORMAT = "hal-comm-measured 1"
_ROW = re.compile(r"(\S+) (\S+) (\d{1,18}) (\d{1,18}(?:\.\d+)?(?:e[+-]?\d{1,3})?)", re.ASCII)
"""Times are finite and not negative, as `repr` writes them."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """An algorithm, in the text of `chooser.Estimate`, took so many seconds for a call of
    `nbytes`, which are those of the longest vector that a rank gives or takes. The element type is
    not kept: rows of one type serve all."""

    kind: PlanKind
    algorithm: str
    nbytes: int
    seconds: float


def measured_path(directory: Path, network: str) -> Path:
    """The file for the network with this signature."""
    return directory / "comm" / f"{network}.measured"


def read_measured(path: Path, network: str) -> tuple[Measurement, ...]:
    """The rows of a file; () where there is none.

    All ranks of a group need the same rows, since they decide what runs: let one read them. Raises
    PlanError for a file that is damaged or of another network, OSError where it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ()
    return parse_measured(text, network, str(path))


def parse_measured(text: str, network: str, where: str) -> tuple[Measurement, ...]:
    """The rows of a file's text. Raises PlanError that names `where` as `read_measured` does."""
    head, _, body = text.partition("\n")
    if head != f"{FORMAT} {_seal(body)}":
        raise PlanError(f"{where} is damaged, or no table of format '{FORMAT}'; remove it")
    first, *lines = body.splitlines()
    if first != f"network {network}":
        raise PlanError(f"{where} is of {first}, not of network {network}; remove it")
    return tuple(_row(line, f"{where}, line {number}") for number, line in enumerate(lines, 3))


def write_measured(path: Path, network: str, rows: Iterable[Measurement]) -> None:
    """Put a table in its place, from one moment to the next. Raises OSError."""
    lines = [f"{r.kind.value} {r.algorithm} {r.nbytes} {r.seconds!r}" for r in rows]
    body = "\n".join([f"network {network}", *lines]) + "\n"
    make_folder(path.parent)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        write_whole(folder, path.name, (f"{FORMAT} {_seal(body)}\n{body}".encode(),), 0o666)
    finally:
        os.close(folder)


def merged(old: Iterable[Measurement], new: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """The rows of both; the new ones replace those of the same kind, algorithm and size."""
    table = {(r.kind.value, r.algorithm, r.nbytes): r for r in (*old, *new)}
    return tuple(table[key] for key in sorted(table))


def _row(line: str, where: str) -> Measurement:
    """Raises PlanError: a seal says that nobody damaged a table, not that it was right."""
    match = _ROW.fullmatch(line)
    if match is None or match[1] not in KINDS:
        text = "it is '<kind> <algorithm> <bytes> <seconds>'; remove the file"
        raise PlanError(f"{where}: {line[:80]!r} is no row of a table of measured times: {text}")
    return Measurement(KINDS[match[1]], match[2], int(match[3]), float(match[4]))


def _seal(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
