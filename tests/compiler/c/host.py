"""Runs OpenCL C and CUDA C text as C, compiled by the host's compiler: many kernels in the time
that one takes a driver. Work-items of a group take turns between barriers, forward or backward."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hal.core.values import CUDA_C, KernelSource
from stack.compiler.text.c.cuda_c import HEADER as CUDA_HEADER

HEADER, CUDA = (Path(__file__).with_name(name) for name in ("host.h", "cuda.h"))
FLAGS = ("-O0", "-w", "-ffp-contract=off", "-fno-strict-aliasing", "-shared", "-fPIC")
_VECTORS = "".join(f"VECTOR({t}, {n})\n" for t in ("float", "double") for n in (2, 4, 8, 16))


@dataclass(frozen=True)
class Kernels:
    """A library of compiled sources, by their numbers."""

    library: Any
    sources: Sequence[KernelSource]

    def run(
        self, number: int, grid: Sequence[int], buffers: Sequence[np.ndarray], backward: bool
    ) -> None:
        """Run a source over a grid on buffers, one for each parameter. Asserts that the work-items
        of a group come to the same barriers."""
        source = self.sources[number]
        assert len(buffers) == len(source.params)
        addresses = (ctypes.c_void_p * len(buffers))(*(b.ctypes.data for b in buffers))
        sizes = (ctypes.c_long * 3)(*(*grid, 1, 1)[:3])
        lanes = int(dict(source.options).get("lanes", 1))
        apart = self.library.run(number, addresses, sizes, lanes, int(backward))
        assert not apart, f"{source.entry}: work-items wait at a barrier to which others never come"


def compiled(sources: Sequence[KernelSource], folder: Path) -> Kernels:
    """Compile sources, whose parameters are buffers."""
    parts = [
        HEADER.read_text(),
        _VECTORS,
        CUDA.read_text(),
        *map(_renamed, range(len(sources)), sources),
    ]
    cases = "".join(
        f"case {i}: return run_groups(run_{i}, given, grid, lanes, backward);\n"
        for i in range(len(sources))
    )
    parts.append(
        "int run(int number, void **given, const long *grid, int lanes, int backward) {\n"
        f"switch (number) {{\n{cases}}}\nreturn -1; }}\n"
    )
    text, library = folder / "kernels.c", folder / "kernels.so"
    text.write_text("\n".join(parts))
    subprocess.run(["cc", *FLAGS, "-o", library, text, "-lm"], check=True, timeout=300)
    return Kernels(ctypes.CDLL(str(library)), sources)


def _renamed(number: int, source: KernelSource) -> str:
    """The text with names of its own, its scratch memory shared by the group, and a function that
    calls it with addresses."""
    text = _plain(source) if source.format == CUDA_C else source.text
    text = re.sub(r"^\s*__local (?=\w+ \w+\[)", "static ", text, flags=re.MULTILINE)
    text = re.sub(r"\((float|double)(\d+)\)\(", r"splat_\1\2(", text)
    beside = r"^(?:static inline|__attribute__\(\(noinline\)\)) \w+ (\w+)\("
    functions = re.findall(beside, text, flags=re.MULTILINE)
    names = [*functions, source.entry]
    given = ", ".join(f"given[{i}], 0" for i in range(len(source.params)))
    return "\n".join(
        [
            *(f"#define {name} {name}_{number}" for name in names),
            text,
            f"static void run_{number}(void **given) {{ {source.entry}({given}); }}",
            *(
                f"#undef {name}"
                for name in {*names, *re.findall(r"^#define (\w+)", text, flags=re.M)}
            ),
        ]
    )


def _plain(source: KernelSource) -> str:
    """CUDA C without what the host's headers have in its place. The scratch memory that a launch
    gives is declared with its size."""
    assert source.text.startswith(CUDA_HEADER)
    text = source.text.removeprefix(CUDA_HEADER)
    nbytes = dict(source.options).get("scratch")
    text = text.replace("extern __shared__ uchar given[]", f"__shared__ uchar given[{nbytes}]")
    named = "cvt|mma|wide|matrices|async_(?:copy|commit|wait)"
    there = rf"static __device__ inline \w+ hal_(?:{named}).*?\n}}\n"
    text = re.sub(there, "", text, flags=re.DOTALL)
    text = re.sub(r"hal_wide_(begin|end)_\d+\(", r"hal_wide_\1(", text)
    text = re.sub(r"hal_wide_(bf16|f16)_(\d+)_(\d)(\d)\(", r"hal_wide_\1(\2, \3, \4, ", text)
    text = re.sub(r'extern "C" __global__ __launch_bounds__\(\d+, GROUPS\)', "static", text)
    return text.replace("__device__ ", "").replace("__shared__ ", "__local ")
