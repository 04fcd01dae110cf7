"""Faults that happen to a job on demand, in the grammar of those of devices.

    seed 7
    kill at step nth 3 rank 1            # once three steps are done
    stop at epoch nth 2                  # while the ranks of epoch 2 meet; the seed draws the rank
    slow at step probability 0.01 factor 1.5
    torn-write at keep

A kind is one of `KINDS`. Steps are counted as the training does, by the first rank that has done
one; each counts once, also where it is done again. `keep` is where the newest state of a job is
written to disk. `rank` is that of the epoch; `cut` and `agent-kill` happen to its whole host.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from hal.core.wrappers.fault_plan import POSITIONS, check_hook, given_keys, read_plan

STEP, EPOCH, KEEP = "step", "epoch", "keep"
DISK_FULL, TORN_WRITE = "disk-full", "torn-write"
KINDS: Mapping[str, tuple[str, ...]] = {
    "kill": (STEP, EPOCH),
    "stop": (STEP, EPOCH),
    "cut": (STEP, EPOCH),
    "slow": (STEP, EPOCH),
    "flip": (STEP, EPOCH),
    "agent-kill": (STEP, EPOCH),
    "launcher-kill": (STEP, EPOCH),
    DISK_FULL: (KEEP,),
    TORN_WRITE: (KEEP,),
}
"""A rank's process is killed or stopped; a host falls silent; a rank takes `factor` times its time
from then on; a bit of a rank's state is another one; a host's agent is killed; the launcher is; the
disk takes only half of the newest state, or has lost half of what was written."""
_KEYS = (*POSITIONS, "rank", "factor")


@dataclass(frozen=True, slots=True)
class JobFault:
    """A fault and its position: exactly one of `nth`, `every` and `probability` is not 0. `rank` is
    None where the seed draws it."""

    kind: str
    hook: str
    nth: int = 0
    every: int = 0
    probability: float = 0.0
    rank: int | None = None
    factor: float = 1.5

    def __str__(self) -> str:
        position = next(f"{key} {getattr(self, key)}" for key in POSITIONS if getattr(self, key))
        rank = "" if self.rank is None else f" rank {self.rank}"
        factor = f" factor {self.factor:g}" if self.kind == "slow" else ""
        return f"{self.kind} at {self.hook} {position}{rank}{factor}"


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that happens now, to this rank of the epoch, with a number that the seed gave."""

    fault: JobFault
    rank: int
    number: int


@dataclass(frozen=True, slots=True)
class JobFaults:
    """Says which faults of a plan happen when. `str` gives text that `of` reads again."""

    seed: int
    faults: tuple[JobFault, ...]

    @classmethod
    def of(cls, text: str) -> JobFaults:
        """Read a plan. Raises InvalidCall that names the line and what is wrong with it."""
        seed, faults = read_plan(text, _fault)
        return cls(seed, tuple(faults))

    def __str__(self) -> str:
        return "\n".join([f"seed {self.seed}", *map(str, self.faults)]) + "\n"

    def at_keep(self) -> tuple[JobFault, ...]:
        """Those that happen where the newest state is written."""
        return tuple(fault for fault in self.faults if fault.hook == KEEP)

    def struck(self, hook: str, count: int, size: int) -> list[Strike]:
        """What happens once `count` steps are done, or the epoch of this number has been formed, in
        an epoch of `size` ranks."""
        found = []
        for index, fault in enumerate(self.faults):
            random = Random(f"{self.seed} {index} {count}")
            due = fault.hook == hook and (
                count == fault.nth
                or (fault.every > 0 and count % fault.every == 0)
                or random.random() < fault.probability
            )
            if due:
                rank = random.randrange(size) if fault.rank is None else fault.rank
                if rank < size:
                    found.append(Strike(fault, rank, random.randrange(1 << 62)))
        return found


def _fault(kind: str, hook: str, rest: list[str]) -> JobFault:
    check_hook(kind, hook, KINDS)
    given = given_keys(rest, _KEYS)
    rank = int(given["rank"]) if "rank" in given else None
    factor = float(given.get("factor", "1.5"))
    if rank is not None and rank < 0:
        raise ValueError(f"rank is {rank}; ranks begin at 0")
    if not 1 < factor <= 1000:
        raise ValueError(f"factor is {factor:g}; it is above 1 and at most 1000")
    if hook == KEEP and ("rank" in given or given.get("nth") != "1"):
        raise ValueError("the newest state is written once; leave out the position and the rank")
    return JobFault(
        kind,
        hook,
        int(given.get("nth", "0")),
        int(given.get("every", "0")),
        float(given.get("probability", "0")),
        rank,
        factor,
    )


def check_faults(faults: JobFaults, keeps: bool) -> None:
    """Raise InvalidCall for faults that cannot happen to a job that keeps nothing on disk."""
    if faults.at_keep() and not keeps:
        raise InvalidCall(
            f"{faults.at_keep()[0]} happens where the newest state is written: give --keep, too"
        )
