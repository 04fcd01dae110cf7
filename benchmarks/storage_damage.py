"""Flipped bits and cuts anywhere in a step, one at a time: found, named, loaded past, repaired.

`python -m benchmarks.storage_damage FOLDER [COUNT]` hurts the files of a step with parity, manifest
and index among them, at COUNT random places (1,000).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.row import BenchmarkError
from stack.storage import CheckpointLimits, Checkpoints
from stack.storage.folder import Folder
from stack.storage.repair import repair, verify
from stack.storage.steps import StepFolder

CUT = 8
FOLDER = StepFolder(1, 0)
SMALL = CheckpointLimits(block=4096, file_nbytes=50_000)


def places(folder: Path, count: int, seed: int) -> Iterator[tuple[Path, int, int]]:
    """So many (file, byte, bit) of all files of a step; bit CUT stands for a cut."""
    rng = np.random.default_rng(seed)
    files = sorted(folder.iterdir())
    for i in range(count):
        file = files[i % len(files)]
        yield file, int(rng.integers(file.stat().st_size)), int(rng.integers(CUT + 1))


def hurt(file: Path, byte: int, bit: int) -> None:
    """Flip a bit of a file, or cut it."""
    data = bytearray(file.read_bytes())
    if bit == CUT:
        del data[byte:]
    else:
        data[byte] ^= 1 << bit
    file.write_bytes(data)


def expect_found(where: Path, file: Path, byte: int) -> None:
    """The damage is found, and it is said in what file and where. Raises BenchmarkError."""
    damages = verify([Folder(where)], FOLDER).damages
    if not damages or any(f"{FOLDER.name}/{file.name}" not in str(d) for d in damages):
        raise BenchmarkError(f"byte {byte} of {file} is damaged; what is said: {damages}")
    inside = [d for d in damages if d.offset <= byte < d.offset + d.nbytes]
    if "manifest" not in file.name and not inside:
        raise BenchmarkError(f"byte {byte} of {file} is damaged; what is named: {damages}")


def survive(where: Path, count: int, seed: int) -> None:
    """Hurt a step, which has parity, so many times; each time it loads and is repaired, byte for
    byte. Raises BenchmarkError."""
    folder = where / FOLDER.name
    before = {f.name: f.read_bytes() for f in folder.iterdir()}
    want = _loaded(where)
    for file, byte, bit in places(folder, count, seed):
        hurt(file, byte, bit)
        expect_found(where, file, byte)
        if _loaded(where) != want:
            raise BenchmarkError(f"other values load with byte {byte} of {file} damaged")
        lost = repair([Folder(where)], FOLDER).lost
        if lost or {f.name: f.read_bytes() for f in folder.iterdir()} != before:
            raise BenchmarkError(f"byte {byte} of {file} is not repaired: {lost}")


def _loaded(where: Path) -> list[tuple[str, str, bytes]]:
    with Checkpoints(where, limits=SMALL) as checkpoints:
        tensors = checkpoints.load().tensors
    return [(g, n, a.tobytes()) for g, members in tensors.items() for n, a in members.items()]


if __name__ == "__main__":
    target = Path(sys.argv[1])
    total = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    rng = np.random.default_rng(0)
    state = {"model": {f"w{i}": rng.random((61, 33), np.float32) for i in range(9)}}
    with Checkpoints(target, limits=SMALL, parity=1) as saving:
        saving.save(FOLDER.step, state)
    survive(target, total, seed=1)
    print(f"{total} of {total} found, named, loaded past and repaired")
