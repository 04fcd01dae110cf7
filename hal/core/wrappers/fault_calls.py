"""Which fault of a plan happens at which call of a device."""

from __future__ import annotations

import threading
from collections import Counter
from random import Random

from hal.core.errors import Failure, FailureKind
from hal.core.facts import dataclass
from hal.core.wrappers.fault_plan import SLOW, FaultPlan, PlannedFault, failure_kind


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that happens now, as a failure, with random numbers of its own."""

    fault: PlannedFault
    failure: Failure
    random: Random


class FaultCalls:
    """Counts the calls of a device and says which fault happens at each. Any thread may call."""

    def __init__(self, device: str, plan: FaultPlan) -> None:
        self._device = device
        self._plan = plan
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()
        self._counts: Counter[int] = Counter()

    def strike(self, hook: str, *programs: str) -> Struck | None:
        """Count a call; give the fault that happens at it, if one does."""
        counted = self._count(hook, frozenset(programs))
        if counted is None:
            return None
        fault, random = counted
        operation = f"{hook} {' '.join(sorted(programs))}".strip()
        kind = FailureKind.ABORTED if fault.kind == SLOW else failure_kind(fault)
        text = f"injected at call {fault.nth} of {hook}"
        failure = Failure(kind, fault.scope, self._device, operation, text)
        return Struck(fault, failure, random)

    def _count(self, hook: str, programs: frozenset[str]) -> tuple[PlannedFault, Random] | None:
        """Count a call; gives the first fault that is due, at exactly this call."""
        with self._lock:
            self._calls[hook] += 1
            due = [i for i, _ in enumerate(self._plan.faults) if self._is_due(i, hook, programs)]
            if not due:
                return None
            fault = self._plan.faults[due[0]].at(self._device, self._calls[hook])
            return fault, Random(f"{self._plan.seed} {fault}")

    def _is_due(self, index: int, hook: str, programs: frozenset[str]) -> bool:
        fault = self._plan.faults[index]
        if not fault.counts(self._device, hook, programs):
            return False
        self._counts[index] += 1
        count = self._counts[index]
        return fault.is_due(count, self._plan.chance(self._device, index, count))
