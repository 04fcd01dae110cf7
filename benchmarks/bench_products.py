"""Products of matrices, beside what the processor multiplies in registers and against PyTorch and
numpy, by processor time."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import geometric_mean

from benchmarks.kernel_case import PRODUCTS, VECTORS
from benchmarks.kernel_turns import REGISTERS, best, measured
from benchmarks.row import Bar, Row

OF_THE_LIMIT = {"float32": Bar(ratio=0.9), "bfloat16": Bar(ratio=0.85), "int8": Bar(ratio=0.8)}
SMALL = 2 * 256**3
"""Operations of the smallest ones, which the limit is no bar for."""


def rows(quick: bool) -> Iterator[Row]:
    ratios = []
    for name, case in PRODUCTS.items():
        libraries = ["ours", "torch", REGISTERS] + ["numpy"] * (case.dtype == "float32")
        found = measured(name, libraries, quick)
        limit = found[REGISTERS]
        peer, peer_name = best(case, found)
        yield Row(name, case.unit, found["ours"], peer, peer_name, Bar(ratio=1), True, "one thread")
        claim = f"{name}: of the limit"
        bar = None if case.flops == SMALL else OF_THE_LIMIT[case.dtype]
        yield Row(claim, case.unit, found["ours"], limit, "in registers", bar, True, "one thread")
        ratios += [found["ours"] / peer] if peer else []
    for name, case in VECTORS.items():
        found = measured(name, ["ours", "torch", "numpy", "read", REGISTERS], quick)
        peer, peer_name = best(case, found)
        yield Row(name, case.unit, found["ours"], peer, peer_name, Bar(ratio=1), True, "one thread")
        claim = f"{name}: of the limit"
        limit, limit_name = min((found["read"], "reading"), (found[REGISTERS], "in registers"))
        yield Row(
            *(claim, case.unit, found["ours"], limit, limit_name, OF_THE_LIMIT[case.dtype]),
            *(True, "one thread"),
        )
        ratios += [found["ours"] / peer] if peer else []
    if ratios:
        mean, note = geometric_mean(ratios), "geometric mean of all of these"
        yield Row("products", "", mean, 1.0, "the best peer", Bar(ratio=1.05), True, note)
