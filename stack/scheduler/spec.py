"""What people write: jobs, queues, hosts, and the rules by which they meet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace
from enum import Enum

from hal.core.facts import dataclass

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
class Option:
    """One way to run a job: so many ranks on devices of a kind, by a strategy (a name that means
    something to the job), at the `speed` that somebody planned or measured (of a job's own unit of
    work a second)."""

    kind: str
    ranks: int
    strategy: str
    speed: float

    def __post_init__(self) -> None:
        label = f"the option of {self.ranks} ranks of kind {self.kind!r}"
        if self.ranks < 1:
            raise SpecError(f"{label}: a gang has at least 1 rank")
        if not 0 < self.speed < math.inf:
            raise SpecError(f"{label}: its speed is {self.speed}; above 0, and finite")


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A gang: between `least` and `ranks` ranks of `devices` devices each; a rank's devices lie on
    one chip. `kinds` are the kinds of device it runs on, the best first; with `mixed` its ranks may
    be spread over several of them. `within` names a level of the topology that holds all ranks:
    `required` or else preferred; `balanced` spreads them evenly over the fewest domains. `limit_s`
    is how long it may run with all its ranks (with fewer, in proportion longer); a job without one
    ends the promises about those behind it. `grace_s` is what it needs to save.

    A job that leaves kind, ranks or strategy open lists its `options`; which one it has is chosen,
    and chosen anew while it runs, so that the speeds of all such jobs, each as a part of its
    fastest option's, times their `weight`, come to the most. `kinds` and `ranks` are those of one
    of them. `move_s` are the seconds that it loses by going over to another one (a save and a
    restore), and `limit_s` is how long it may run by its fastest one (with others, in proportion
    longer)."""

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
    options: tuple[Option, ...] = ()
    weight: float = 1.0
    move_s: float = 60.0

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
        if not 0 < self.weight < math.inf:
            raise SpecError(f"{label}: weight is {self.weight}; above 0, and finite")
        if not 0 <= self.move_s < math.inf:
            raise SpecError(f"{label}: move_s is {self.move_s}; 0 or more, and finite")
        if self.options:
            ways = [(option.kind, option.ranks, option.strategy) for option in self.options]
            if len(set(ways)) != len(ways):
                raise SpecError(f"{label} has two options of one kind, ranks and strategy")
            if (
                self.elastic
                or self.mixed
                or (self.kinds, self.ranks)
                not in {((option.kind,), option.ranks) for option in self.options}
            ):
                raise SpecError(
                    f"{label}: its options say what kind and how many ranks it has; it begins with "
                    "one of them, and least and mixed are not for it"
                )

    def placed(self, option: Option) -> JobSpec:
        """The job as it is placed by one of its options."""
        return replace(self, kinds=(option.kind,), ranks=option.ranks, least=0)

    @property
    def fastest(self) -> float:
        """The speed of its fastest option."""
        return max(option.speed for option in self.options)

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
    running jobs shrink for waiting ones, and grow when nobody waits. What jobs with options have is
    thought to last `horizon_s` (or as long as their limits let it): one goes over to another option
    where it, and those to whom it leaves devices, gain more in that time than it loses."""

    order: tuple[str, ...] = ("priority", "submitted")
    backfill: Backfill = Backfill.EASY
    preempt: bool = False
    reclaim: bool = True
    elastic: bool = True
    patience_s: float = math.inf
    fair_start: float = 0.0
    head_start_s: float = 0.0
    horizon_s: float = 3600.0
    depth: int = 100

    def __post_init__(self) -> None:
        if not 0 <= self.fair_start < math.inf:
            raise SpecError(f"rules: fair_start is {self.fair_start}; 0, or how many times as fast")
        if not self.horizon_s > 0:
            raise SpecError(f"rules: horizon_s is {self.horizon_s}; it must be above 0")
        if not self.patience_s >= 0:
            raise SpecError(f"rules: patience_s is {self.patience_s}; 0 or more seconds")
        if self.depth < 1:
            raise SpecError(f"rules: depth is {self.depth}; at least 1 job is looked at")
