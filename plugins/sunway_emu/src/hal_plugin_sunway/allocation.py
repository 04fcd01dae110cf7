"""What an allocation costs in emulated time, in the two modes of the system.

Under the loader ("static") memory is mapped before a program starts. Under the operating system
("dynamic"), which Python needs, each large allocation maps its pages one by one; for that reason
swAlloc (J. Tsinghua Univ. 62(5), 943-951) keeps them in a pool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hal_plugin_sunway.chip import Chip


def allocation_cycles(chip: Chip, mode: str, nbytes: int) -> float:
    """CPE cycles of one allocation from the system."""
    if mode == "static":
        return chip["static_call_cycles"]
    pages = -(-nbytes // chip.count("page_nbytes"))
    return chip["dynamic_call_cycles"] + pages * chip["dynamic_page_cycles"]


def direct_cycles(chip: Chip, mode: str, sizes: Iterable[int]) -> float:
    """CPE cycles of a trace whose allocations all go to the system."""
    return sum(allocation_cycles(chip, mode, nbytes) for nbytes in sizes)


def pooled_cycles(chip: Chip, sizes: Iterable[int], held: Iterable[int]) -> float:
    """CPE cycles of the same trace when a pool holds blocks of the sizes `held` from a step before;
    what it has not comes from the dynamic system."""
    free, cycles = Counter(held), 0.0
    for nbytes in sizes:
        if free[nbytes]:
            free[nbytes] -= 1
            cycles += chip["pool_hit_cycles"]
        else:
            cycles += allocation_cycles(chip, "dynamic", nbytes)
    return cycles
