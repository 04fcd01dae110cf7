"""Saving and loading 1 GiB of float32 over two ranks, against PyTorch's DCP and direct I/O.

The ways take turns in one run. Files go to a folder beside the repository's own, or to
HAL_BENCH_FOLDER; what is read was dropped from the page cache. A plan is that of rank 0 of 64 ranks
with 10,000 tensors cut by rows, each way of telling the others left out.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.machine import ROOT
from benchmarks.row import Bar, BenchmarkError, Row
from benchmarks.storage_ranks import DEADLINE_S, SIZE, TOKEN
from stack.comm.store import StoreServer
from stack.storage.boxes import Box, rows_of
from stack.storage.data import Samples, add_tokens
from stack.storage.layout import TensorInfo, layout_of
from stack.storage.plan import Turns, chosen, held, owners, planned, split
from stack.storage.staging import staging_of

TIMED = (
    *("save_ours", "save_dcp", "save_direct", "save_hf", "load_ours", "load_dcp", "load_direct"),
    *(
        "stall_ours",
        "stall_dcp",
        "stall_tensors",
        "held_ours",
        "held_dcp",
        "step_alone",
        "step_beside",
    ),
)


def rows(quick: bool) -> Iterator[Row]:
    """The claims of storage."""
    rounds, nbytes = (2, 128 << 20) if quick else (5, 1 << 30)
    with _pair(nbytes) as ranks:
        found: dict[str, list[float]] = {way: [] for way in TIMED}
        for number in range(rounds + 1):
            for way in TIMED:
                value = max(ranks.ask(way))
                if number:  # the first round makes files and plans
                    found[way].append(value)
        memory = {way: max(ranks.ask(way)) for way in ("memory_save", "memory_load")}
    t = {way: median(values) for way, values in found.items()}
    yield Row("save", "s", t["save_ours"], t["save_dcp"], "dcp.save", Bar(1.5))
    yield Row("save", "s", t["save_ours"], t["save_hf"], "DCP's Hugging Face writer", Bar(1.5))
    yield Row("save", "s", t["save_ours"], t["save_direct"], "direct writes", Bar(0.85))
    yield Row("load", "s", t["load_ours"], t["load_dcp"], "dcp.load", Bar(1.0))
    yield Row("load", "s", t["load_ours"], t["load_direct"], "direct reads", Bar(0.85))
    yield Row(
        "stall of a background save", "s", t["stall_tensors"], t["stall_dcp"], "async_save",
        Bar(5.0),
    )  # fmt: skip
    yield Row(
        "stall of one of plain arrays, until they may change", "s", t["stall_ours"],
        t["stall_dcp"], "async_save", Bar(5.0),
    )  # fmt: skip
    yield Row(
        "stall, and what the steps beside it lose", "s", t["held_ours"], t["held_dcp"],
        "async_save", Bar(5.0),
    )  # fmt: skip
    yield Row("step beside a write", "s", t["step_beside"], t["step_alone"], "alone", Bar(1 / 1.1))
    yield Row("memory of a save", "MiB", memory["memory_save"], bar=Bar(limit=256))
    yield Row("memory of a load", "MiB", memory["memory_load"], bar=Bar(limit=256))
    yield Row("plan, 10,000 tensors, 64 ranks", "s", _plan_s(rounds), bar=Bar(limit=0.05))
    yield _windows(rounds)


class _Ranks:
    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def ask(self, way: str) -> list[float]:
        """Every rank's figure."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{way}\n")
            process.stdin.flush()
        return self.hear()

    def hear(self) -> list[float]:
        return [_answer(process) for process in self._processes]


def _answer(process: subprocess.Popen[str]) -> float:
    assert process.stdout is not None
    ready = select.select([process.stdout], [], [], DEADLINE_S)[0]
    line = process.stdout.readline() if ready else ""
    if not line:
        raise BenchmarkError("the ranks of the benchmark do not answer; see their errors")
    return float(json.loads(line) or 0.0)


@contextmanager
def _pair(nbytes: int) -> Iterator[_Ranks]:
    folder = tempfile.mkdtemp(dir=os.environ.get("HAL_BENCH_FOLDER", str(ROOT.parent)))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        server = stack.enter_context(StoreServer(TOKEN))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            gloo = f"127.0.0.1:{probe.getsockname()[1]}"
        processes = []
        for rank in range(SIZE):
            words = [f"127.0.0.1:{server.port}", gloo, str(rank), folder, str(nbytes)]
            command = [sys.executable, "-W", "ignore", "-m", "benchmarks.storage_ranks", *words]
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)
            processes.append(process)
            stack.callback(_end, process)
        ranks = _Ranks(processes)
        ranks.hear()
        yield ranks


def _end(process: subprocess.Popen[str]) -> None:
    try:
        process.communicate(timeout=60)  # the end of its input ends it
    finally:
        process.kill()


def _plan_s(rounds: int, ranks: int = 64, tensors: int = 10_000) -> float:
    """Seconds of a processor, of what one rank computes for a plan."""
    shape, rows = (ranks * 4, 1024), 4
    infos = [TensorInfo("model", f"layer.{i}", "F32", shape) for i in range(tensors)]
    layout = layout_of(infos)
    addresses = [layout.addresses[t.key][1] for t in infos]
    have = np.array(
        [
            held(split([rows_of(shape, 4, _part(r, rows))] * tensors, addresses, layout.block),
                 layout.blocks)
            for r in range(ranks)
        ]
    )  # fmt: skip
    took = []
    for _ in range(rounds):
        start = time.process_time()
        mine = split(
            [rows_of(shape, 4, _part(0, rows)) for _ in range(tensors)], addresses, layout.block
        )
        turns = Turns.of(owners(have, np.ones(layout.blocks, bool)))
        mine = turns.sorted(mine)
        took.append(time.process_time() - start)
        told = [mine[turns.owner[mine[:, 0]] == 0][:, :5] for _ in range(ranks)]
        traffic = have.copy()
        traffic[turns.owner, np.arange(layout.blocks)] = 0
        start = time.process_time()
        chosen(told, 0)
        staging_of(planned(layout, turns, 0, mine, told, traffic, 32 << 20), tensors)
        took[-1] += time.process_time() - start
    return median(took)


def _part(rank: int, rows: int) -> Box:
    return Box((rank * rows, 0), (rows, 1024))


def _windows(rounds: int) -> Row:
    """Random windows of 4 KiB from a shard, verified, against a plain map of it."""
    length = 1024
    with tempfile.TemporaryDirectory(dir=ROOT.parent) as name:
        folder = Path(name)
        np.save(folder / "a.npy", np.arange(32 << 20, dtype=np.int32))
        add_tokens(folder, "a.npy")
        samples = Samples(folder, length)
        plain = np.load(folder / "a.npy", mmap_mode="r")
        at = np.random.default_rng(0).integers(0, samples.count, 5000).tolist()

        def ours() -> None:
            for i in at:
                samples.sample(i).sum()

        def peer() -> None:
            for i in at:
                plain[i * length : i * length + length + 1].sum()

        took: dict[object, list[float]] = {ours: [], peer: []}
        for _ in range(rounds + 1):
            for way, seconds in took.items():
                start = time.process_time()
                way()  # type: ignore[operator]
                seconds.append((time.process_time() - start) / len(at))
    ratio = Bar(0.8)
    return Row("a window of 4 KiB", "s", median(took[ours]), median(took[peer]), "np.memmap", ratio)
