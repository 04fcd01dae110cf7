"""The seed of the device's random numbers, which `torch.manual_seed` sets also in programs that
never use the device: nothing else is imported for it."""

from __future__ import annotations

import secrets
from collections.abc import Callable

given = [secrets.randbits(63)]
"""The one of the streams that devices draw from."""
restarts: list[Callable[[], None]] = []
"""Called after another seed is given."""


def manual_seed(seed: int) -> None:
    """Begin the seed's stream on every device."""
    given[0] = int(seed)
    for restart in restarts:
        restart()
