"""Where and on what a measurement was made."""

from __future__ import annotations

import os
import platform
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    *("hal-accel", "hal-plugin-cpu", "hal-plugin-opencl"),
    *("numpy", "llvmlite", "torch", "pyopencl", "pocl-binary-distribution"),
)


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0))


UNITS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
"""What products are measured by, in Linux's names; makers sell several kinds by one name."""


def units() -> tuple[str, ...]:
    """Those of the processor."""
    has = _field("/proc/cpuinfo", "flags").split()
    return tuple(name for name in UNITS if name in has)


def facts() -> dict[str, str | int]:
    """The processor, its cores that may be used, memory and system."""
    return {
        "processor": _field("/proc/cpuinfo", "model name") or platform.processor(),
        "units": " ".join(units()),
        "cores": cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.release()}",
    }


def versions() -> dict[str, str]:
    """Python's and the packages' versions; "absent" for what is not installed."""
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def commit() -> str:
    """The commit that is checked out; with "+" when files differ from it."""
    head = _git("rev-parse", "--short=12", "HEAD")
    return head + "+" * bool(_git("status", "--porcelain", "--untracked-files=no"))


def _git(*args: str) -> str:
    import subprocess  # noqa: PLC0415  (which takes workers longer to import than the rest of this)

    command = ["git", *args]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def _version(package: str) -> str:
    from importlib import metadata  # noqa: PLC0415  (as `subprocess` below)

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def _field(path: str, name: str) -> str:
    text = Path(path).read_text() if Path(path).exists() else ""
    lines = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")
