"""What `import hal` and finding plugins cost, each in fresh processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from statistics import median

from benchmarks.row import Bar, BenchmarkError, Row

IMPORT = """
import sys, time
start = time.perf_counter()
import {package}
print(time.perf_counter() - start)
"""
VENDORS = "import hal, sys; print(sum(name.startswith('hal_plugin_') for name in sys.modules))"
DISCOVERY = """
import time
import hal
find = hal.registry
start = time.perf_counter()
find()
print(time.perf_counter() - start)
"""


def rows(quick: bool) -> Iterator[Row]:
    count = 3 if quick else 15
    ours = 1e3 * median(_run(IMPORT.format(package="hal")) for _ in range(count))
    yield Row("import hal", "ms", ours, 1e3 * _torch(3), "import torch", Bar(limit=100))
    whole = 1e3 * median(_run(IMPORT.format(package="hal.process")) for _ in range(count))
    yield Row("import of the whole contract, at the first use", "ms", whole)
    vendors = _run(VENDORS)
    yield Row("vendor modules after import hal", "modules", vendors, bar=Bar(limit=0))
    found = 1e3 * median(_run(DISCOVERY) for _ in range(count))
    yield Row("discovery of the installed plugins", "ms", found, bar=Bar(limit=10))


def _torch(count: int) -> float:
    return median(_run(IMPORT.format(package="torch")) for _ in range(count))


def _run(text: str) -> float:
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise BenchmarkError(done.stderr.strip().splitlines()[-1])
    return float(done.stdout)
