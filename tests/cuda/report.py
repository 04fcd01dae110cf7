"""Compiles every kernel for every chip, and writes what they take: `make cuda-text`.

`python -m tests.cuda.report [PAGE]` takes some minutes of one processor. It ends with status 1 when
a kernel does not compile, or one of a template spills registers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from hal_plugin_cuda.nvrtc import compiler

from hal.core.errors import CompileError
from tests.cuda.chips import ARCHS
from tests.cuda.kernels import TEMPLATES, Text, of_operators, of_template, of_training
from tests.cuda.usage import Usage, usage
from tests.ops.cases import EVERY
from tests.ops.test_c_text import case_of

_HEAD = """\
# What CUDA kernels take

Written by `make cuda-text`, which compiles each kernel by NVRTC {version} for every compute
capability below, without a GPU. A kernel that does not compile is an error, and so is one of a
template or of a training step that spills registers. Registers are those of one thread; a block
has as many threads as it has lanes. Behind the registers of a template is for how many lanes a
multiprocessor has registers. Nothing here was run.
"""
_REGISTERS, _STEP, _MOST = 1 << 16, 8, 2048
"""Of a multiprocessor; what a thread's are counted in; the most lanes that there are at once."""


@dataclass(frozen=True)
class Row:
    """A kernel on a chip."""

    of: str
    entry: str
    lanes: int
    given_nbytes: int
    """The shared memory that a launch gives, where that is not declared."""
    arch: int
    usage: Usage

    @property
    def resident(self) -> int:
        """For how many lanes a multiprocessor has registers, in whole blocks."""
        each = -(-self.usage.registers // _STEP) * _STEP * self.lanes
        return min(_REGISTERS // each * self.lanes, _MOST)

    @property
    def spills(self) -> bool:
        """Whether registers go to memory."""
        return bool(self.usage.spill_store_nbytes or self.usage.spill_load_nbytes)


def compiled(texts: Iterable[Text], failures: list[str]) -> Iterator[Row]:
    """Each text for each chip."""
    for text in texts:
        for arch, source in zip(ARCHS, text.sources, strict=True):
            options = {name: int(value) for name, value in source.options}
            lanes, given_nbytes = options["lanes"], options.get("scratch", 0)
            try:
                built = compiler().build(source.text, source.entry, arch)
            except CompileError as error:
                failures.append(f"{text.of} for {arch}: {error}")
                continue
            found = usage(built.log)
            yield Row(text.of, source.entry, lanes, given_nbytes, arch, found)


def _summary(name: str, rows: list[Row]) -> str:
    cells = []
    for arch in ARCHS:
        here = [r.usage.registers for r in rows if r.arch == arch]
        spilled = sum(r.spills for r in rows if r.arch == arch)
        cells.append(f"{max(here, default=0)}, {spilled}")
    return f"| {name} | {len(rows) // len(ARCHS)} | {' | '.join(cells)} |"


def _single(rows: list[Row]) -> Iterator[str]:
    for first in range(0, len(rows), len(ARCHS)):
        row, *_ = here = rows[first : first + len(ARCHS)]
        cells = " | ".join(f"{r.usage.registers}, {r.resident}" for r in here)
        shared = max(r.given_nbytes or r.usage.shared_nbytes for r in here)
        yield f"| {row.of} | `{row.entry}` | {row.lanes} | {cells} | {shared} |"


def main(page: str) -> int:
    """Write the page; gives the status."""
    failures: list[str] = []
    steps = [list(compiled(of_training(d), failures)) for d in ("float32", "bfloat16")]
    templates = list(compiled(chain(*(of_template(*t) for t in TEMPLATES)), failures))
    operators = list(compiled(of_operators(EVERY, case_of), failures))
    archs = " | ".join(f"sm_{arch}" for arch in ARCHS)
    line = "| --- " * (len(ARCHS) + 2) + "|"
    text = [
        _HEAD.format(version=compiler().version),
        "Most registers of a thread, and kernels that spill:\n",
        f"| kernels | number | {archs} |",
        line,
        _summary(f"{len(EVERY)} pairs of operator and element type", operators),
        _summary("templates at full sizes", templates),
        _summary("a GPT training step, float32", steps[0]),
        _summary("a GPT training step, bfloat16 autocast", steps[1]),
        "\nThe templates, with registers and lanes by chip and bytes of shared memory:\n",
        f"| of | kernel | lanes | {archs} | shared |",
        "| --- " * (len(ARCHS) + 4) + "|",
        *_single(templates),
    ]
    Path(page).write_text("\n".join(text) + "\n")
    bad = [r for r in chain(templates, *steps) if r.spills]
    failures += [f"{r.of}: {r.entry} spills on {r.arch}: {r.usage}" for r in bad]
    sys.stderr.write("".join(f"{failure}\n" for failure in failures))
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:] or ["docs/cuda-kernels.md"])))
