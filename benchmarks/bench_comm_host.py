"""An all-reduce of float32 between two processes of one host, against PyTorch's gloo."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from benchmarks.comm_ranks import WAYS, Pair
from benchmarks.row import Bar, Row

GIB = 2**30
LARGE = 64 << 20
SIZES = (8, 128, 2 << 10, 32 << 10, 512 << 10, 8 << 20, LARGE)
BARS = {"shared": 4.0, "private": 1.8}
LATENCY_BAR = 40.0
_ROUND_NBYTES = 4 << 20
_MOST_REPEATS = 100


def rows(quick: bool) -> Iterator[Row]:
    """A row for each size and kind of memory; small ones by time, large ones by rate."""
    with Pair() as pair:
        for nbytes in SIZES:
            times_s = _medians(pair, nbytes, 5 if quick else 25)
            yield from (_row(way, nbytes, times_s) for way in BARS)


def _medians(pair: Pair, nbytes: int, rounds: int) -> dict[str, float]:
    """Seconds by way, measured in turns; the first turn touches the memory."""
    repeats = min(max(_ROUND_NBYTES // nbytes, 1), _MOST_REPEATS)
    turns = [
        {way: pair.seconds("all_reduce", way, nbytes, repeats) for way in WAYS}
        for _ in range(rounds + 1)
    ]
    return {way: median(turn[way] for turn in turns[1:]) for way in WAYS}


def _row(way: str, nbytes: int, times_s: dict[str, float]) -> Row:
    ours, peer = times_s[way], times_s["gloo"]
    claim = f"all-reduce of {_size(nbytes)}, two processes, {way} memory"
    if nbytes >= 1 << 20:
        bar = Bar(ratio=BARS[way]) if nbytes == LARGE else None
        rate, peer_rate = nbytes / GIB / ours, nbytes / GIB / peer
        return Row(claim, "GiB/s", rate, peer_rate, "gloo", bar, more_is_better=True)
    bar = Bar(ratio=LATENCY_BAR) if (way, nbytes) == ("private", SIZES[0]) else None
    return Row(claim, "us", 1e6 * ours, 1e6 * peer, "gloo", bar)


def _size(nbytes: int) -> str:
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes // factor} {unit}"
    return f"{nbytes} bytes"
