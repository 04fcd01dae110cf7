"""The seed of what a run of the tests draws from sets too large for it.

All workers of a run have one seed, which the run's header shows; HAL_TEST_SEED gives another one,
and with HAL_TEST_ALL=1 nothing is left out.
"""

import os
import random
from collections.abc import Iterable
from typing import TypeVar

Item = TypeVar("Item")

SEED = int(os.environ.setdefault("HAL_TEST_SEED", str(random.SystemRandom().randrange(10**6))))


def stream(what: str) -> random.Random:
    """A stream of its own for what a test draws."""
    return random.Random(f"{SEED} {what}")


def sample(what: str, items: Iterable[Item], count: int) -> list[Item]:
    """So many of the items, in their own order; all where there are no more."""
    every = list(items)
    if os.environ.get("HAL_TEST_ALL") == "1" or count >= len(every):
        return every
    return [every[i] for i in sorted(stream(what).sample(range(len(every)), count))]
