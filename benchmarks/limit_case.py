"""Worker: how many operations per second the processor makes in registers: multiply-adds of
vectors, or instructions of the matrix unit for a type. `python -m benchmarks.limit_case DTYPE
THREADS`; each step measures anew, with so many threads at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from multiprocessing import get_context
from statistics import median

from hal_plugin_cpu import describe, machine

from benchmarks.serving import serve
from hal.core.dtypes import DType

TYPES = {"float32": DType.F32, "bfloat16": DType.BF16, "int8": DType.I8}
WINDOWS = 400
"""Measurements of some 0.15 ms, of which the median counts: together about as long as a kernel that
is compared takes, for a processor's clock changes within less."""


def one_core(dtype: DType) -> float:
    """Operations/s of one core, measured now."""
    by_vectors = machine.fma_rates.__wrapped__()[0]
    by_units = [
        machine.dot_rate.__wrapped__(number) * 2 * unit.m * unit.n * unit.k
        for number, unit in describe.UNITS
        if dtype in (unit.inputs, unit.right_inputs) and machine.dot_rate(number)
    ]
    # Neighbouring integers are multiplied in pairs of 16 bits, twice as many as floats of 32.
    pairs = 2 * by_vectors if dtype.is_int else by_vectors
    return max(pairs, *by_units) if by_units else pairs


def rate(dtype: DType) -> float:
    """Operations/s of one core over a while."""
    return median(one_core(dtype) for _ in range(WINDOWS))


found: dict[str, int] = {}


def prepare() -> Callable[[], float]:
    dtype, threads = TYPES[sys.argv[1]], int(sys.argv[2])
    # Processes: a measurement keeps the interpreter to itself, so that threads would take turns.
    pool = get_context("spawn").Pool(threads)

    def step() -> float:
        found["operations_per_s"] = round(sum(pool.map(rate, [dtype] * threads, chunksize=1)))
        return 0.0

    return step


if __name__ == "__main__":
    serve(prepare, lambda: found)
