"""Which hardware a device is: one of those that a driver lists, one that is presented several
times, or a part of one."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hal.core.errors import InvalidCall, PluginError
from hal.core.facts import dataclass
from hal.hosted.settings import count


@dataclass(frozen=True, slots=True)
class Place:
    """Device `index` of the `count` of a plugin: number `position` of the hardware listed, with
    `line` about it, whose memory `shared` devices share. With `parts` above 0 it is part `index` of
    so many equal ones."""

    index: int
    count: int
    line: str
    position: int
    shared: int = 1
    parts: int = 0


def places(lines: Sequence[str], times: str, parts: str = "") -> list[Place]:
    """A place for each line. Where the variable `times` is set: the first one, so often, or by
    "8 of 1" number 1, and as often as gives it its number, too; where the variable `parts` (if
    there is one) is set: each of so many equal parts of the first one. Raises PluginError when both
    are."""
    often, _, chosen = os.environ.get(times, "0").partition(" of ")
    many, position = (count(times, text) for text in (often, chosen or "0"))
    divided = count(parts, os.environ.get(parts, "0")) if parts else 0
    if many and divided:
        raise PluginError(f"{times} and {parts} are both set; unset one")
    n = (many or divided) if lines else 0
    if not n:
        return [Place(i, len(lines), line, i) for i, line in enumerate(lines)]
    if position >= len(lines):
        raise PluginError(f"{times} asks for device {position}; the driver lists {len(lines)}")
    n = max(n, position + 1)
    line = lines[position] + (f", a part of {divided}" if divided else "")
    return [Place(i, n, line, position, n, divided) for i in range(n)]


def check_index(plugin: str, index: int, known: int) -> None:
    """Raise InvalidCall where there is no such device."""
    if not 0 <= index < known:
        raise InvalidCall(f"there is no device {plugin}:{index}; there are {known}")
