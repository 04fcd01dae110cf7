"""Products of matrices, beside what the processor multiplies in registers and against PyTorch and
numpy, by processor time."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import geometric_mean

from benchmarks.kernel_case import PRODUCTS, VECTORS
from benchmarks.kernel_turns import REGISTERS, best, measured
from benchmarks.row import Bar, Row

OF_THE_LIMIT = {"float32": 0.9, "bfloat16": 0.85, "int8": 0.8}
SMALL = 2 * 256**3
"""Operations of the smallest ones, which the limit is no bar for."""
OF_READING = Bar(ratio=0.9)


def rows(quick: bool) -> Iterator[Row]:
    ratios = []
    for name, case in PRODUCTS.items():
        libraries = ["ours", "torch", REGISTERS] + ["numpy"] * (case.dtype == "float32")
        found = measured(name, libraries, quick)
        limit = found[REGISTERS]
        peer, peer_name = best(case, found)
        yield Row(name, case.unit, found["ours"], peer, peer_name, Bar(ratio=1), True, "one thread")
        claim, bar = f"{name}: of the limit", Bar(ratio=OF_THE_LIMIT[case.dtype])
        bar = None if case.flops == SMALL else bar
        yield Row(claim, case.unit, found["ours"], limit, "in registers", bar, True, "one thread")
        ratios += [found["ours"] / peer] if peer else []
    for name, case in VECTORS.items():
        found = measured(name, ["ours", "torch", "numpy", "read"], quick)
        peer, peer_name = best(case, found)
        yield Row(name, case.unit, found["ours"], peer, peer_name, Bar(ratio=1), True, "one thread")
        claim, read = f"{name}: of reading", found["read"]
        yield Row(claim, case.unit, found["ours"], read, "reading", OF_READING, True, "one thread")
        ratios += [found["ours"] / peer] if peer else []
    if ratios:
        mean, note = geometric_mean(ratios), "geometric mean of all of these"
        yield Row("products", "", mean, 1.0, "the best peer", Bar(ratio=1.05), True, note)
