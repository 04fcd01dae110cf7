"""Programs of `measured/` on a core group: what the emulator says about the chip."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hal_plugin_sunway import toolchain
from hal_plugin_sunway.arena import Arena, Slab
from hal_plugin_sunway.chip import Chip
from hal_plugin_sunway.coregroup import CoreGroup, CoreGroupFailure, Loaded, Outcome
from hal_plugin_sunway.folder import Folder

_PATIENCE_S = 60.0
_APART = 1 << 18


class Bench:
    """A core group with a chip's figures, for measurements; a context that ends it."""

    def __init__(self, chip: Chip, memory_nbytes: int = 2 << 30) -> None:
        self.chip = chip
        self._arena = Arena(memory_nbytes)
        self._folder = Folder()
        self._group = CoreGroup(chip, self._arena.fd, self._arena.nbytes)
        self._programs: dict[str, Loaded] = {}
        self._cycles = self._arena.take(4096)
        self._memory = self._arena.take(2 * 64 * _APART)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the core group."""
        with suppress(CoreGroupFailure):
            self._group.end()
        self._arena.close()
        self._folder.cleanup()

    def array(self, data: NDArray[Any]) -> Slab:
        """New main memory with these bytes."""
        slab = self._arena.take(data.nbytes)
        self.view(slab, data.dtype)[:] = data.ravel()
        return slab

    def view(self, slab: Slab, dtype: Any) -> NDArray[Any]:
        """Main memory as an array."""
        count = slab.nbytes // np.dtype(dtype).itemsize
        return np.frombuffer(self._arena.memory, dtype, count, slab.offset)

    def space(self, nbytes: int) -> Slab:
        """New main memory, zero."""
        return self._arena.take(nbytes)

    def give(self, slab: Slab) -> None:
        """Give main memory back."""
        self._arena.give(slab)

    def run(self, name: str, args: Sequence[Slab | int], text: str = "") -> Outcome:
        """Run the entry `name` of the program of `measured/` with that name, or of a text. Raises
        CoreGroupFailure."""
        loaded = self._programs.get(name + text)
        if loaded is None:
            path: Path = toolchain.program(text or text_of(name), Path(self._folder.name), name)
            loaded = self._programs.setdefault(name + text, self._group.load(path))
        slots = ["s1", "s1", "s1"]
        slots += [f"s{x:x}" if isinstance(x, int) else f"b{x.offset}:{x.nbytes}" for x in args]
        return self._group.run(loaded, name, slots, _PATIENCE_S)

    def dma(
        self,
        nbytes: int,
        active: int = 1,
        put: bool = False,
        reps: int = 8,
        offset: int = 0,
        blocks: tuple[int, int] = (0, 0),
        apart: int = _APART,
    ) -> float:
        """Cycles of one blocking transfer when so many CPEs do the same; `blocks` are size and
        stride."""
        shape = (nbytes, active, int(put), reps, offset, *blocks, apart)
        self.run("dma", [self._memory, self._cycles, *shape])
        return float(self.view(self._cycles, np.float64)[:active].max())

    def dma_rate(self, nbytes: int, active: int = 1, put: bool = False, **more: Any) -> float:
        """Bytes per cycle of all active CPEs together."""
        return nbytes * active / self.dma(nbytes, active, put, **more)

    def rma(self, nbytes: int, to: int, kind: int = 0, window: int = 1, reps: int = 16) -> float:
        """Cycles of a message from CPE 0: half a round (kind 0), or of one of a stream (1)."""
        self.run("rma", [self._cycles, nbytes, 0, to, reps, kind, window])
        return float(self.view(self._cycles, np.float64)[0])

    def pipeline(self, sizes: tuple[int, int], tiles: int, work: int, stages: int) -> float:
        """Cycles of tiles of `sizes` bytes in and out through the stages copy in (1), work (2) and
        copy out (4)."""
        self.run("pipeline", [self._memory, self._cycles, *sizes, tiles, work, stages])
        return float(self.view(self._cycles, np.float64)[0])

    def matmul(self, a: Slab, b: Slab, c: Slab, n: int, half: bool, only_time: bool) -> Outcome:
        """The square product of float64 or float16 matrices."""
        text = text_of("matmul")
        args: list[Slab | int] = [a, b, c, n, int(only_time)]
        return self.run("matmul", args, f"#define HALF 1\n{text}" if half else text)

    def matmul_rate(self, n: int, half: bool = False) -> float:
        """Operations per second of a square product, without its arithmetic."""
        nbytes = n * n * (2 if half else 8)
        a, b, c = (self.space(nbytes) for _ in range(3))
        cycles = self.matmul(a, b, c, n, half, only_time=True).cycles
        for slab in (a, b, c):
            self.give(slab)
        return 2.0 * n**3 / self.chip.seconds(cycles)

    def attention(self, slabs: Sequence[Slab], n: int, fused: bool, only_time: bool) -> Outcome:
        """Attention over `n` rows; the slabs are q, k, v, o, and room for n x n scores."""
        name = "attention_fused" if fused else "attention_plain"
        return self.run(name, [*slabs, n, int(only_time)], text_of("attention"))

    def attention_cycles(self, n: int, fused: bool) -> float:
        """Cycles of attention over `n` rows, without its arithmetic."""
        slabs = [*(self.space(n * 64 * 4) for _ in range(4)), self.space(n * n * 4)]
        cycles = self.attention(slabs, n, fused, only_time=True).cycles
        for slab in slabs:
            self.give(slab)
        return cycles


def text_of(name: str) -> str:
    """The text of a program of `measured/`."""
    return (files("hal_plugin_sunway") / "measured" / f"{name}.c").read_text()
