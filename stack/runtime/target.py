"""What compiled programs and measured schedules are made for."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import hal.tile
import stack.compiler
import stack.ir
import stack.ops
from hal.core.description import DeviceInfo


def target_of(info: DeviceInfo) -> str:
    """A digest of what the compiler may know of a device, and of the compiler's own source."""
    facts = (info.limits, info.matrix_units, info.formats, info.spaces)
    text = f"{info.fingerprint}\n{_toolchain()}\n{facts!r}"
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _toolchain() -> str:
    """A digest of the source that turns graphs into programs."""
    digest = hashlib.sha256()
    packages = (hal.tile, stack.compiler, stack.ir, stack.ops)
    roots = [Path(next(iter(p.__path__))) for p in packages]
    for path in sorted(p for root in roots for p in root.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
