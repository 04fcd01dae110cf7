"""A case: a named proof of one or more MUST sentences of the contract."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, IntEnum
from typing import Any

from hal.core.description import Feature
from hal.core.dtypes import DType
from hal.core.facts import dataclass

TIMEOUT_S = 20.0


class Level(IntEnum):
    """What a vendor reaches step by step; a level includes those below it."""

    CORE = 0
    ASYNC = 1
    DEVICES = 2
    RESILIENT = 3
    DECLARED = 4

    def __str__(self) -> str:
        return f"L{int(self)}"


@dataclass(frozen=True, slots=True)
class Case:
    """`body(rig)` gets a `Rig` and returns when the device is right and raises when it is wrong.

    `musts` are ids of the contract's text. A case runs on a device that declares all `needs` and
    whose plugin has at least `devices` devices. `timeout_s` is the watchdog's time. `timed` says
    that wall-clock time decides the verdict, so that a loaded machine can turn it. `module` is
    where the case stands. `once` says that no seed can turn the verdict: a run over many seeds has
    the case with the first one alone.
    """

    id: str
    group: str
    level: Level
    musts: tuple[str, ...]
    needs: frozenset[Feature]
    devices: int
    timeout_s: float
    timed: bool
    body: Callable[[Any], None]
    module: str = ""
    once: bool = False


class Cases:
    """The cases of one file. Used as a decorator factory:

        memory = Cases("C", Level.CORE)

        @memory.case("copy-odd-offset", "copy.exact", offset=range(1, 8))
        def _(rig: Rig, offset: int) -> None: ...

    makes seven cases, C.copy-odd-offset-1 to C.copy-odd-offset-7.
    """

    def __init__(self, group: str, level: Level) -> None:
        self.group = group
        self.level = level
        self._cases: list[Case] = []

    def __iter__(self) -> Iterator[Case]:
        return iter(self._cases)

    def case(
        self,
        name: str,
        *musts: str,
        level: Level | None = None,
        needs: Sequence[Feature] = (),
        devices: int = 1,
        timeout_s: float = TIMEOUT_S,
        timed: bool = False,
        once: bool = False,
        **vary: Sequence[Any],
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Add a case, or one for each combination of the values in `vary`, which `body` gets."""

        def add(body: Callable[..., None]) -> Callable[..., None]:
            for values in itertools.product(*vary.values()):
                given = dict(zip(vary, values, strict=True))
                self._cases.append(
                    Case(
                        "-".join([f"{self.group}.{name}", *map(_word, values)]),
                        self.group,
                        self.level if level is None else level,
                        musts,
                        frozenset(needs),
                        devices,
                        timeout_s,
                        timed,
                        functools.partial(body, **given),
                        body.__module__,
                        once,
                    )
                )
            return body

        return add


def _word(value: object) -> str:
    """A varied value as a part of an id."""
    match value:
        case DType():
            return value.short
        case Enum():
            return str(value.value)
        case tuple():
            return "x".join(map(_word, value))
        case type():
            return value.__name__.lower()
        case _:
            return str(value)
