"""The seed of what a run of the tests draws from sets too large for it.

All workers of a run have one seed, which the run's header shows. It comes from the commit: what was
green is green again for everybody, and the next commit draws others. HAL_TEST_SEED gives another
one, and with HAL_TEST_ALL=1 nothing is left out.
"""

import os
import random
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")


def seed_of_commit() -> int:
    """From the files that the commit holds; a random number where there is no repository."""
    asked = ["git", "rev-parse", "HEAD^{tree}"]
    root = Path(__file__).parent
    try:
        tree = subprocess.check_output(asked, cwd=root, stderr=subprocess.DEVNULL, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return random.SystemRandom().randrange(10**6)
    return int(tree, 16) % 10**6


SEED = int(os.environ.setdefault("HAL_TEST_SEED", str(seed_of_commit())))


def stream(what: str) -> random.Random:
    """A stream of its own for what a test draws."""
    return random.Random(f"{SEED} {what}")


def sample(what: str, items: Iterable[Item], count: int) -> list[Item]:
    """So many of the items, in their own order; all where there are no more."""
    every = list(items)
    if os.environ.get("HAL_TEST_ALL") == "1" or count >= len(every):
        return every
    return [every[i] for i in sorted(stream(what).sample(range(len(every)), count))]


def in_turn(units: Sequence[str]) -> set[str]:
    """Of each three that follow each other one, so that neighbours, which are alike, take turns;
    all with HAL_TEST_ALL=1."""
    if os.environ.get("HAL_TEST_ALL") == "1":
        return {*units}
    own = stream("turns")
    return {own.choice(units[i : i + 3]) for i in range(0, len(units), 3)}


VENDOR = sample("how a vendor begins", ("guide", *("levels",) * 3, *("training",) * 3), 1)
"""Which of three long ways to a device this run goes: what the guide says, in an environment of its
own, two small devices that reach their levels, or one of them that trains. The guide installs all
anew, which takes three times as long and breaks more seldom."""
