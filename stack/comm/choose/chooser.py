"""The choice of a program for a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import log2
from pathlib import Path
from statistics import median

from hal.core.facts import dataclass
from stack.comm.choose.measured import Measurement
from stack.comm.choose.network import Network
from stack.comm.choose.override import DEVICE, ENGINE, PLAN_FILE, Override
from stack.comm.choose.predict import Element, predict
from stack.comm.plan.check import Proof, check
from stack.comm.plan.check_order import StepOrder, order_of
from stack.comm.plan.error import PlanError
from stack.comm.plan.generate.request import Request
from stack.comm.plan.generate.table import ALGORITHMS, CUTTING, HIERARCHICAL, build
from stack.comm.plan.go_on import GoOn, always
from stack.comm.plan.program import (
    ChunkPlace,
    PlanKind,
    Program,
    even_lengths,
    extents,
)
from stack.comm.plan.text import load_program

CUTS = (1, 4, 16)
"""Into how many parts algorithms cut what they move, where they can. The finest cut is looked at
for the algorithm alone that is the fastest in the one before: programs of many steps take longer to
make and to predict than their calls take."""

MOST_STEPS = 2000
LEAST_PART = 1 << 16
"""Programs with more steps (of all ranks) and parts of less bytes are not considered: the ones take
long to make, and in the others the overhead of a step is more than the time of its bytes."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What has to be chosen for. `nbytes` is the longest vector that a rank gives or takes;
    `element` the bytes of an element and of its accumulator."""

    kind: PlanKind
    nbytes: int
    element: Element
    root: int = 0
    target: int = 0
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """An algorithm ("ring", or "ring/4" where it cuts), the seconds that it takes by the model and
    as corrected by measurements, and whether one was for this algorithm."""

    algorithm: str
    predicted_s: float
    seconds: float
    measured: bool


class AlgorithmChooser:
    """Chooses programs for the calls of one group, and keeps those that it made.

    Ranks choose the same if they have equal networks, rows and rules. Sizes are rounded down to a
    power of two before they are compared, so few programs serve all calls.
    """

    def __init__(
        self,
        network: Network,
        rows: Iterable[Measurement] = (),
        rules: Sequence[Override] = (),
        go_on: GoOn = always,
    ) -> None:
        """`go_on` is asked at every step of every program that a choice looks at."""
        self._network = network
        self._go_on = go_on
        self._rows = tuple(rows)
        self._rules = tuple(r for r in rules if r.algorithm not in (DEVICE, ENGINE))
        self._programs: dict[tuple[str, Request], Program] = {}
        self._seconds: dict[tuple[str, Demand], float] = {}
        self._chosen: dict[Demand, str] = {}
        self._proofs: dict[int, Proof] = {}  # by id of programs that are kept
        self._orders: dict[int, StepOrder] = {}

    def choose(self, call: Demand) -> Program:
        """The program for a call, proved. Raises PlanError for a rule that does not fit it."""
        rule = self._rule(call)
        if rule is not None:
            return self.program(rule.algorithm, call)
        known = _rounded(call)
        if known not in self._chosen:
            self._chosen[known] = self.estimates(known)[0].algorithm
        return self.program(self._chosen[known], call)

    def algorithm(self, call: Demand) -> str:
        """The name of what `choose` takes."""
        rule = self._rule(call)
        return rule.algorithm if rule is not None else self.estimates(call)[0].algorithm

    def estimates(self, call: Demand) -> list[Estimate]:
        """What there is for a call, the fastest first."""
        call = _rounded(call)
        flat = self._network.levels == 0
        names = [n for n in ALGORITHMS[call.kind] if not (flat and n == HIERARCHICAL)]
        coarse = self._cut([n for n in names if (call.kind, n) in CUTTING], CUTS[1], call)
        best = sorted(coarse, key=lambda n: (self._predicted(n, call), n))[:1]
        fine = self._cut([n.partition("/")[0] for n in best], CUTS[2], call)
        measured = {r.algorithm for r in self._rows if r.kind is call.kind}
        candidates = dict.fromkeys([*names, *coarse, *fine, *sorted(measured)])
        ratios = {name: self._ratio(name, call) for name in candidates}
        known = [ratio for ratio in ratios.values() if ratio is not None]
        others = median(known) if known else 1.0
        found = [
            Estimate(
                name, seconds, seconds * (others if ratio is None else ratio), ratio is not None
            )
            for name, ratio in ratios.items()
            for seconds in [self._predicted(name, call)]
        ]
        return sorted(found, key=lambda o: (o.seconds, o.algorithm))

    def _rule(self, call: Demand) -> Override | None:
        return next((r for r in self._rules if r.holds(call.kind, call.nbytes)), None)

    def _cut(self, names: Sequence[str], cut: int, call: Demand) -> list[str]:
        """Those that may be cut so, and are still of few steps and of parts worth a message."""
        found = []
        for name in names:
            steps = sum(map(len, self._program(name, call).steps))
            if cut <= min(MOST_STEPS // max(steps, 1), call.nbytes // LEAST_PART):
                found.append(f"{name}/{cut}")
        return found

    def _ratio(self, name: str, call: Demand) -> float | None:
        """Measured over predicted time, between the sizes that were measured; None without any."""
        rows = sorted(
            (r for r in self._rows if (r.kind, r.algorithm) == (call.kind, name)),
            key=lambda r: r.nbytes,
        )
        at = [
            (r.nbytes, r.seconds / self._predicted(name, replace(call, nbytes=r.nbytes)))
            for r in rows
        ]
        return _between(at, call.nbytes) if at else None

    def _predicted(self, name: str, call: Demand) -> float:
        key = name, call
        if key not in self._seconds:
            program = self._program(name, call)
            # Equal extents, so that the longest place of a rank has the call's bytes
            ranks, places = range(program.size), (ChunkPlace.INPUT, ChunkPlace.OUTPUT)
            most = max(len(extents(program, r, p)) for r in ranks for p in places)
            count = -(-call.nbytes // (call.element.nbytes * max(most, 1)))
            lengths = even_lengths(program.kind, program.size, count)
            if id(program) not in self._orders:
                self._orders[id(program)] = order_of(program, self._go_on)
            order = self._orders[id(program)]
            self._seconds[key] = predict(
                program, order, lengths, call.element, self._network, self._go_on
            )
        return self._seconds[key]

    def program(self, name: str, call: Demand) -> Program:
        """The program of an option, or of a file of the user, proved.

        Raises PlanError if it is wrong or for other calls, or if it rounds sums too soon.
        """
        program = self._program(name, call)
        if id(program) not in self._proofs:
            self._proofs[id(program)] = check(program, self._go_on)
        if _is_wide(call) and not self._proofs[id(program)].wide:
            raise PlanError(
                f"{name} rounds sums to the element type before they are finished, which this call "
                "does not allow; keep them in scratch memory"
            )
        return program

    def _program(self, name: str, call: Demand) -> Program:
        network = self._network
        wide = _is_wide(call)
        algorithm, _, cut = name.partition("/")
        request = Request(call.kind, network.size, call.root, call.target, call.in_place, wide)
        if name.endswith(PLAN_FILE):
            return self._kept(name, request, lambda: _loaded(Path(name), request))
        full = replace(request, cut=int(cut or 1), places=network.places, go_on=self._go_on)
        return self._kept(name, full, lambda: build(algorithm, full))

    def _kept(self, name: str, request: Request, make: Callable[[], Program]) -> Program:
        if (name, request) not in self._programs:
            self._programs[name, request] = make()
        return self._programs[name, request]


def _is_wide(call: Demand) -> bool:
    return call.element.wide_nbytes != call.element.nbytes


def _rounded(call: Demand) -> Demand:
    """The call with its bytes rounded down to a power of two, or 0."""
    return replace(call, nbytes=1 << (call.nbytes.bit_length() - 1) if call.nbytes else 0)


def _between(points: Sequence[tuple[int, float]], nbytes: int) -> float:
    """The value at a size, linear in the logarithm between points, constant beyond them."""
    below = [p for p in points if p[0] <= nbytes]
    above = [p for p in points if p[0] > nbytes]
    if not below or not above:
        return (above[0] if above else below[-1])[1]
    (left, low), (right, high) = below[-1], above[0]
    share = (log2(nbytes + 1) - log2(left + 1)) / (log2(right + 1) - log2(left + 1))
    return low + (high - low) * share


def _loaded(path: Path, request: Request) -> Program:
    """A user's program. Raises PlanError where it is for other calls than the request."""
    program = load_program(path)
    wanted = request.kind, request.size, request.root, request.in_place
    given = program.kind, program.size, program.root, program.in_place
    if given != wanted:
        said = [
            f"{k.value} of {n} ranks, root {r}, in place: {i}" for k, n, r, i in (given, wanted)
        ]
        raise PlanError(f"{path} is for {said[0]}; the call is {said[1]}")
    return program
