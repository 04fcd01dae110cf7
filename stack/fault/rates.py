"""How often to save, and what of the time is left for training: rates, purely.

A machine fails at random with a mean time between failures. A save takes time that training does
not have; after a failure what came after the last save is done again, and a restore takes time.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass


@dataclass(frozen=True, slots=True)
class Tier:
    """A place for the state: seconds of training that a save costs, and that a restore takes;
    `survives` is the share of failures after which what was saved there is still there."""

    save_s: float
    restore_s: float
    survives: float = 1.0

    def __post_init__(self) -> None:
        if not (self.save_s >= 0 and self.restore_s >= 0 and 0 <= self.survives <= 1):
            raise InvalidCall(f"{self} is no place for a state: times and a share from 0 to 1")


def best_interval_s(save_s: float, mtbf_s: float) -> float:
    """Seconds of training between saves with the least loss: sqrt(2 save mtbf) - save (Young 1974,
    first order), with Daly's higher terms (2006), and the mean time between failures where a save
    takes twice that."""
    if not (mtbf_s > 0 and save_s >= 0):
        raise InvalidCall(f"saves of {save_s} s at a failure each {mtbf_s} s have no interval")
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = math.sqrt(save_s / (2 * mtbf_s))
    return math.sqrt(2 * save_s * mtbf_s) * (1 + ratio / 3 + ratio * ratio / 9) - save_s


def goodput(tier: Tier, mtbf_s: float, interval_s: float | None = None) -> float:
    """The share of time that is training which counts, for failures at random: Daly's exact one for
    a tier that survives all of them. Saves are at the best interval, unless it is given."""
    every_s = best_interval_s(tier.save_s, mtbf_s) if interval_s is None else interval_s
    grown = math.expm1((every_s + tier.save_s) / mtbf_s)
    return every_s / (mtbf_s * math.exp(tier.restore_s / mtbf_s) * grown)


def simulated(
    tiers: Sequence[Tier], intervals_s: Sequence[float], mtbf_s: float, hours: float, seed: int = 0
) -> float:
    """As `goodput`, for several tiers, nearest first, by failures that are drawn: each failure is
    followed by a restore from the nearest tier that has survived it; what none of them has is lost.
    Failures come also in saves and restores."""
    if len(tiers) != len(intervals_s) or not tiers or min(intervals_s) <= 0:
        raise InvalidCall("each tier has an interval above 0")
    rng, end_s = random.Random(seed), hours * 3600
    now_s = done_s = 0.0
    saved = [0.0] * len(tiers)
    fails_s = rng.expovariate(1 / mtbf_s)
    due = [(every_s, i) for i, every_s in enumerate(intervals_s)]
    heapq.heapify(due)
    while now_s < end_s:
        at_s, i = due[0]
        trains_s = max(at_s - done_s, 0.0)
        if now_s + trains_s + tiers[i].save_s <= fails_s:
            now_s, done_s = now_s + trains_s + tiers[i].save_s, max(at_s, done_s)
            saved[i] = done_s
            heapq.heapreplace(due, (done_s + intervals_s[i], i))
            continue
        now_s = fails_s
        while True:  # until a restore ends before the next failure
            drawn = rng.random()
            alive = [k for k, tier in enumerate(tiers) if drawn < tier.survives]
            saved = [s if k in alive else 0.0 for k, s in enumerate(saved)]
            source = max(alive, key=lambda k: saved[k], default=None)
            restore_s = tiers[-1].restore_s if source is None else tiers[source].restore_s
            fails_s = now_s + rng.expovariate(1 / mtbf_s)
            if now_s + restore_s <= fails_s:
                break
            now_s = fails_s
        now_s, done_s = now_s + restore_s, 0.0 if source is None else saved[source]
        due = [(done_s + every_s, k) for k, every_s in enumerate(intervals_s)]
        heapq.heapify(due)
    return done_s / now_s
