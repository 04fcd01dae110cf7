"""Operations that do harm before they fail: half a write, a flipped bit."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hal.core.device import Device
from hal.core.errors import InvalidCall
from hal.core.values import Grid, HostMemory, Launchable, Point, Region, Timeline

Side = Region | HostMemory
_STEP_S = 10.0


class Damage:
    """Does harm on a timeline of its own, so that the caller's timeline counts as always."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._side: Timeline | None = None

    def half_copy(self, dst: Side, src: Side, after: Sequence[Point]) -> Point:
        """Copy the first half of the bytes."""
        half = _nbytes(dst) // 2
        return self._device.copy(_part(dst, 0, half), _part(src, 0, half), self._timeline(), after)

    def half_fill(self, dst: Region, pattern: bytes, after: Sequence[Point]) -> Point:
        """Fill the first half of the patterns."""
        half = dst.nbytes // len(pattern) // 2 * len(pattern)
        return self._device.fill(_region(dst, 0, half), pattern, self._timeline(), after)

    def half_launch(self, launchable: Launchable, grid: Grid, after: Sequence[Point]) -> Point:
        """Run half of the grid."""
        half = (grid[0] // 2, grid[1], grid[2])
        return self._device.launch(launchable, half, self._timeline(), after)

    def whole_copy(self, dst: Side, src: Side, after: Sequence[Point]) -> Point:
        """Copy everything, for `flip` to damage."""
        return self._device.copy(dst, src, self._timeline(), after)

    def flip(self, dst: Side, random: Random) -> None:
        """Flip one bit of what was copied to `dst`. Waits for its own copies."""
        nbytes = _nbytes(dst)
        if not nbytes:
            return
        position, bit = random.randrange(nbytes), 1 << random.randrange(8)
        if not isinstance(dst, Region):
            memoryview(dst).cast("B")[position] ^= bit
            return
        byte = bytearray(1)
        where = _region(dst, position, 1)
        self._run(byte, where)
        byte[0] ^= bit
        self._run(where, byte)

    def _run(self, dst: Side, src: Side) -> None:
        point = self._device.copy(dst, src, self._timeline(), ())
        self._device.wait((point,), _STEP_S, True)

    def _timeline(self) -> Timeline:
        """Raises InvalidCall when the device has no timeline left for it."""
        if self._side is None:
            try:
                self._side = self._device.create_timeline(False)
            except InvalidCall as error:
                raise InvalidCall(
                    f"{self._device.name}: partial-write and data-corruption need a timeline of "
                    f"their own; free one of those there are: {error}"
                ) from error
        return self._side


def _nbytes(side: Side) -> int:
    return side.nbytes if isinstance(side, Region) else memoryview(side).nbytes


def _part(side: Side, offset: int, nbytes: int) -> Side:
    if isinstance(side, Region):
        return _region(side, offset, nbytes)
    return memoryview(side).cast("B")[offset : offset + nbytes]


def _region(region: Region, offset: int, nbytes: int) -> Region:
    return Region(region.buffer, region.offset + offset, nbytes)
