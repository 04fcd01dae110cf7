"""Whether a driver's compiler keeps loops to their end.

Mesa's llvmpipe counts the rounds of all loops of a work-item together and leaves every loop after
65,535 of them without a word: products and sums of a model's size are then wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pyopencl as cl

# The class below `pyopencl.Program`, which has neither a cache of its own nor options of its own.
from pyopencl._cl import _Program

from hal.cache import Cache

_ROUNDS, _ADDED = 100_003, 7
_TEXT = """
__kernel void rounds(__global uint *x) {
    const uint count = x[0], added = x[1];
    uint y = 0;
    for (uint i = 0; i < count; ++i) y = 3U * y + added;
    x[2] = y;
}
"""
_WANTED = _ADDED * ((pow(3, _ROUNDS, 1 << 33) - 1) // 2) % (1 << 32)
_KEPT: set[str] = set()
"""The drivers, by fingerprint, that this process has seen to keep loops."""


def keeps_loops(
    queue: cl.CommandQueue, fingerprint: str, cache_dir: str, wait: Callable[[cl.Event], None]
) -> bool:
    """Whether a long loop makes all its rounds: asked once of a driver, and remembered in the
    cache where it does. `wait` waits for an event."""
    cache = Cache(cache_dir, "opencl")
    name = hashlib.sha256(f"loops {_ROUNDS} {fingerprint}".encode()).hexdigest()
    if fingerprint in _KEPT or cache.get(name) is not None:
        _KEPT.add(fingerprint)
        return True
    program = _Program(queue.context, _TEXT)
    program._build(b"", [queue.device])
    kernel, numbers = cl.Kernel(program, "rounds"), np.array([_ROUNDS, _ADDED, 0], np.uint32)
    memory = cl.Buffer(
        queue.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=numbers
    )
    kernel.set_arg(0, memory)
    ran = cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,))
    read: cl.Event = cl.enqueue_copy(queue, numbers, memory, wait_for=[ran], is_blocking=False)
    queue.flush()
    wait(read)
    if int(numbers[2]) != _WANTED:
        return False
    _KEPT.add(fingerprint)
    cache.put(name, b"kept")
    return True
