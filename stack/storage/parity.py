"""Parity over the files of a step: block i of a parity file repairs block i of any other file.

One parity file is the XOR of all files. With more, Reed-Solomon codes by `pyeclib` (ISA-L's
`isa_l_rs_vand_inv`): of k files and m parity files any k give all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from stack.storage.errors import StorageError
from stack.storage.memory import Bytes

MOST = 32
"""liberasurecode has no more files and parity files together."""


def check(files: int, parity: int) -> None:
    """Raises StorageError where this many files cannot have so much parity."""
    if parity > 1:
        if files + parity > MOST:
            raise StorageError(
                f"{files} files and {parity} of parity are more than {MOST}: ask for parity=1, or "
                "for larger files"
            )
        _codec(files, parity)


def encoded(parts: Sequence[Bytes], parity: int) -> list[Bytes]:
    """The parity blocks of blocks of equal length."""
    if parity == 1:
        return [np.bitwise_xor.reduce(parts)]
    codec, header = _codec(len(parts), parity)
    made = codec.encode(b"".join(p.tobytes() for p in parts))
    return [np.frombuffer(f, np.uint8)[header:] for f in made[len(parts) :]]


def restored(parts: Sequence[Bytes | None], parity: int, which: int) -> Bytes | None:
    """Block number `which` of the files and then the parity files; None stands for blocks that are
    damaged. Gives None where too many are."""
    known = [p for p in parts if p is not None]
    files = len(parts) - parity
    if len(known) < files:
        return None
    if parity == 1:
        made: Bytes = np.bitwise_xor.reduce(known)
        return made
    codec, _ = _codec(files, parity)
    heads = _heads(files, parity, len(known[0]))
    fragments = [heads[i] + p.tobytes() for i, p in enumerate(parts) if p is not None]
    lost = codec.reconstruct(fragments, [which])[0]
    return np.frombuffer(lost, np.uint8)[len(heads[0]) :]


@lru_cache(maxsize=8)
def _codec(files: int, parity: int) -> tuple[Any, int]:
    try:
        driver = import_module("pyeclib.ec_iface")
    except ImportError as error:
        raise StorageError(
            f"parity={parity} needs pyeclib: pip install 'hal-accel[parity]', or ask for parity=1"
        ) from error
    codec = driver.ECDriver(k=files, m=parity, ec_type="isa_l_rs_vand_inv")
    nbytes = 4096
    fragment = len(codec.encode(bytes(nbytes * files))[0])
    return codec, fragment - nbytes


@lru_cache(maxsize=8)
def _heads(files: int, parity: int, nbytes: int) -> list[bytes]:
    """What stands before each block in the codec's fragments; it depends on their number and length
    alone."""
    codec, header = _codec(files, parity)
    return [f[:header] for f in codec.encode(bytes(nbytes * files))]
