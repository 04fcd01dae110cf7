"""The processor as LLVM sees it: found out once, and kept in the cache directory, so that a process
whose programs are all in the cache does not load LLVM."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property

import llvmlite

from hal.cache import Cache
from hal.core.facts import dataclass

CODEGEN = "4"
"""Part of every cache key; changes when the way of compiling changes."""

_IDENTITY = frozenset(
    """
    vendor_id|cpu family|model|model name|stepping|flags
    Features|CPU implementer|CPU architecture|CPU variant|CPU part|CPU revision
    """.strip().replace("\n", "|").replace("    ", "").split("|")
)  # fmt: skip
"""Lines of /proc/cpuinfo that tell processors apart."""

_TUNING: Mapping[str, tuple[str, ...]] = {"znver4": ("prefer-no-gather",)}
"""What LLVM does not do for a processor by itself. On Zen 4 columns by an index take 0.82 of the
time where lanes are loaded one by one in place of its gather."""


@dataclass(frozen=True)
class Processor:
    """LLVM's name and features of the processor that this runs on, and the versions of LLVM and of
    llvmlite."""

    name: str
    features: Mapping[str, bool]
    llvm: str
    llvmlite: str

    @cached_property
    def flags(self) -> str:
        """What a target machine of LLVM is told of it."""
        known = [f"{'+' if has else '-'}{name}" for name, has in sorted(self.features.items())]
        return ",".join([*known, *(f"+{name}" for name in _TUNING.get(self.name, ()))])

    @cached_property
    def fingerprint(self) -> str:
        """Identifies it as a target of code generation, with the compiler's version."""
        facts = [self.name, self.llvm, self.llvmlite, CODEGEN]
        facts += sorted(name for name, has in self.features.items() if has)
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()


_known: list[Processor] = []


def processor(cache_dir: str = "") -> Processor:
    """That of this process; at the first call from a cache directory, if it is in it."""
    if not _known:
        cache, name = Cache(cache_dir, "processor"), _identity()
        found = _read(cache.get(name))
        if found is None:
            found = _asked()
            cache.put(name, json.dumps(asdict(found)).encode())
        _known.append(found)
    return _known[0]


def _asked() -> Processor:
    import llvmlite.binding as llvm  # noqa: PLC0415  (what this module is for)

    version = ".".join(map(str, llvm.llvm_version_info))
    features = dict(llvm.get_host_cpu_features())
    return Processor(llvm.get_host_cpu_name(), features, version, llvmlite.__version__)


def _read(content: bytes | None) -> Processor | None:
    if content is None:
        return None
    try:
        found = Processor(**json.loads(content))
    except (ValueError, TypeError):
        return None
    return found


def _identity() -> str:
    """Names what LLVM's answer depends on: the processor, and LLVM's library."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        first, _, _ = file.read(1 << 14).partition("\n\n")
    lines = [line for line in first.splitlines() if line.partition(":")[0].strip() in _IDENTITY]
    library = os.path.join(os.path.dirname(llvmlite.__file__), "binding", "libllvmlite.so")
    status = os.stat(library) if os.path.exists(library) else None
    facts = (lines, llvmlite.__version__, status and (status.st_size, status.st_mtime_ns))
    return hashlib.sha256(repr(facts).encode()).hexdigest()
