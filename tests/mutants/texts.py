"""Generated faults of compilers: what a driver makes of a program's text, for `llvm-ir/1` on the
CPU plugin's device and for `opencl-c/1` on the OpenCL plugin's. Each is the text with one thing
changed wherever it stands, as a compiler is wrong that takes it for something else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from hal_plugin_opencl import programs

from tests.mutants.population import Generated, around


@dataclass(frozen=True)
class Taken:
    """`found` is taken for `given` in texts for a device, which the cases of these ids have."""

    kind: str
    place: str
    found: str
    given: str
    cases: tuple[str, ...]
    words: tuple[str, ...] = ()


_ANY_FLOAT = r"(?:<\d+ x )?(?:float|double|half)>?"
_LLVM = (
    Taken("reordered", "fadd", r"= fadd ", "= fadd reassoc nsz ", (".chains-", ".sums-of-rounds")),
    Taken("reordered", "fmul", r"= fmul ", "= fmul reassoc nsz ", (".chains-",)),
    Taken("reordered", "fsub", r"= f(sub|add) ", r"= f\1 reassoc nsz ", (".chains-",)),
    Taken("narrow", "fdiv", r"= f(div|mul) ", r"= f\1 arcp reassoc ", (".chains-", ".math-f32-")),
    Taken("range", "fcmp", r"= fcmp (\w+)", r"= fcmp nnan \1", (".float-compare", ".nan-")),
    Taken("sign", "fcmp", r"= fcmp une", "= fcmp one", (".float-", ".nan-", ".cast-")),
    Taken("sign", "fneg", rf"= fneg ({_ANY_FLOAT})", r"= fsub \1 zeroinitializer,", (".signed-",)),
    Taken("sign", "ashr", r"= ashr ", "= lshr ", (".integer-shift",)),
    Taken("sign", "sdiv", r"= sdiv ", "= udiv ", (".integer-division",)),
    Taken("sign", "srem", r"= srem ", "= urem ", (".integer-division",)),
    Taken("sign", "sext", r"= sext ", "= zext ", (".cast-", ".dot-whole")),
    Taken("sign", "sitofp", r"= sitofp ", "= uitofp ", (".cast-",)),
    Taken(
        "wrapped",
        "fptosi",
        r"= call (\S+|<[^>]*>) @llvm\.fpto([su])i\.sat[^(]*\((.*)\)$",
        r"= fpto\2i \3 to \1",
        (".cast-",),
    ),
    Taken("sign", "umin", r"@llvm\.umin", "@llvm.smin", (".integer-bits", ".reduce-")),
    Taken("sign", "smax", r"@llvm\.smax\.v", "@llvm.umax.v", (".integer-bits", ".reduce-")),
    Taken("range", "roundeven", r"@llvm\.roundeven", "@llvm.round", (".float-rounding",)),
    Taken("sign", "floor", r"@llvm\.floor", "@llvm.trunc", (".float-rounding",)),
    Taken("swallowed", "atomicrmw add", r"atomicrmw add", "atomicrmw xchg", (".atomic-", ".ids")),
    Taken("sign", "atomicrmw min", r"atomicrmw min", "atomicrmw umin", (".atomic-",)),
    Taken(
        "swallowed",
        "cmpxchg",
        r"(cmpxchg ptr %\w+, )(i\d+) (%\w+), i\d+ %\w+",
        r"\1\2 \3, \2 \3",
        (".atomic-",),
    ),
    Taken(
        "dropped",
        "masks",
        r"(@llvm\.masked\.store\S+\(.*)<(\d+) x i1> %\w+\)",
        r"\1<\2 x i1> zeroinitializer)",
        (".mask", ".tail", ".store"),
    ),
    Taken("swallowed", "memcpy", r"^call void @llvm\.memcpy.*$", "", (".scratch", ".tail")),
)
_OPENCL = (
    Taken(
        "reordered",
        "sums",
        r"(void \w+_instance[^{]*\{)",
        r"\1\n#pragma clang fp reassociate(on)\n",
        (".chains-", ".sums-of-rounds"),
    ),
    Taken(
        "sign",
        "shifts",
        r"\((char|short|int|long)\)\((t\d+) >> ",
        r"(\1)((u\1)\2 >> ",
        (".integer-shift",),
    ),
    Taken(
        "sign",
        "division",
        r"\((int|long)\)\(x / v(\d)\)",
        r"(\1)((u\1)x / (u\1)v\2)",
        (".integer-division",),
    ),
    Taken(
        "range",
        "rint",
        r"__builtin_rint(f?)\(|\brint\(",
        r"__builtin_round\1(",
        (".float-rounding",),
    ),
    Taken("sign", "floor", r"__builtin_floor(f?)\(", r"__builtin_trunc\1(", (".float-rounding",)),
    Taken(
        "sign", "fabs", r"__builtin_fabs(f?)\(", r"__builtin_fmax\1(0, ", (".signed-", ".float-r")
    ),
    Taken("narrow", "fma", r"__builtin_fmaf\(a, b, c\)", "((a) * (b) + (c))", (".math-f32-fma",)),
    Taken(
        "wrapped",
        "get_global_id",
        r"\(long\)get_global_id\(0\)",
        "(long)(uchar)get_global_id(0)",
        (".ids", ".grid-beyond-0"),
    ),
    Taken(
        "wrapped",
        "get_global_id of y",
        r"\(long\)get_global_id\(1\)",
        "(long)(get_global_id(1) & 31)",
        (".ids", ".grid-beyond-1"),
    ),
    Taken(
        "narrow",
        "get_global_size",
        r"get_global_size\((\d)\)",
        r"(get_global_size(\1) & 127)",
        (".ids", ".grid-beyond"),
    ),
    Taken(
        "swallowed",
        "atomic_add",
        r"(?<!hal_)atomic_add\((.*?)p, x\)",
        r"(*(p) = x)",
        (".atomic-", ".ids"),
    ),
    Taken(
        "swallowed",
        "atomic_cmpxchg",
        r"atomic_cmpxchg\((\w+), (\w+), .*\);",
        r"atomic_cmpxchg(\1, \2, \2);",
        (".atomic-",),
    ),
    Taken(
        "wrapped",
        "offset",
        r"_base \+ (\w+)_offset\)",
        r"_base + (ushort)\1_offset)",
        (".region-offset-beyond-16", ".region-offset-beyond-20"),
    ),
    Taken("narrow", "bfloat16", r"32767U", "0U", (".cast-", ".denormals-narrow", ".float-rem")),
    Taken(
        "dropped",
        "last of a tile",
        r"(for \(int i\d+ = 0; i\d+ < )(\d\d+);",
        r"\1\2 - 1;",
        (".float-rounding", ".scan-", ".shape-"),
    ),
    Taken(
        "dropped", "boundary", r"if \((i\d+) < (t\d+)\)", r"if (\1 + 1 < \2)", (".tail", ".scratch")
    ),
    Taken(
        "range", "comparison of NaN", r"\((t\d+) < (t\d+)\)", r"(!(\1 >= \2))", (".float-compare",)
    ),
    Taken(
        "sign",
        "comparison of integers",
        r"\((t\d+) < (t\d+)\)",
        r"((ulong)\1 < (ulong)\2)",
        (".integer-compare",),
    ),
    Taken(
        "narrow",
        "long loops",
        r"for \(long (n\d+) = (.*?); n\d+ < (t\d+);",
        r"for (long \1 = \2; \1 < (\3 & 0xfff);",
        (".loop-long", ".loop-bounds"),
    ),
)


def _load(fault: Taken) -> Callable[[Any], None]:
    def wrong(real: Any, source: Any) -> Any:
        text = re.sub(fault.found, fault.given, source.text, flags=re.MULTILINE)
        return real(replace(source, text=text))

    return lambda device: around(device, "load", wrong)


_OPTIONS = {
    "-cl-unsafe-math-optimizations": ("reordered", (".chains-", ".sums-of-rounds")),
    "-cl-fast-relaxed-math": ("range", (".nan-", ".denormals-kept")),
    "-cl-finite-math-only": ("range", (".nan-", ".float-compare")),
    "-cl-denorms-are-zero": ("range", (".denormals-kept",)),
    "-cl-no-signed-zeros": ("sign", (".signed-zero",)),
}


def _built_with(option: str) -> Callable[[], AbstractContextManager[object]]:
    """Every program is built with one option more."""
    real = programs._Program._build

    def build(self: Any, options: bytes, devices: Any) -> None:
        real(self, options + b" " + option.encode(), devices)

    return lambda: patch.object(programs._Program, "_build", build)


def texts() -> Iterator[Generated]:
    """Every fault of this file."""
    for option, (kind, cases) in _OPTIONS.items():
        words = tuple(case.strip(".-") for case in cases)
        place, world = f"build {option}", _built_with(option)
        own = _load(
            Taken(kind, place, r"\Z", f"\n/* {option} */\n", cases)
        )  # a cache keeps it apart
        yield Generated(kind, place, "opencl-c", "opencl", cases, words, own, world)
    for device, name, faults in (("cpu", "llvm-ir", _LLVM), ("opencl", "opencl-c", _OPENCL)):
        for fault in faults:
            words = (*fault.place.split(), *fault.words, *(c.strip(".-") for c in fault.cases))
            yield Generated(
                fault.kind, f"text {fault.place}", name, device, fault.cases, words, _load(fault)
            )
