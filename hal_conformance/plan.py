"""Which cases a run has."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from hal_conformance.case import Case, Level
from hal_conformance.catalog import GROUPS, catalog


@dataclass(frozen=True, slots=True)
class Choice:
    """Cases up to `level`, of these groups (none: all), whose id has one of these texts (none:
    any) and is one of these `ids` (none: any), without those that wall-clock time decides unless
    `timed`; `sample` of them, drawn at random (0: all)."""

    level: Level = Level.DECLARED
    groups: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    timed: bool = True
    ids: frozenset[str] = frozenset()
    sample: int = 0

    def only(self, ids: frozenset[str]) -> Choice:
        """The same choice among these ids."""
        return replace(self, ids=ids)

    def __str__(self) -> str:
        groups = f"groups {', '.join(self.groups)}" if self.groups else "all groups"
        texts = f", ids with {' or '.join(self.texts)}" if self.texts else ""
        timed = "" if self.timed else ", without timed cases"
        some = f"{self.sample} cases " if self.sample else ""
        return f"{some}up to {self.level}, {groups}{texts}{timed}"

    def takes(self, case: Case) -> bool:
        """Whether the case is one of them."""
        return (
            case.level <= self.level
            and (not self.groups or case.group in self.groups)
            and (not self.texts or any(text in case.id for text in self.texts))
            and (not self.ids or case.id in self.ids)
            and (self.timed or not case.timed)
        )


def chosen(choice: Choice, seed: int = 0) -> tuple[Case, ...]:
    """The cases of a choice; the seed draws a sample. Raises InvalidCall for a group that is none,
    and for no case."""
    if unknown := sorted(set(choice.groups) - set(GROUPS)):
        known = ", ".join(f"{key} ({text})" for key, text in GROUPS.items())
        raise InvalidCall(f"there is no group {', '.join(unknown)}; there are {known}")
    cases = tuple(case for case in catalog() if choice.takes(case))
    if not cases:
        raise InvalidCall(f"no case is chosen, {choice}; `--case` takes a part of an id")
    if not choice.sample:
        return cases
    drawn = random.Random(seed).sample(range(len(cases)), min(choice.sample, len(cases)))
    return tuple(cases[i] for i in sorted(drawn))


def by_group(cases: Iterable[Case]) -> dict[str, tuple[Case, ...]]:
    """The cases of each group that has any."""
    cases = tuple(cases)
    groups = {key: tuple(case for case in cases if case.group == key) for key in GROUPS}
    return {key: found for key, found in groups.items() if found}


def level_named(text: str) -> Level:
    """The level "L3". Raises InvalidCall for another name."""
    names = {str(level): level for level in Level}
    if text not in names:
        raise InvalidCall(f"there is no level {text!r}; there are {', '.join(names)}")
    return names[text]


def seeds_named(text: str) -> tuple[int, ...]:
    """The seeds "0:200": from the first up to and without the last."""
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise InvalidCall(f"seeds are FIRST:END with FIRST < END, such as 0:200, not {text!r}")
    return tuple(range(int(first), int(last)))
