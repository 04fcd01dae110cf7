"""The kernels of a graph that have a choice of schedules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from hal.core.description import DeviceInfo
from hal.core.facts import dataclass
from stack.compiler.graph.cluster import Cluster
from stack.compiler.kernels import order_clusters
from stack.compiler.known import Recent
from stack.compiler.program import GraphRequest
from stack.compiler.targets import choose
from stack.compiler.templates.emit import Emitter, TileCall
from stack.compiler.templates.schedule import NO_CHOICES, Choices, Problem, Schedule


@dataclass(frozen=True, slots=True)
class Tunable:
    """A problem, how many kernels of the graph pose it, and the kernel of the first of them under
    any schedule."""

    problem: Problem
    count: int
    kernel: Callable[[Schedule], TileCall]


def tunables(request: GraphRequest, info: DeviceInfo) -> tuple[Tunable, ...]:
    """The different problems of a graph in the order in which they are met."""
    ready = order_clusters(request, info, choose(info).templates, NO_CHOICES)
    first: dict[Problem, Cluster] = {}
    counts: Counter[Problem] = Counter()
    for cluster in ready.clusters:
        problem = None if cluster.kind == "exchange" else ready.emitter.problem(cluster)
        if problem is not None:
            first.setdefault(problem, cluster)
            counts[problem] += 1
    return tuple(
        Tunable(problem, counts[problem], _kernel(ready.emitter, problem, cluster))
        for problem, cluster in first.items()
    )


def _kernel(emitter: Emitter, problem: Problem, cluster: Cluster) -> Callable[[Schedule], TileCall]:
    def call(schedule: Schedule) -> TileCall:
        choices = Choices({problem: schedule})
        return replace(emitter, choices=choices, made=Recent()).call(cluster)

    return call
