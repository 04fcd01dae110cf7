"""Worker: one kernel again and again. `python -m benchmarks.kernel_case LIBRARY CASE`; a step is
`CASES[CASE].calls` calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.worker import serve


@dataclass(frozen=True, slots=True)
class Case:
    """A function of tensors, alike in both libraries."""

    shapes: tuple[tuple[int, ...], ...]
    run: Callable[..., Any]
    calls: int
    nbytes: int
    """What must move in a call."""
    flops: int = 0

    @property
    def unit(self) -> str:
        return "GFLOP/s" if self.flops else "GB/s" if self.nbytes else "us"


MATRIX = (4096, 4096)
CASES = {
    "copy of 16 MB": Case(((4096, 1024),), lambda x: x + 1.0, 8, 1 << 25),
    "transposed copy of 4096 by 1024": Case(
        ((4096, 1024),), lambda x: x.T.contiguous(), 8, 1 << 25
    ),
    "transposed copy of 1000 by 3007": Case(
        ((1000, 3007),), lambda x: x.T.contiguous(), 8, 8 * 1000 * 3007
    ),
    "sum with the transpose, 1024": Case(((1024, 1024),), lambda x: x + x.T, 16, 12 << 20),
    "product of 1 by 4096 by 4096": Case(((1, 4096), MATRIX), lambda x, y: x @ y, 4, 1 << 26),
    "the same, matrix transposed": Case(((1, 4096), MATRIX), lambda x, y: x @ y.T, 4, 1 << 26),
    "product of 8 by 4096 by 4096": Case(((8, 4096), MATRIX), lambda x, y: x @ y, 4, 1 << 26),
    "product of 256 cubed": Case(((256, 256), (256, 256)), lambda x, y: x @ y, 32, 0, 2 * 256**3),
    "product of 384 by 1536 by 2048, left transposed": Case(
        ((2048, 384), (2048, 1536)), lambda x, y: x.T @ y, 4, 0, 2 * 384 * 1536 * 2048
    ),
    "call with 16 floats": Case(((16,),), lambda x: x + x, 1000, 0),
}


def prepare() -> Callable[[], float]:
    library, name = sys.argv[1:]
    case = CASES[name]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in case.shapes]
    if library == "torch":
        import torch  # noqa: PLC0415 - the other contender runs without it

        tensors: list[Any] = [torch.from_numpy(a) for a in arrays]
        function, ends = case.run, lambda _: None
    else:
        import stack.framework as ht  # noqa: PLC0415 - the other contender runs without it

        tensors = [ht.tensor(a) for a in arrays]
        function, ends = ht.jit(case.run), lambda y: y.reshape(-1)[:1].numpy()

    def step() -> float:
        for _ in range(case.calls):
            result = function(*tensors)
        ends(result)
        return 0.0

    return step


if __name__ == "__main__":
    serve(prepare)
