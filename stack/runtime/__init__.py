"""The runtime: compiled plans on a device's timeline, and the arrays that they read and write."""

from stack.runtime.array import Array
from stack.runtime.engine import Engine, Holdings, OverBudget
from stack.runtime.opening import close_all, engine_for, engine_of
from stack.runtime.plan import Plan

__all__ = [
    "Array",
    "Engine",
    "Holdings",
    "OverBudget",
    "Plan",
    "close_all",
    "engine_for",
    "engine_of",
]
