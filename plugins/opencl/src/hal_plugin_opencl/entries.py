"""An entry and the kernel by which it is launched: what is written around a text for that.

A buffer is an address and an offset. A driver may generate code at a kernel's first launch, so a
kernel gets a last argument wherever possible: where it is 0 it does nothing, and so it is launched
during the load.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from hal.core.dtypes import DType
from hal.core.values import KernelSource, Param, ParamKind
from hal.hosted.texts import whole_options
from hal_plugin_opencl import joined

CALL = "hal_launch"
"""The kernel that is added to a text which does not say its work-groups: it calls the entry."""
_LONGEST = 100
"""The longest name of an entry that drivers are given."""
_RUN = "hal_run"
"""The argument that says whether a kernel runs."""
_BYTES = "uchar*"
_TYPES = {
    DType.F64: "double",
    DType.F32: "float",
    DType.I64: "long",
    DType.I32: "int",
    DType.I16: "short",
    DType.I8: "char",
    DType.U64: "ulong",
    DType.U32: "uint",
    DType.U16: "ushort",
    DType.U8: "uchar",
    DType.BOOL: "uchar",
} | {d: {8: "uchar", 16: "ushort"}[d.bits] for d in DType if d.is_narrow}
"""Of arguments: a narrow float is its bits."""
_OFFSET_NBYTES = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """What a driver is given for a source: in `text` the kernel `name` has arguments of the types
    `kinds`, and a last one if it is `guarded`. `lanes` are the members of its work-groups, 0 where
    the source does not say."""

    lanes: int
    name: str
    text: str
    kinds: tuple[str, ...]
    guarded: bool


@lru_cache(maxsize=256)
def entry(source: KernelSource) -> Entry:
    """What a driver is given for a source. Raises CompileError for options that are none. Pure."""
    lanes = whole_options(source, ("lanes",))["lanes"]
    kinds = tuple(kind for param in source.params for kind in kinds_of(param))
    if not lanes:
        declared = f"\nvoid {source.entry}({', '.join(_declared(kinds))});\n"
        return Entry(lanes, CALL, f"{source.text}{declared}{call(source)}", kinds, True)
    # Of larger work-groups all members must reach what all of them wait for.
    text = guarded(source.text, source.entry) if lanes == 1 else None
    return Entry(lanes, short(source.entry), text or source.text, kinds, text is not None)


def call(source: KernelSource) -> str:
    """The kernel that calls the entry, whatever the arguments of that are. Pure."""
    kinds = [kind for param in source.params for kind in kinds_of(param)]
    params = ", ".join([*_declared(kinds), f"uchar {_RUN}"])
    given = ", ".join(f"a{i}" for i in range(len(kinds)))
    return f"\nkernel void {CALL}({params}) {{ if ({_RUN}) {source.entry}({given}); }}\n"


def guarded(text: str, name: str) -> str | None:
    """A text whose entry does nothing where a last argument, of one byte, is 0; None where the
    entry is not certain to be found. Pure."""
    found = re.findall(rf"\bvoid\s+{re.escape(name)}\s*\(", text)
    often = len(re.findall(rf"\b{re.escape(name)}\b", text))
    if len(found) != 1 or often != 1 or not joined.is_plain(text) or _RUN in text:
        return None
    begin = text.index(found[0]) + len(found[0])
    end, body = text.find(")", begin), text.find("{", begin)
    params = text[begin:end].strip()
    if not 0 < end < body or "(" in params or text[end + 1 : body].strip():
        return None
    more = f"{params}, uchar {_RUN}" if params not in ("", "void") else f"uchar {_RUN}"
    return f"{text[:begin]}{more}) {{ if (!{_RUN}) return;{text[body + 1 :]}"


def short(name: str) -> str:
    """The name that the driver knows an entry by. PoCL names files after kernels, and aborts when
    the name is too long for one. Pure."""
    return "hal_entry" if len(name) > _LONGEST and name.isidentifier() else name


def kinds_of(param: Param) -> tuple[str, ...]:
    """The types of the kernel arguments of a parameter. Pure."""
    return (_BYTES, "ulong") if param.kind is ParamKind.BUFFER else (_TYPES[param.dtype],)


def nbytes_of(param: Param) -> tuple[int, ...]:
    """Their bytes, 0 for an address. Pure."""
    return (0, _OFFSET_NBYTES) if param.kind is ParamKind.BUFFER else (param.dtype.nbytes,)


def _declared(kinds: Sequence[str]) -> list[str]:
    """The declarations of a kernel's arguments."""
    return [f"{'__global ' * (kind == _BYTES)}{kind} a{i}" for i, kind in enumerate(kinds)]
