"""How fast the ranks of a mesh are, measured."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from stack.parallel.agree import among_all
from stack.parallel.mesh import Mesh

CALLS = 3
"""How often a call is measured, of which the fastest one counts."""


def measured_speeds(mesh: Mesh, axis: str, call: Callable[[], object]) -> tuple[float, ...]:
    """Calls per second of the ranks along an axis, the same on all ranks: of ranks that share a
    place there, as those of a group of tensors, those of the slowest one.

    All ranks of the mesh call it, before `parallel`, and measure at once, since ranks of one host
    share it. `call` does the same work on each of them, a step of the whole model on a few rows for
    instance, and ends by reading a value, so that the device is done. It is called once before, to
    compile. `even_shares` and `even_chunks` take what this gives. Raises on all ranks what `call`
    does on one, and InvalidCall for an axis that the mesh has not.
    """
    places = mesh.size(axis)

    def seconds() -> float:
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    with among_all(mesh) as ranks:
        ranks.made(seconds)
        own = ranks.made(lambda: min(seconds() for _ in range(CALLS)))
        taken = np.array([float(text) for text in ranks.every(repr(own))]).reshape(mesh.sizes)
    of_places = np.moveaxis(taken, mesh.axes.index(axis), 0).reshape(places, -1)
    return tuple((1 / of_places.max(1)).tolist())
