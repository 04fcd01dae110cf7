"""What an engine has compiled, and for which requests it serves."""

from __future__ import annotations

import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import field, replace

from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.size import Values
from stack.compiler.program import CompiledGraph, GraphRequest, NeedsPlainSizes
from stack.runtime.canonical import renumbered
from stack.runtime.general import (
    General,
    Lifted,
    Number,
    Parts,
    SizedGraph,
    can_be_sized,
    can_generalise,
    generalised,
    lifted,
    parts,
)

Compile = Callable[[GraphRequest], CompiledGraph]
Numbers = tuple[DType, list[Number]]

FAMILIES = 256
"""How many skeletons are known."""
GENERALS = 8
"""The graphs for many sizes that a skeleton has; what they leave out is compiled for itself."""
ROWS = 4
"""The requests of a skeleton that are compared."""
NOTES = 1000
"""How many compilations are told."""


@dataclass(frozen=True, slots=True)
class Compilation:
    """Something that was compiled: what, why, and the conditions under which it serves others. Or
    what cannot be compiled for others, and why."""

    name: str
    why: str
    conditions: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n  ".join((f"{self.name}: {self.why}", *(f"if {c}" for c in self.conditions)))


@dataclass(eq=False, slots=True)
class _Family:
    """The requests of one skeleton: the last ones for which was compiled, and what serves many."""

    rows: deque[Parts] = field(default_factory=lambda: deque(maxlen=ROWS))
    generals: weakref.WeakSet[General] = field(default_factory=weakref.WeakSet)


@dataclass(frozen=True, slots=True)
class Instance:
    """What serves a request: a compiled graph for these sizes, and the further inputs."""

    graph: Callable[[], CompiledGraph]
    key: Hashable = None
    """Names the graph among those of `source`; None: it is the request's own."""
    numbers: tuple[Numbers, ...] = ()
    source: SizedGraph | None = None
    sizes: tuple[int, ...] = ()
    """Those of the source's graph."""


class Dynamic:
    """A request of symbols that is compiled for many of their values: by a graph of its own, or by
    an instance for the request that has its numbers as inputs."""

    def __init__(self, lifted: Lifted, compiled: SizedGraph | Instance) -> None:
        facts = lifted.request.facts
        assert facts is not None, "a request with sizes has facts"
        self.conditions = tuple(facts.conditions)
        self._compiled, self._holds = compiled, facts.holding()
        self._dtypes = [(dtype, facts.values(sizes)) for dtype, sizes in lifted.numbers]

    def instance(self, values: Values) -> Instance | None:
        """What serves these values; None where they do not meet the conditions."""
        graph = self._compiled
        if not self._holds(values):
            return None
        numbers = tuple([(dtype, list(found(values))) for dtype, found in self._dtypes])
        if isinstance(graph, Instance):
            return replace(graph, numbers=(*numbers, *graph.numbers))
        sizes = graph.sizes(values)
        return Instance(lambda: graph.at(sizes), (id(graph), sizes), numbers, graph, sizes)


def _have_sizes(info: DeviceInfo) -> bool:
    """Whether templates have sizes as data on a device."""
    from stack.compiler.targets import choose  # noqa: PLC0415  (not to start from caches)

    return choose(info).templates.sizes


class Families:
    """Compiles requests; those that differ from an earlier one in numbers and sizes alone, once for
    all of them. `compiled` counts both kinds, and those that had to be compiled for their sizes
    alone because the device's templates have no sizes as data, or the compiler cannot tell where
    views of them lie ("fixed sizes")."""

    def __init__(
        self,
        info: DeviceInfo,
        compile: Compile,
        have_sizes: Callable[[DeviceInfo], bool] = _have_sizes,
    ) -> None:
        self._info, self._compile, self._have_sizes = info, compile, have_sizes
        self._families: OrderedDict[bytes, _Family] = OrderedDict()
        self.compiled: Counter[str] = Counter()
        self.notes: deque[Compilation] = deque(maxlen=NOTES)

    def instance(self, request: GraphRequest, general: bool = True) -> Instance:
        """The graph that serves a request, compiled now if none does, for it alone if it is not to
        be `general`. Raises what compiling raises."""
        if not general:
            return self._own(request, "asked for")
        found = parts(request)
        family = self._families.setdefault(found.skeleton, _Family())
        self._families.move_to_end(found.skeleton)
        if len(self._families) > FAMILIES:
            self._families.popitem(last=False)
        for known in family.generals:
            values = known.fits(found)
            if values is not None:
                return _of(known, found, values)
        why = "a graph that was not seen before"
        if family.rows and found not in family.rows:
            why = _difference(family.rows[-1], found)
            made = self._general(request, family, found)
            family.rows.append(found)
            if made is not None:
                family.generals.add(made)
                self._note("general", request, why, made.conditions)
                values = made.fits(found)
                assert values is not None, "what was compiled for a request serves it"
                return _of(made, found, values)
            self.compiled["fixed sizes"] += 1
        if found not in family.rows:
            family.rows.append(found)
        return self._own(request, why)

    def _own(self, request: GraphRequest, why: str) -> Instance:
        graph = self.compiled_alone(request)
        self._note("specialised", request, why)
        return Instance(lambda: graph)

    def compiled_alone(self, request: GraphRequest) -> CompiledGraph:
        """The request compiled for its own numbers and sizes. Raises what compiling raises."""
        return self._compile(request)

    @property
    def have_sizes(self) -> bool:
        """Whether sizes may be data on this device."""
        return self._have_sizes(self._info)

    def sized(self, request: GraphRequest, why: str) -> Dynamic | None:
        """The request, which has `facts`, compiled for all values of its symbols that meet the
        conditions; None where its sizes cannot be data. Raises what compiling raises."""
        facts = request.facts
        assert facts is not None, "a request with sizes has facts"
        if not can_be_sized(request):
            return None
        plain = lifted(renumbered(request))
        if not facts.least:  # numbers alone: those of other sizes share what is compiled
            served = self.instance(replace(plain.request, facts=None))
            own = served.source is None
            return Dynamic(plain, SizedGraph(served.graph(), facts) if own else served)
        try:
            found = Dynamic(plain, SizedGraph(self._compile(plain.request), facts))
        except NeedsPlainSizes:
            return None
        self._note("general", request, why, found.conditions)
        return found

    def _general(self, request: GraphRequest, family: _Family, found: Parts) -> General | None:
        """A graph for many sizes, of which the request has some; None where it cannot be."""
        if not can_generalise(request):
            return None
        is_same = all(row.sizes == found.sizes for row in family.rows)
        if not is_same and not (self.have_sizes and len(family.generals) < GENERALS):
            return None
        sized = generalised(request, [*family.rows, found])
        try:
            return General(sized, self._compile(sized.request))
        except NeedsPlainSizes:  # how sizes seen so far happen to differ: others may tell more
            return None

    def _note(
        self, kind: str, request: GraphRequest, why: str, conditions: tuple[object, ...] = ()
    ) -> None:
        self.compiled[kind] += 1
        name = "_".join(dict.fromkeys(n.op for n in request.outputs)) or "nothing"
        shown = tuple(map(str, conditions))
        self.notes.append(Compilation(f"{kind} {name}", why, shown))


def _of(general: General, found: Parts, values: dict[str, int]) -> Instance:
    numbers = tuple(
        (dtype, [found.values[i] for i in which]) for dtype, which in general.sized.numbers.items()
    )
    sizes = general.sizes(values)
    return Instance(lambda: general.at(sizes), (id(general), sizes), numbers, general, sizes)


def _difference(old: Parts, new: Parts) -> str:
    """What is new in a request, beside one of the same skeleton."""
    sizes = {(a, b) for a, b in zip(old.sizes, new.sizes, strict=True) if a != b}
    numbers = {(a, b) for a, b in zip(old.numbers, new.numbers, strict=True) if a != b}
    shown = [f"{b} for {a}" for a, b in sorted(sizes)[:4]]
    said = [f"sizes {', '.join(shown)}"] if sizes else []
    said += (
        [f"numbers {', '.join(f'{b} for {a}' for a, b in sorted(numbers)[:4])}"] if numbers else []
    )
    return "; ".join(said) or "the same sizes and numbers, whose plan is gone"
