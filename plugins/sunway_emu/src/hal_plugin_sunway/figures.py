"""The emulator's figures beside the published ones: `python -m hal_plugin_sunway.figures > FILE`.

Every number of the table comes from a run of this program. It exits with 1 if one is missed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

from hal.core.dtypes import DType
from hal.core.values import Collective, CollectiveKind
from hal_plugin_sunway import allocation, ring, traffic
from hal_plugin_sunway.bench import Bench
from hal_plugin_sunway.chip import Chip, published

_FAR = 63
"""The CPE whose block of the mesh is farthest from CPE 0's."""

HEAD = """# The emulated SW26010-Pro beside published figures

Written by `python -m hal_plugin_sunway.figures`; do not edit. All times are emulated. "Within" is
the tolerance; "at least" figures have none. SWT is one author's micro-benchmarks of an SW39000
node, not peer reviewed. Which figures of the chip are published, calibrated or free is in
`plugins/sunway_emu/src/hal_plugin_sunway/chip.toml`.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A figure: what was published, what the emulator gives, and by how much they may differ; a
    tolerance of None means that the published figure is the least that is right."""

    what: str
    unit: str
    wanted: float
    found: float
    tolerance: float | None
    source: str

    @property
    def holds(self) -> bool:
        """Whether the emulator's figure is right."""
        if self.tolerance is None:
            return self.found >= self.wanted
        return abs(self.found - self.wanted) <= self.tolerance * abs(self.wanted)


def rows(chip: Chip) -> Iterator[Row]:
    """Every figure, measured anew."""
    yield from peaks(chip)
    with Bench(chip) as bench:
        yield from dma(bench)
        yield from rma(bench)
        yield from pipelines(bench)
        yield from products(bench)
        yield from attentions(bench)
    yield from rings(chip)
    yield from allocations(chip)


def peaks(chip: Chip) -> Iterator[Row]:
    """Peak rates."""
    for kind, cpe, group in (("fp64", 36e9, 2.304e12), ("fp16", 144e9, 9.216e12)):
        rate = chip[f"{kind}_flop_cycle"] * chip["cpe_hz"]
        yield Row(f"{kind} peak of a CPE", "GFLOP/s", cpe / 1e9, rate / 1e9, 0, "LK, derived")
        found = rate * chip["cpes"]
        yield Row(f"{kind} peak of a core group", "TFLOP/s", group / 1e12, found / 1e12, 0, "LK")


def dma(bench: Bench) -> Iterator[Row]:
    """DMA: rates by size and CPEs, alignment, stride."""
    giga = bench.chip["cpe_hz"] / 1e9
    large = 128 << 10
    get, put = (bench.dma_rate(large, 64, p, reps=2) for p in (False, True))
    yield Row("get of 64 CPEs", "GB/s", 47.8, get * giga, 0.07, "SWT")
    yield Row("put of 64 CPEs", "GB/s", 34.6, put * giga, 0.07, "SWT")
    for nbytes, wanted in ((128, 7.12), (512, 13.9), (2048, 20.5), (16384, 20.5)):
        found = bench.dma_rate(nbytes, 64, reps=16)
        yield Row(f"get of 64 CPEs, {nbytes} B", "B/cycle", wanted, found, 0.1, "SWT")
    for nbytes, wanted in ((512, 14.8), (4096, 15.2), (16384, 16.3)):
        found = bench.dma_rate(nbytes, 64, put=True, reps=8)
        yield Row(f"put of 64 CPEs, {nbytes} B", "B/cycle", wanted, found, 0.1, "SWT")
    yield from one_cpe(bench)
    yield from crowds(bench, put)
    yield from alignment(bench)


def one_cpe(bench: Bench) -> Iterator[Row]:
    """Latency and slope of one CPE."""
    for name, put, latency, slope in (("get", False, 441, 0.0561), ("put", True, 240, 0.0533)):
        small, half, whole = (bench.dma(n, 1, put) for n in (128, 64 << 10, 128 << 10))
        yield Row(f"{name} of one CPE, 128 B", "cycles", latency, small, 0.1, "SWT")
        found = (whole - half) / (64 << 10)
        yield Row(f"{name} of one CPE, slope", "cycles/B", slope, found, 0.1, "SWT")
    for nbytes, wanted in ((1024, 1.88), (4096, 5.76), (16384, 11.4)):
        found = bench.dma_rate(nbytes, 1)
        yield Row(f"get of one CPE, {nbytes} B", "B/cycle", wanted, found, 0.1, "SWT")


def crowds(bench: Bench, of_all: float) -> Iterator[Row]:
    """Put by the number of CPEs: most with four, less with all."""
    wanted = {1: 18.1, 2: 18.7, 4: 21.3, 8: 20.6, 16: 20.5, 32: 18.4}
    found = {n: bench.dma_rate(128 << 10, n, put=True, reps=2) for n in wanted}
    best = max(found, key=lambda n: found[n])
    yield Row("CPEs with the highest put rate", "CPEs", 4, best, 0, "SWT")
    yield Row("put, 64 CPEs against 4", "ratio", 15.4 / 21.3, of_all / found[4], 0.07, "SWT")
    for n, rate in wanted.items():
        yield Row(f"put of {n} CPEs, 128 KB", "B/cycle", rate, found[n], 0.1, "SWT")


def alignment(bench: Bench) -> Iterator[Row]:
    """What a request off the lines costs, and one with a large stride."""
    for n, wanted in ((64, 12.2), (1, 1.6)):
        aligned, off = (bench.dma(128, n, put=True, offset=o, reps=16) for o in (0, 4))
        what = f"put of 128 B, {n} CPEs, 4 B off against aligned"
        yield Row(what, "ratio", wanted, off / aligned, 0.2, "SWT")
    strided = bench.dma_rate(8192, 64, blocks=(128, (256 << 10) - 128), apart=8192)
    yield Row("get of 64 CPEs, stride 256 KB", "B/cycle", 16.4, strided, 0.1, "SWT")


def rma(bench: Bench) -> Iterator[Row]:
    """Messages between scratchpads."""
    for what, to, wanted in (("the same block", 1, 98.0), ("the far corner", _FAR, 123.0)):
        found = bench.rma(8, to)
        yield Row(f"RMA of 8 B to {what}", "cycles", wanted, found, 0.05, "SWT")
    median = sorted(bench.rma(8, to, reps=4) for to in range(1, 64))[31]
    yield Row("RMA of 8 B, median of all", "cycles", 108, median, 0.05, "SWT")
    for nbytes, wanted in ((1024, 6.6), (16384, 21.7), (65536, 24.5)):
        found = nbytes / bench.rma(nbytes, 1, kind=1)
        yield Row(f"RMA one by one, {nbytes} B", "B/cycle", wanted, found, 0.07, "SWT")


def pipelines(bench: Bench) -> Iterator[Row]:
    """Copy in, work, copy out: as long as the slowest stage, and the others once."""
    tiles = 32
    cases = {"work": (16384, 16384, 3000), "copy in": (16384, 2048, 500)}
    for what, (get, put, work) in (cases | {"copy out": (2048, 16384, 500)}).items():
        alone = [bench.pipeline((get, put), tiles, work, stage) for stage in (1, 2, 4)]
        law = max(alone) + (sum(alone) - max(alone)) / tiles
        found = bench.pipeline((get, put), tiles, work, 7)
        yield Row(f"pipeline with slow {what}", "cycles", law, found, 0.05, "law")


def products(bench: Bench) -> Iterator[Row]:
    """The matrix product of `measured/matmul.c`, of matrices with an edge of 3072."""
    for name, half, peak in (("float64", False, 2.304e12), ("float16", True, 9.216e12)):
        found = bench.matmul_rate(3072, half) / peak
        yield Row(f"matmul in {name}, share of the peak", "share", 0.85, found, None, "ICPP'22")


def attentions(bench: Bench) -> Iterator[Row]:
    """Attention over 4096 rows of 64 columns of float32, fused against unfused."""
    plain, fused = (bench.attention_cycles(4096, fused) for fused in (False, True))
    what = "fused attention against unfused, 4096 rows"
    yield Row(what, "times", 1.8, plain / fused, None, "SWattention: 2.0")


def rings(chip: Chip) -> Iterator[Row]:
    """Six core groups at one controller, and at all by turns."""
    groups, remedies = chip.count("core_groups"), ring.Remedies()
    shape = (groups, 200, 4096)
    own = ring.flow(chip, ring.own(*shape), remedies).nbytes_cycle
    one = ring.flow(chip, ring.to_one(*shape), remedies).nbytes_cycle
    turns = ring.flow(chip, ring.interleaved(*shape), remedies).nbytes_cycle
    yield Row("all at one controller", "share", 1 / groups, one / own, 0.05, "S2")
    yield Row("interleaved over all controllers", "share", 1.0, turns / own, 0.05, "S2")


def allocations(chip: Chip) -> Iterator[Row]:
    """The buffers of a training step, from the system and from a pool that holds those of the step
    before."""
    sizes = step_sizes()
    direct = allocation.direct_cycles(chip, "dynamic", sizes)
    pooled = allocation.pooled_cycles(chip, sizes, held=sizes)
    what = "pooled allocation against the dynamic mode"
    yield Row(what, "times", 1e4, direct / pooled, None, "swAlloc: up to 75,839")


def step_sizes() -> Sequence[int]:
    """The bytes of each buffer that a training step asks for, from `measured/gpt_step.txt`."""
    text = (files("hal_plugin_sunway") / "measured" / "gpt_step.txt").read_text()
    rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return [int(nbytes) for count, nbytes in rows for _ in range(int(count))]


REMEDIES = """
## The ring's remedies

Bytes per cycle that the chip's memory gives, without one of the remedies and with all. No figure of
the ring is published, so these follow from free figures: they say which way a remedy works, not how
much the real chip gains by it.

| remedy | congestion | without | with |
| --- | --- | ---: | ---: |"""


def remedies(chip: Chip) -> Iterator[str]:
    """Rows of the table of the ring's remedies."""
    groups = chip.count("core_groups")
    cases = {
        "shortest_path": ("the neighbour's controller", ring.own(groups, 200, 4096, shift=1)),
        "scheduling": ("all controllers by turns", ring.interleaved(groups, 200, 512)),
        "flow_control": ("all at one controller", ring.to_one(groups, 200, 512)),
        "merging": ("own controller, 128 B each", ring.own(groups, 200, 128)),
    }
    for name, (what, requests) in cases.items():
        off, on = (ring.Remedies(**{name: switch}) for switch in (False, True))
        without, with_it = (ring.flow(chip, requests, r).nbytes_cycle for r in (off, on))
        yield f"| {name.replace('_', ' ')} | {what} | {without:.4g} | {with_it:.4g} |"


BETWEEN = """
## Between core groups

GB/s of copies from another core group and, for collectives of the six, of the bytes that each
member gives or gets; 16 MiB each. These follow from free figures, too.

| operation | GB/s |
| --- | ---: |"""

_MESSAGE_NBYTES = 16 << 20


def between(chip: Chip) -> Iterator[str]:
    """Rows of the table of copies and collectives."""
    groups = chip.count("core_groups")
    for hops in range(1, groups // 2 + 1):
        yield f"| copy, {hops} away | {traffic.link_nbytes_s(chip, hops) / 1e9:.4g} |"
    for kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.BROADCAST):
        whole = kind is not CollectiveKind.ALL_GATHER
        count = _MESSAGE_NBYTES // 4 // (1 if whole else groups)
        parts = traffic.phases(Collective(kind, DType.F32, count), groups)
        cycles = traffic.cycles(chip, ring.Remedies(), parts, range(groups))
        yield f"| {kind.value} | {_MESSAGE_NBYTES / chip.seconds(cycles) / 1e9:.4g} |"


def page(chip: Chip, found: Sequence[Row]) -> str:
    """The tables as Markdown."""
    lines = [HEAD, "| figure | unit | published | emulated | within | | source |"]
    lines.append("| --- | --- | ---: | ---: | ---: | --- | --- |")
    for r in found:
        within = "at least" if r.tolerance is None else f"{r.tolerance:.0%}"
        verdict = "pass" if r.holds else "**fail**"
        cells = (r.what, r.unit, f"{r.wanted:.4g}", f"{r.found:.4g}", within, verdict, r.source)
        lines.append(f"| {' | '.join(cells)} |")
    passed = sum(r.holds for r in found)
    lines += ["", f"{passed} of {len(found)} pass.", REMEDIES, *remedies(chip)]
    return "\n".join([*lines, BETWEEN, *between(chip)])


def main() -> None:
    """Print the page."""
    chip = published()
    found = list(rows(chip))
    sys.stdout.write(page(chip, found) + "\n")
    sys.exit(0 if all(r.holds for r in found) else 1)


if __name__ == "__main__":
    main()
