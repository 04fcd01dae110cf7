"""All-reduces of float32 and messages between two processes of one host, at all sizes, against
OpenMPI and MPICH (all-reduces against gloo, too), which are found by $HAL_BENCH_MPI; draws
`results/comm_peers.png`."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from statistics import median

from benchmarks.comm_ranks import MESSAGE, WAYS, Pair
from benchmarks.mpi_pair import PLACES, MpiPair, places
from benchmarks.report import RESULTS
from benchmarks.row import Bar, Row

SMALLEST, LARGEST = 8, 64 << 20
SIZES = (*(SMALLEST << 2 * k for k in range(12)), LARGEST)
OURS = ("shared", "private")
BARS = {("shared", LARGEST): Bar(ratio=2.5), ("private", LARGEST): Bar(ratio=1.0)}
LATENCY = Bar(ratio=1 / 3)
MESSAGES = (8, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20)
MESSAGE_BARS = {8: Bar(limit=6.0)}
"""Of a message there and back: 3 us each way; others must not be slower than the better MPI."""
_ROUND_NBYTES = 64 << 20
_MOST_REPEATS = 200
GIB = 2**30

Run = Callable[[int, int], float]
"""Gives the seconds of an all-reduce of so many bytes, as the mean of so many."""
Times = Mapping[str, float]
"""Seconds of an all-reduce, by who ran it."""


def rows(quick: bool) -> Iterator[Row]:
    """A row for each size and kind of memory, against the better MPI."""
    if not places():
        note = f"{PLACES} names no environment with mpi4py, numpy and openmpi or mpich"
        yield Row("all-reduces against MPI", "us", None, note=note)
        return
    with ExitStack() as stack:
        pair = stack.enter_context(Pair(bound=True))
        free = stack.enter_context(Pair())  # gloo has threads that share its processors
        peers = [stack.enter_context(MpiPair(place)) for place in places()]
        run: dict[str, Run] = {way: partial(pair.seconds, way) for way in OURS}
        run["gloo"] = partial(free.seconds, "gloo")
        run.update({peer.name: partial(peer.seconds, "all-reduce") for peer in peers})
        found = {}
        for nbytes in SIZES:
            times = found[nbytes] = _medians(run, nbytes, 5 if quick else 25)
            yield from (_row(way, nbytes, times) for way in OURS)
        run = {MESSAGE: partial(pair.seconds, MESSAGE)}
        run.update({peer.name: partial(peer.seconds, "message") for peer in peers})
        for nbytes in MESSAGES:
            yield _message_row(nbytes, _medians(run, nbytes, 5 if quick else 25))
    yield from _latency(found[SMALLEST])
    if not quick:
        draw(found)


def _medians(run: Mapping[str, Run], nbytes: int, rounds: int) -> Times:
    """Measured in turns, of which the first touches the memory; each turn begins with another."""
    repeats = min(max(_ROUND_NBYTES // nbytes, 1), _MOST_REPEATS)
    names, turns = deque(run), []
    for _ in range(rounds + 1):
        turns.append({who: run[who](nbytes, repeats) for who in names})
        names.rotate(1)
    return {who: median(turn[who] for turn in turns[1:]) for who in run}


def _row(way: str, nbytes: int, times: Times) -> Row:
    claim = f"all-reduce of {_size(nbytes)}, two processes, {way} memory"
    peer = min((who for who in times if who not in WAYS), key=lambda who: times[who])
    others = ", ".join(f"{who} {times[who] * 1e6:.4g}" for who in times if who not in OURS)
    note = f"in us: {others}; load {os.getloadavg()[0]:.1f}"
    bar = BARS.get((way, nbytes))
    return Row(claim, "us", 1e6 * times[way], 1e6 * times[peer], peer, bar, note=note)


def _message_row(nbytes: int, times: Times) -> Row:
    claim = f"message of {_size(nbytes)} there and back, two processes"
    peer = min((who for who in times if who != MESSAGE), key=lambda who: times[who])
    others = ", ".join(f"{who} {times[who] * 1e6:.4g}" for who in times if who != MESSAGE)
    note = f"in us: {others}; load {os.getloadavg()[0]:.1f}"
    bar = MESSAGE_BARS.get(nbytes, Bar(ratio=1.0))
    return Row(claim, "us", 1e6 * times[MESSAGE], 1e6 * times[peer], peer, bar, note=note)


def _latency(times: Times) -> Iterator[Row]:
    for who in [who for who in times if who == "OpenMPI"]:
        claim = f"all-reduce of {_size(SMALLEST)}, two processes, against OpenMPI alone"
        yield Row(claim, "us", 1e6 * times["private"], 1e6 * times[who], who, LATENCY)


def draw(found: Mapping[int, Times]) -> None:
    """The rates of all, by size, on logarithmic axes."""
    pyplot = import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for who in next(iter(found.values())):
        rates = [nbytes / GIB / times[who] for nbytes, times in found.items()]
        ours = who in OURS
        label = f"hal, {who} memory" if ours else who
        axes.plot(list(found), rates, "o-" if ours else ".--", label=label)
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="GiB/s of the vector")
    axes.set_xticks(list(found), [_size(nbytes) for nbytes in found], rotation=45)
    axes.set_title("all-reduce of float32 between two processes of one host")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(RESULTS / "comm_peers.png", dpi=120)
    pyplot.close(figure)


def _size(nbytes: int) -> str:
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes // factor} {unit}"
    return f"{nbytes} bytes"
