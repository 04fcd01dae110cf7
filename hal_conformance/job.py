"""What a child process is asked to run, as text that crosses to it."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import TYPE_CHECKING, Any, Self

from hal.core.facts import dataclass
from hal_conformance.case import Case
from hal_conformance.catalog import cases_of
from hal_conformance.rig import Setting

if TYPE_CHECKING:
    from hal_conformance.mixed import Rendezvous

APART = frozenset("DEJ")
"""The groups whose cases load programs of their own. Those of the others load the same few again
and again: they are compiled once for all cases."""

KEPT = 1 / 8
"""For how large a share of the cases in `APART` a run with one seed keeps programs. Most of them
are loaded once in it, and a driver may take longer for a binary than for its build."""


@dataclass(frozen=True, slots=True)
class Job:
    """Each of `cases`, which stand in `files`, with each of `seeds`, without the first `skip` of
    these turns.

    `seeded` says that the device gets the seed too, as its own setting "seed". With `look` the
    child says at the end what it found out about the device. `peers` are the names of the plugin's
    devices; without them the child asks the plugin. With `others` the device and these are the
    members of groups that the stack makes.
    """

    device: str
    cases: tuple[str, ...]
    files: tuple[str, ...]
    peers: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    seeded: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    floors: Mapping[str, float] = field(default_factory=dict)
    cache_dir: str = ""
    skip: int = 0
    look: bool = False
    others: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """The job that `text` wrote."""
        table: dict[str, Any] = json.loads(text)
        lists = {key: tuple(table[key]) for key in ("cases", "files", "peers", "others", "seeds")}
        return cls(**{**table, **lists})

    def text(self) -> str:
        """The job as one line of JSON."""
        return json.dumps(asdict(self))

    def turns(self) -> Sequence[tuple[int, Case]]:
        """Every seed and case that is still to run, in order."""
        by_id = {case.id: case for case in cases_of(self.files)}
        pairs = ((seed, by_id[name]) for seed in self.seeds for name in self.cases)
        turns = [(seed, case) for seed, case in pairs if seed == self.seeds[0] or not case.once]
        return turns[self.skip :]

    def after(self, count: int) -> Self:
        """The job without its next `count` turns."""
        return replace(self, skip=self.skip + count)

    def setting(self, seed: int, case: Case, rendezvous: Rendezvous | None) -> Setting:
        """How a case with a seed opens devices; `rendezvous` is that of `others`. Programs are kept
        for what later seeds or cases load again, and for a share of the other cases that the seed
        draws."""
        again = len(self.seeds) > 1 or case.group not in APART
        keeps = again or random.Random(f"{seed} {case.id}").random() < KEPT
        settings = {**self.settings, "seed": str(seed)} if self.seeded else self.settings
        return Setting(
            self.device,
            self.peers,
            settings,
            self.cache_dir if keeps else "",
            seed,
            floors=self.floors,
            rendezvous=rendezvous,
        )
