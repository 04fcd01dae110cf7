"""What people write: jobs, queues, hosts, and the rules by which they meet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

HOST = "host"
CHIP = "chip"


class SpecError(ValueError):
    """A job, queue or host that cannot mean what it says; the text says what to write instead."""


@dataclass(frozen=True, slots=True)
class Chip:
    """Devices of one kind that are nearest to each other: the innermost level of a host."""

    kind: str
    devices: int
    name: str = "0"

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise SpecError(f"chip {self.name!r} of kind {self.kind!r} has {self.devices} devices")


@dataclass(frozen=True, slots=True)
class HostSpec:
    """A host: its chips, and the domains that it lies in, outermost first, one for each of the
    cluster's levels above the host."""

    name: str
    chips: tuple[Chip, ...]
    domains: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.chips:
            raise SpecError(f"host {self.name!r} has no devices; give it at least one chip")
        names = [chip.name for chip in self.chips]
        if len(set(names)) != len(names):
            raise SpecError(f"host {self.name!r} has two chips of one name: {sorted(names)}")


class Discipline(Enum):
    """What a queue does while its first job waits for devices.

    LOCK    nothing behind it starts
    FILL    whatever fits starts (it may not delay a job that has a reservation)
    LADDER  nothing behind it starts until it has waited `QueueSpec.rung_s`; then the next one may
    """

    LOCK = "lock"
    FILL = "fill"
    LADDER = "ladder"


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue. `quota` is what it owns of each kind (devices; a kind that is not named: none, an
    empty mapping: no quotas at all). Queues of one `cohort` lend each other what they do not use;
    `borrow` bounds what this one may use beyond its quota (a kind that is not named: no bound but
    the cohort's). `weight` is its share under fair sharing."""

    name: str
    quota: Mapping[str, int] = field(default_factory=dict)
    cohort: str = ""
    borrow: Mapping[str, int] = field(default_factory=dict)
    weight: float = 1.0
    discipline: Discipline = Discipline.FILL
    rung_s: float = math.inf

    def __post_init__(self) -> None:
        for text, amounts in (("quota", self.quota), ("borrow", self.borrow)):
            for kind, amount in amounts.items():
                if amount < 0:
                    raise SpecError(f"queue {self.name!r}: {text} of {kind!r} is {amount}")
        if not self.weight > 0:
            raise SpecError(f"queue {self.name!r}: weight {self.weight} is not above 0")
        if self.discipline is Discipline.LADDER and not math.isfinite(self.rung_s):
            raise SpecError(f"queue {self.name!r}: a ladder needs rung_s, the seconds of a step")


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A gang: between `least` and `ranks` ranks of `devices` devices each; a rank's devices lie on
    one chip. `kinds` are the kinds of device it runs on, the best first; with `mixed` its ranks may
    be spread over several of them. `within` names a level of the topology that holds all ranks:
    `required` or else preferred; `balanced` spreads them evenly over the fewest domains. `limit_s`
    is how long it may run with all its ranks (with fewer, in proportion longer); a job without one
    ends the promises about those behind it. `grace_s` is what it needs to save."""

    queue: str
    ranks: int
    kinds: tuple[str, ...]
    least: int = 0
    devices: int = 1
    priority: int = 0
    limit_s: float = math.inf
    grace_s: float = 30.0
    within: str = ""
    required: bool = False
    balanced: bool = False
    mixed: bool = False
    user: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        label = f"job {self.name!r}" if self.name else "the job"
        if self.ranks < 1:
            raise SpecError(f"{label} asks for {self.ranks} ranks; a gang has at least 1")
        if not 0 <= self.least <= self.ranks:
            raise SpecError(
                f"{label}: least is {self.least}, ranks {self.ranks}; 1 <= least <= ranks"
            )
        if self.devices < 1:
            raise SpecError(f"{label} asks for {self.devices} devices a rank; at least 1")
        if not self.kinds:
            raise SpecError(f"{label} names no kind of device")
        if len(set(self.kinds)) != len(self.kinds):
            raise SpecError(f"{label} names a kind twice: {', '.join(self.kinds)}")
        if not self.limit_s > 0:
            raise SpecError(f"{label}: limit_s is {self.limit_s}; it must be above 0")
        if not 0 <= self.grace_s < math.inf:
            raise SpecError(f"{label}: grace_s is {self.grace_s}; 0 or more, and finite")
        if self.required and not self.within:
            raise SpecError(f"{label}: required needs a level in within")
        if self.mixed and (self.within or self.balanced):
            raise SpecError(
                f"{label}: mixed kinds lie in trees of their own; within cannot hold them"
            )

    @property
    def fewest(self) -> int:
        """Ranks without which it does not start."""
        return self.least or self.ranks

    @property
    def elastic(self) -> bool:
        """Whether its number of ranks may change while it runs."""
        return self.fewest < self.ranks


class Backfill(Enum):
    """Which waiting jobs hold a reservation that smaller ones may not delay.

    NONE          only those who have waited `Rules.patience_s`
    EASY          the first one that lacks devices, of each kind
    CONSERVATIVE  every one, up to `Rules.depth`
    """

    NONE = "none"
    EASY = "easy"
    CONSERVATIVE = "conservative"


@dataclass(frozen=True, slots=True)
class Rules:
    """How a cluster decides.

    `order` names the keys by which waiting jobs are compared, the first difference decides (see
    `stack.scheduler.order`); a job that has waited `patience_s` comes before all others but those
    that were submitted before it and have, too. With `fair_start` its patience is also over when
    plain FIFO on devices so many times as fast would have started it (0: nobody asks), and it takes
    devices back from those that came later. `head_start_s` is for the key `wide`. `preempt`: a
    job may stop those of lower priority; `reclaim`: a queue takes back what it lent; `elastic`:
    running jobs shrink for waiting ones, and grow when nobody waits."""

    order: tuple[str, ...] = ("priority", "submitted")
    backfill: Backfill = Backfill.EASY
    preempt: bool = False
    reclaim: bool = True
    elastic: bool = True
    patience_s: float = math.inf
    fair_start: float = 0.0
    head_start_s: float = 0.0
    depth: int = 100

    def __post_init__(self) -> None:
        if not 0 <= self.fair_start < math.inf:
            raise SpecError(f"rules: fair_start is {self.fair_start}; 0, or how many times as fast")
