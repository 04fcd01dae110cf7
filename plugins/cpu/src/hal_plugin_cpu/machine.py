"""Facts of the host: processors, memory, caches, rates."""

from __future__ import annotations

import os
import platform
from functools import cache
from math import ceil
from pathlib import Path

from hal_plugin_cpu import cgroup
from hal_plugin_cpu._native import lib

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def cores() -> int:
    """How many processors this process may use: by its affinity, and by its control group's
    quota."""
    allowed = len(os.sched_getaffinity(0))
    quota = cgroup.cpu_limit()
    return allowed if quota is None else max(1, min(allowed, ceil(quota)))


@cache
def processor() -> str:
    """The processor's name for people."""
    for line in _lines(Path("/proc/cpuinfo")):
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def memory_nbytes() -> int:
    """Bytes of memory that this process can have: the physical size, or less by its control
    group."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = cgroup.memory_limit_nbytes()
    return physical if limit is None else min(physical, limit)


def caches() -> tuple[int, ...]:
    """Bytes of each level of data cache, nearest first: an instance's share of what processors
    have in common."""
    sizes = {}
    for index in sorted(_CACHES.glob("index*")):
        if _text(index / "type") not in ("Data", "Unified"):
            continue
        # The numbers of "0-3,8".
        text = _text(index / "shared_cpu_list")
        ranges = (part.partition("-") for part in text.split(","))
        sharers = len(
            {n for low, _, high in ranges for n in range(int(low), int(high or low) + 1)}
            & os.sched_getaffinity(0)
        )
        size = _text(index / "size")
        nbytes = int(size[:-1]) * _UNITS[size[-1]] if size[-1] in _UNITS else int(size)
        sizes[int(_text(index / "level"))] = nbytes // max(1, sharers)
    if sizes:
        return tuple(nbytes for _, nbytes in sorted(sizes.items()))
    names = ("SC_LEVEL1_DCACHE_SIZE", "SC_LEVEL2_CACHE_SIZE", "SC_LEVEL3_CACHE_SIZE")
    configured = [os.sysconf(name) for name in names if name in os.sysconf_names]
    return tuple(nbytes for nbytes in configured if nbytes > 0)


@cache
def fma_rates() -> tuple[float, float]:
    """Measured float32 and float64 operations per second of one core; 0 where not known."""
    return float(lib.hc_fma_rate(32)), float(lib.hc_fma_rate(64))


@cache
def dot_rate(unit: int) -> float:
    """Measured instructions of that kind per second of one core; 0 where it has none."""
    return float(lib.hc_dot_rate(unit))


def _text(path: Path) -> str:
    return path.read_text().strip()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
