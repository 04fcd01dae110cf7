"""The seed of what a run of the tests draws from sets too large for it.

All workers of a run have one seed, which the run's header shows; HAL_TEST_SEED gives another one.
"""

import os
import random

SEED = int(os.environ.setdefault("HAL_TEST_SEED", str(random.SystemRandom().randrange(10**6))))


def stream(what: str) -> random.Random:
    """A stream of its own for what a test draws."""
    return random.Random(f"{SEED} {what}")
