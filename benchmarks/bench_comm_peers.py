"""Collectives of float32 and messages between two processes of one host, of every kind and size,
against OpenMPI and MPICH, which are found by $HAL_BENCH_MPI; draws `results/comm_peers.png`.

Arrays that no cache holds come from memory READS times in a call, and two cores get no more of it
than when both only copy: notes of their rows say what ratio that leaves room for."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from statistics import median

from benchmarks.comm_ranks import COPY, KINDS, Pair
from benchmarks.mpi_pair import PLACES, MpiPair, places
from benchmarks.report import RESULTS
from benchmarks.row import Bar, Row

SMALLEST, LARGEST = 8, 64 << 20
SIZES = (*(SMALLEST << 2 * k for k in range(12)), LARGEST)
OURS = ("shared", "private")
LARGE = 1 << 20
"""From here on shared memory is to be twice as fast as the better MPI."""
LEVEL, TWICE = Bar(ratio=1.0), Bar(ratio=2.0)
LATENCY_BARS = {"message": Bar(limit=6.0)}
"""Of the smallest size: a message there and back may take 3 us each way."""
_ROUND_NBYTES = 32 << 20
_MOST_REPEATS = 200
GIB = 2**30
UNCACHED = 32 << 20
"""Arrays of so many bytes are in no cache when they come again."""
READS = {
    "all_reduce": 2,
    "all_gather": 1,
    "reduce_scatter": 2,
    "all_to_all": 2,
    "broadcast": 1,
    "message": 2,
}
"""How often as many bytes as the array has must be read, by both ranks together: sources that are
reduced or exchanged are of both, what all get is read once and written twice, a message goes there
and back. Copies are as slow as their reads."""

Run = Callable[[str, int, int], float]
"""Gives the seconds of a call of a kind and so many bytes, as the mean of so many."""
Times = Mapping[str, float]
"""Seconds of a call, by who ran it."""


def rows(quick: bool) -> Iterator[Row]:
    """A row for each kind, size and kind of memory, against the better MPI."""
    if not places():
        note = f"{PLACES} names no environment with mpi4py, numpy and openmpi or mpich"
        yield Row("collectives against MPI", "us", None, note=note)
        return
    found: dict[str, dict[int, Times]] = {kind: {} for kind in KINDS}
    with ExitStack() as stack:
        pair = stack.enter_context(Pair(bound=True))
        peers = [stack.enter_context(MpiPair(place)) for place in places()]
        run: dict[str, Run] = {way: partial(_ours, pair, way) for way in OURS}
        run.update({peer.name: peer.seconds for peer in peers})
        for kind in KINDS:
            for nbytes in SIZES:
                racing = run | {COPY: partial(_copied, pair)} if nbytes >= UNCACHED else run
                times = _medians(racing, kind, nbytes, 5 if quick else 15)
                yield from (_row(kind, way, nbytes, times) for way in OURS)
                found[kind][nbytes] = {who: times[who] for who in run}
    if not quick:
        draw(found)


def _ours(pair: Pair, way: str, kind: str, nbytes: int, repeats: int) -> float:
    return pair.seconds(kind, way, nbytes, repeats)


def _copied(pair: Pair, kind: str, nbytes: int, repeats: int) -> float:
    """The seconds in which two cores that only copy read what a call of this kind must read."""
    return READS[kind] / 2 * pair.seconds(COPY, "shared", nbytes, repeats)


def _medians(run: Mapping[str, Run], kind: str, nbytes: int, rounds: int) -> Times:
    """Measured in turns, of which the first touches the memory; each turn begins with another."""
    repeats = min(max(_ROUND_NBYTES // nbytes, 1), _MOST_REPEATS)
    names, turns = deque(run), []
    for _ in range(rounds + 1):
        turns.append({who: run[who](kind, nbytes, repeats) for who in names})
        names.rotate(1)
    return {who: median(turn[who] for turn in turns[1:]) for who in run}


def _row(kind: str, way: str, nbytes: int, times: Times) -> Row:
    what = "message there and back" if kind == "message" else kind.replace("_", "-")
    claim = f"{what} of {_size(nbytes)}, two processes, {way} memory"
    peers = [who for who in times if who not in (*OURS, COPY)]
    peer = min(peers, key=lambda who: times[who])
    others = ", ".join(f"{who} {times[who] * 1e6:.4g}" for who in peers)
    note = f"in us: {others}; load {os.getloadavg()[0]:.1f}"
    if COPY in times:
        most = f"which leaves room for a ratio of {times[peer] / times[COPY]:.2f}"
        note += f"; two cores copy what must be read in {times[COPY] * 1e6:.4g}, {most}"
    bar = TWICE if way == "shared" and nbytes >= LARGE else LEVEL
    if nbytes == SMALLEST:
        bar = LATENCY_BARS.get(kind, bar)
    return Row(claim, "us", 1e6 * times[way], 1e6 * times[peer], peer, bar, note=note)


def draw(found: Mapping[str, Mapping[int, Times]]) -> None:
    """The rates of all, by kind and size, on logarithmic axes."""
    pyplot = import_module("matplotlib.pyplot")
    figure, grid = pyplot.subplots(2, 3, figsize=(15, 9), layout="constrained", sharex=True)
    for kind, axes in zip(found, grid.flat, strict=True):
        for who in found[kind][SMALLEST]:
            rates = [nbytes / GIB / times[who] for nbytes, times in found[kind].items()]
            ours = who in OURS
            label = f"hal, {who} memory" if ours else who
            axes.plot(list(found[kind]), rates, "o-" if ours else ".--", label=label)
        axes.set(xscale="log", yscale="log", title=kind.replace("_", "-"))
        axes.set_xticks(list(found[kind]), [_size(n) for n in found[kind]], rotation=45)
        axes.grid(alpha=0.3)
    grid[0, 0].legend()
    figure.supylabel("GiB/s of the whole array")
    figure.suptitle("float32 between two processes of one host")
    figure.savefig(RESULTS / "comm_peers.png", dpi=100)
    pyplot.close(figure)


def _size(nbytes: int) -> str:
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes // factor} {unit}"
    return f"{nbytes} bytes"
