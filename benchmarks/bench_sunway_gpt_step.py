"""A training step of the GPT on the emulated chip against one thread of the CPU plugin, both in
wall time, and the time that the chip would take."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import hal
from benchmarks import gpt, opencl
from benchmarks.row import Bar, Row
from benchmarks.worker import Worker

DEVICE, PEER = "sunway:0", "cpu:0"
CLAIM = f"GPT training step on {DEVICE}, float32"
BAR = Bar(ratio=1 / 30)
"""At most thirty times the time."""


def rows(quick: bool) -> Iterator[Row]:
    if not any(row.name == DEVICE for row in hal.devices()):
        note = f"no device {DEVICE}: pip install hal-plugin-sunway-emu"
        yield Row(f"{CLAIM}, wall time", "tokens/s", None, peer_name=PEER, bar=BAR, note=note)
        return
    ours, peer, emulated_s = _measured(1 if quick else 5)
    one = f"{PEER}, one thread"
    wall = f"{CLAIM}, wall time"
    yield Row(wall, "tokens/s", ours, peer, one, BAR, more_is_better=True, note=opencl.load())
    yield Row(f"{CLAIM}, emulated", "tokens/s", gpt.TOKENS / emulated_s, note="one core group")


def _measured(turns: int) -> tuple[float, float, float]:
    """Tokens/s of both devices, which take turns, and emulated seconds of a step."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        report = folder / "report.jsonl"
        ours = Worker("our_gpt", "float32", DEVICE, env={"HAL_SUNWAY_REPORT": str(report)})
        stack.enter_context(ours)
        peer = stack.enter_context(Worker("our_gpt", "float32", PEER, env={"HAL_CPU_THREADS": "1"}))
        for worker in (ours, peer):
            worker.step()
        before_s = _emulated_s(report)
        steps = [(ours.step().seconds, peer.step().seconds) for _ in range(turns)]
        emulated_s = (_emulated_s(report) - before_s) / turns
    ours_s, peer_s = (median(times) for times in zip(*steps, strict=True))
    return gpt.TOKENS / ours_s, gpt.TOKENS / peer_s, emulated_s


def _emulated_s(report: Path) -> float:
    """What all launches so far took."""
    lines = map(json.loads, report.read_text().splitlines())
    return float(sum(line["emulated_s"] for line in lines if "launch" in line))
