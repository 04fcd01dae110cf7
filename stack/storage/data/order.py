"""The order of an epoch: a permutation that is computed where it is asked for, without a table.

A Feistel network permutes the smallest square of a power of two that holds all samples; what falls
behind the last sample walks on until it does not (Black and Rogaway, "Ciphers with Arbitrary Finite
Domains", 2002). The mixer is splitmix64's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stack.storage.errors import StorageError

ROUNDS = 6
U64 = NDArray[np.uint64]
MOST = 1 << 62
"""Positions and their squares of powers of two stay in 64 bits."""


def permuted(positions: NDArray[np.int64], count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Which of `count` samples is at each of these positions of an epoch; each is at one. The same
    on every machine. Raises StorageError for positions outside and for more than 2**62 samples."""
    positions = np.asarray(positions, np.int64)
    if not 0 < count <= MOST or (
        positions.size and not 0 <= positions.min() <= positions.max() < count
    ):
        raise StorageError(f"positions {positions} are not among {count:,} samples")
    half = np.uint64(max(1, -(-(count - 1).bit_length() // 2)))
    start = seed * 0x9E3779B97F4A7C15 + epoch * 0xD1B54A32D192ED03
    words = (start + i * 0xBF58476D1CE4E5B9 & (1 << 64) - 1 for i in range(1, ROUNDS + 1))
    keys = [_mixed(np.uint64(word)) for word in words]
    values = _feistel(positions.astype(np.uint64), half, keys)
    beyond = values >= count
    while beyond.any():  # a cycle comes back to where it began, which is not beyond
        values[beyond] = _feistel(values[beyond], half, keys)
        beyond = values >= count
    return values.astype(np.int64)


def _feistel(values: U64, half: np.uint64, keys: list[U64]) -> U64:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return (left << half) | right


def _mixed(values: U64 | np.uint64) -> U64:
    """splitmix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014)."""
    with np.errstate(over="ignore"):
        values = np.asarray(values, np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))
