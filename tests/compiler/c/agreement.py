"""Runs kernels on an OpenCL device and interpreted, and compares every buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hal.tile.interpret import interpret
from hal.tile.kernel import Kernel
from hal.tile.numeric import quiet
from tests.compiler.c.machine import run
from tests.compiler.llvm.agreement import assert_close


def agree(
    kernel: Kernel,
    grid: tuple[int, ...],
    buffers: Mapping[str, np.ndarray],
    scalars: Mapping[str, Any] | None = None,
    *,
    ulp: float = 0,
    scale: Any = None,
    run: Callable[..., None] = run,
) -> dict[str, np.ndarray]:
    """Compare; give the buffers as the interpreter left them."""
    wanted = {name: a.copy() for name, a in buffers.items()}
    got = {name: a.copy() for name, a in buffers.items()}
    interpret(kernel, grid, wanted, scalars or {})
    run(kernel, grid, got, scalars)
    with quiet():
        for name in buffers:
            assert_close(got[name], wanted[name], ulp, scale)
    return wanted
