"""What compiled programs and measured schedules are made for."""

from __future__ import annotations

import hashlib
import os
from functools import cache

import ml_dtypes
import numpy as np

import hal.core
import hal.tile
import stack.compiler
import stack.ir
import stack.ops
from hal.core.description import DeviceInfo
from stack.compiler.units import units


def target_of(info: DeviceInfo) -> str:
    """A digest of what the compiler may know of a device, and of the compiler's own source."""
    on_mesh = info.limits.mesh != (1, 1)  # there the rates decide on blocks; elsewhere they vary
    rates = [(dtype.short, rate if on_mesh else None) for dtype, rate in info.dtypes.items()]
    facts = (info.limits, units(info), info.scale, info.formats, info.spaces, sorted(rates))
    text = f"{info.fingerprint}\n{_toolchain()}\n{facts!r}"
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _toolchain() -> str:
    """A digest of the source that turns graphs into programs, of the values that these are made
    of, and of who folds constants."""
    digest = hashlib.sha256(f"{np.__version__} {ml_dtypes.__version__}".encode())
    for package in (hal.core, hal.tile, stack.compiler, stack.ir, stack.ops):
        root = next(iter(package.__path__))
        for folder, _, names in sorted(os.walk(root)):
            for name in sorted(n for n in names if n.endswith(".py")):
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    content = file.read()
                place = f"{package.__name__}{path.removeprefix(root)}"
                digest.update(f"{place} {len(content)}\n".encode())
                digest.update(content)
    return digest.hexdigest()
