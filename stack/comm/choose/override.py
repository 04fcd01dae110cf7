"""The user's word on what runs, as a text:

    all_reduce=recursive_doubling:0-8K;ring/4:8K-  broadcast=binomial  all_gather=mine.plan:1M-

A kind, `=`, and what it runs for which sizes: an algorithm, with `/CUT` where it is to cut what it
moves, or the file of a program (a name that ends in `.plan`), or, for memory of devices that are
all of one plugin, who runs it: `device` (the plugin's own group) or `engine`; then `:FROM-TO` in
bytes, TO not included, with K, M and G for 1024 and so on. Without TO it has no end, without a
range it is for all sizes. Sizes that no range has are chosen as always. Dashes and underscores are
the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hal.core.facts import dataclass
from stack.comm.plan.error import PlanError
from stack.comm.plan.generate.table import ALGORITHMS
from stack.comm.plan.program import PlanKind
from stack.comm.plan.text import KINDS

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = r"(\d{1,9})([KMG]?)"
_RANGE = re.compile(rf"(.+):{_SIZE}-(?:{_SIZE})?", re.ASCII)
_CUT = re.compile(r"\d{1,9}", re.ASCII)
PLAN_FILE = ".plan"
PLANS_VARIABLE = "HAL_COMM_PLANS"
"""The environment variable with the text of a job; that of rank 0 counts."""
DEVICE, ENGINE = "device", "engine"
"""Not algorithms, but who runs a call on the memory of devices."""


@dataclass(frozen=True, slots=True)
class Override:
    """Calls of `kind` with start <= bytes < stop (None: no end) run `algorithm`."""

    kind: PlanKind
    algorithm: str
    start: int = 0
    stop: int | None = None

    def holds(self, kind: PlanKind, nbytes: int) -> bool:
        """Whether a call is meant."""
        return kind is self.kind and self.start <= nbytes and (not self.stop or nbytes < self.stop)


def parse_override(text: str) -> tuple[Override, ...]:
    """The rules of a text. Raises PlanError that says which part is wrong and what it may be."""
    rules: list[Override] = []
    for item in text.split():
        for rule in _rules(item):
            for other in rules:
                if other.holds(rule.kind, rule.start) or rule.holds(other.kind, other.start):
                    raise PlanError(
                        f"two algorithms for {rule.kind.value} of {max(rule.start, other.start)} "
                        f"bytes: {other.algorithm} and {rule.algorithm}"
                    )
            rules.append(rule)
    return tuple(rules)


def _rules(item: str) -> Iterator[Override]:
    name, equals, parts = item.partition("=")
    kind = KINDS.get(name.replace("_", "-"))
    if kind is None or not equals:
        known = ", ".join(k.replace("-", "_") for k in KINDS)
        raise PlanError(f"expected KIND=ALGORITHM:FROM-TO;..., KIND one of {known}; got {item!r}")
    for part in parts.split(";"):
        match = _RANGE.fullmatch(part)
        if match is None and ":" in part:
            raise PlanError(f"a range is FROM-TO such as 0-8K, or 8K- without an end; got {part!r}")
        if match is None:
            rule = Override(kind, _algorithm(kind, part))
        else:
            start = int(match[2]) * _UNITS[match[3]]
            stop = int(match[4]) * _UNITS[match[5]] if match[4] else None
            if stop is not None and stop <= start:
                raise PlanError(f"the range of {part!r} ends before it begins")
            rule = Override(kind, _algorithm(kind, match[1]), start, stop)
        yield rule


def _algorithm(kind: PlanKind, name: str) -> str:
    if name.endswith(PLAN_FILE) or name in (DEVICE, ENGINE):
        return name
    algorithm, slash, cut = name.replace("_", "-").partition("/")
    known = ALGORITHMS[kind]
    if algorithm not in known:
        names = ", ".join(known).replace("-", "_")
        raise PlanError(f"{kind.value} has {names}, or a file that ends in .plan; got {name!r}")
    if slash and not (_CUT.fullmatch(cut) and int(cut) > 0):
        raise PlanError(f"{name!r} cuts into a whole number of parts, such as {algorithm}/4")
    return f"{algorithm}/{int(cut)}" if slash and int(cut) > 1 else algorithm
