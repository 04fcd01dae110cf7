"""How much a measured figure may differ from the declared one."""

from __future__ import annotations

WORSE = 0.3
"""A measured figure is at most this much worse than the declared one,"""

BEST = 2.0
"""and at most so many times as good: a figure that is far from the truth helps nobody."""


def smaller_is_better(key: str) -> bool:
    """Whether a key of `PERFORMANCE` is a time."""
    return key.endswith("_s")


def better(key: str, measured: float, declared: float) -> float:
    """How many times as good as declared the measured figure is."""
    return declared / measured if smaller_is_better(key) else measured / declared


def band(key: str) -> tuple[float, float]:
    """From which `better` to which a measured figure agrees with the declared one."""
    worst = 1 / (1 + WORSE) if smaller_is_better(key) else 1 - WORSE
    return worst, BEST
