"""Plans of faults, as text: what fails, at which call, and how far the failure reaches.

One fault a line; "#" begins a comment, ";" ends a line as well:

    seed 7
    launch-fault at launch nth 3 program matmul_0
    out-of-memory at alloc every 100
    slow at copy probability 0.01 seconds 0.05
    device-lost at replay nth 20 device mychip:1

The first word is the kind: a `FailureKind`, or "slow". The position is `nth N` (the N-th call of
the hook, 1 if no position is given), `every N`, or `probability P`, which the seed decides for each
call alone, whatever the threads do. `program` and `device` narrow which calls are counted. `scope`
replaces the kind's usual scope.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import NoReturn, TypeVar

from hal.core.errors import FailureKind, InvalidCall, Scope
from hal.core.facts import dataclass

SLOW = "slow"
F = TypeVar("F")
SUBMITTED = ("copy", "fill", "launch", "replay", "host_call", "collective")
HEALTH = "health"

_OPERATION_KINDS = ("launch-fault", "illegal-address", "hang", SLOW)
_DEVICE_KINDS = ("device-lost", "reset-required")
_HOOKS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_OPERATION_KINDS, SUBMITTED),
    **dict.fromkeys(_DEVICE_KINDS, (*SUBMITTED, "alloc", "load", HEALTH)),
    "out-of-memory": ("alloc",),
    "compile": ("load",),
    "data-corruption": ("copy",),
    "partial-write": ("copy", "fill", "launch"),
    "link-down": ("copy", "collective", HEALTH),
}
_SCOPES: Mapping[str, Scope] = {
    "device-lost": Scope.DEVICE,
    "reset-required": Scope.RESET,
    "link-down": Scope.LINK,
}
POSITIONS = ("nth", "every", "probability")
_KEYS = (*POSITIONS, "program", "device", "scope", "seconds")


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault and its position: exactly one of `nth`, `every` and `probability` is not 0.

    `seconds` is how long "slow" delays; for a hang, how long it lasts on a device that does not
    watch for hangs.
    """

    kind: str
    hook: str
    scope: Scope
    nth: int = 0
    every: int = 0
    probability: float = 0.0
    program: str = ""
    device: str = ""
    seconds: float = 0.1

    def __str__(self) -> str:
        position = next(f"{key} {getattr(self, key)}" for key in POSITIONS if getattr(self, key))
        narrow = "".join(
            f" {key} {getattr(self, key)}" for key in ("program", "device") if getattr(self, key)
        )
        rest = f" scope {self.scope.value} seconds {self.seconds:g}"
        return f"{self.kind} at {self.hook} {position}{narrow}{rest}"

    def counts(self, device: str, hook: str, programs: frozenset[str]) -> bool:
        """Whether a call is one of those that the position counts."""
        narrow = self.device in ("", device) and (not self.program or self.program in programs)
        return self.hook == hook and narrow

    def is_due(self, count: int, random: Random) -> bool:
        """Whether the fault happens at the call with this count, from 1."""
        if self.nth:
            return count == self.nth
        if self.every:
            return count % self.every == 0
        return random.random() < self.probability

    def at(self, device: str, nth: int) -> PlannedFault:
        """The same fault at exactly this call of the hook on this device."""
        return replace(self, nth=nth, every=0, probability=0.0, program="", device=device)


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Faults and the seed of their chances. `str` gives text that `parse_plan` reads again."""

    seed: int
    faults: tuple[PlannedFault, ...]

    def __str__(self) -> str:
        return "\n".join([f"seed {self.seed}", *map(str, self.faults)]) + "\n"

    def chance(self, device: str, index: int, count: int) -> Random:
        """The random numbers of one call of one fault; equal for equal plans."""
        return Random(f"{self.seed} {device} {index} {count}")


def parse_plan(text: str) -> FaultPlan:
    """Read a plan. Raises InvalidCall that names the line and what is wrong with it."""
    seed, faults = read_plan(text, _fault)
    return FaultPlan(seed, tuple(faults))


def read_plan(text: str, read: Callable[[str, str, list[str]], F]) -> tuple[int, list[F]]:
    """The seed and the faults of a plan in this grammar: `read` takes a line's kind, its hook and
    the words behind them, and raises ValueError. Raises InvalidCall that names the line and what is
    wrong with it."""
    seed, faults = 0, []
    for number, line in enumerate(text.replace(";", "\n").splitlines(), 1):
        words = line.partition("#")[0].split()
        try:
            match words:
                case []:
                    continue
                case ["seed", value]:
                    seed = int(value)
                case [kind, "at", hook, *rest]:
                    faults.append(read(kind, hook, rest))
                case _:
                    _refuse('a line is "KIND at HOOK ..." or "seed N"')
        except ValueError as error:
            raise InvalidCall(f"fault plan, line {number} {line.strip()!r}: {error}") from error
    return seed, faults


def check_hook(kind: str, hook: str, hooks: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError where there is no such kind, or it cannot happen there."""
    if kind not in hooks:
        raise ValueError(f"no kind {kind!r}; there are {', '.join(hooks)}")
    if hook not in hooks[kind]:
        raise ValueError(f"{kind} cannot happen at {hook!r}, only at {', '.join(hooks[kind])}")


def given_keys(rest: Sequence[str], keys: Sequence[str]) -> dict[str, str]:
    """The pairs of key and value behind a hook; "nth" is 1 where no position is given. Raises
    ValueError."""
    if len(rest) % 2:
        raise ValueError(f"{rest[-1]!r} has no value; after the hook come pairs of key and value")
    given = dict(zip(rest[::2], rest[1::2], strict=True))
    if unknown := [key for key in given if key not in keys]:
        raise ValueError(f"no key {unknown[0]!r}; there are {', '.join(keys)}")
    positions = [key for key in POSITIONS if key in given]
    if len(positions) > 1:
        raise ValueError(f"{' and '.join(positions)} are two positions; give one")
    nth, every = int(given.get("nth", "1")), int(given.get("every", "1"))
    if not (nth > 0 and every > 0 and 0 < float(given.get("probability", "1")) <= 1):
        raise ValueError("nth and every are 1 or more, probability is above 0 and at most 1")
    return given if positions else {**given, "nth": "1"}


def _refuse(why: str) -> NoReturn:
    raise ValueError(why)


def _fault(kind: str, hook: str, rest: list[str]) -> PlannedFault:
    check_hook(kind, hook, _HOOKS)
    given = given_keys(rest, _KEYS)
    scope = Scope(given["scope"]) if "scope" in given else _SCOPES.get(kind, Scope.OPERATION)
    fault = PlannedFault(
        kind,
        hook,
        scope,
        int(given.get("nth", "0")),
        int(given.get("every", "0")),
        float(given.get("probability", "0")),
        given.get("program", ""),
        given.get("device", ""),
        float(given.get("seconds", "0.1")),
    )
    if not 0 <= fault.seconds < 3600:
        raise ValueError(f"seconds is {fault.seconds:g}; allowed are 0 to 3600")
    return fault


def failure_kind(fault: PlannedFault) -> FailureKind:
    """The kind of failure that a fault is reported as."""
    return FailureKind(fault.kind)
