"""Random clusters with random jobs and faults, small enough to be full of conflicts."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from stack.scheduler.events import (
    Cancelled,
    Event,
    Held,
    HostDrained,
    HostJoined,
    HostLost,
    Measured,
    Released,
    Wanted,
)
from stack.scheduler.simulate import Costs, Simulation, Task
from stack.scheduler.spec import (
    Backfill,
    Chip,
    Discipline,
    HostSpec,
    JobSpec,
    Option,
    QueueSpec,
    Rules,
)

LEVELS = ("row", "rack")


@dataclass(frozen=True)
class World:
    """All that a simulation needs."""

    tasks: list[Task]
    hosts: list[HostSpec]
    queues: list[QueueSpec]
    rules: Rules
    costs: Costs
    faults: list[Event]

    def simulation(self) -> Simulation:
        """A fresh one."""
        return Simulation(
            *(self.tasks, self.hosts, self.queues, LEVELS),
            *(self.rules, self.costs, self.faults),
        )


def world(seed: int, jobs: int = 40) -> World:
    """The world of a seed."""
    draw = random.Random(seed)
    hosts = []
    for row in range(draw.randint(1, 2)):
        for rack in range(draw.randint(1, 3)):
            for place in range(draw.randint(1, 4)):
                kind = draw.choice(("a", "a", "b"))
                chips = tuple(
                    Chip(kind, draw.choice((1, 2, 4)), str(chip))
                    for chip in range(draw.randint(1, 2))
                )
                hosts.append(HostSpec(f"{row}{rack}{place}", chips, (f"r{row}", f"k{rack}")))
    queues = [
        QueueSpec(
            f"q{number}",
            quota={} if draw.random() < 0.2 else {"a": draw.randint(0, 8), "b": draw.randint(0, 4)},
            cohort=draw.choice(("", "c", "c")),
            borrow={} if draw.random() < 0.5 else {"a": draw.randint(0, 6)},
            weight=draw.choice((1.0, 2.0)),
            discipline=(discipline := draw.choice(list(Discipline))),
            rung_s=draw.uniform(1, 60) if discipline is Discipline.LADDER else math.inf,
        )
        for number in range(draw.randint(1, 4))
    ]
    rules = Rules(
        order=(
            *draw.sample(("priority", "share", "borrowing", "user", "smallest"), 2),
            "submitted",
        ),
        backfill=draw.choice(list(Backfill)),
        preempt=draw.random() < 0.5,
        reclaim=draw.random() < 0.5,
        elastic=draw.random() < 0.6,
        patience_s=draw.choice((math.inf, 30.0, 200.0)),
    )
    costs = Costs(*(draw.choice((0.0, draw.uniform(0, 12))) for _ in range(4)))
    tasks, time = [], 0.0
    for job in range(jobs):
        time += draw.expovariate(0.2)
        tasks.append(Task(time, job, _job(draw, len(queues)), draw.uniform(1, 60)))
    faults: list[Event] = []
    for _ in range(draw.randint(0, 8)):
        at = draw.uniform(1, time * 1.2)
        host = draw.choice(hosts)
        match draw.randrange(5):
            case 0:
                faults.append(HostDrained(at, host.name))
            case 1:
                faults.append(Cancelled(at, draw.choice(tasks).job))
            case 2:
                job = draw.choice(tasks).job
                faults += [Held(at, job), Released(at + draw.uniform(0, 50), job)]
            case 3:
                task = draw.choice(tasks)
                faults.append(Wanted(at, task.job, draw.randint(1, task.spec.ranks)))
            case _:
                faults.append(HostLost(at, host.name))
        faults.append(HostJoined(at + draw.uniform(0, 100), host))
    submitted = {task.job: task.at for task in tasks}
    kept = [
        fault
        for fault in faults
        if not isinstance(fault, (Cancelled, Held, Released, Wanted))
        or fault.at > submitted[fault.job]
    ]
    draw = random.Random(f"order {seed}")
    if draw.random() < 0.3:
        first = draw.choice(("wide", "shortest"))
        rules = replace(rules, order=(first, *rules.order), head_start_s=draw.uniform(0, 300))
    draw = random.Random(f"as fifo {seed}")
    if draw.random() < 0.2:
        rules = replace(rules, fair_start=draw.choice((1.0, 1.5)))
    draw = random.Random(f"options {seed}")
    if draw.random() < 0.4:
        tasks = [_opened(draw, task) if draw.random() < 0.4 else task for task in tasks]
        opened = {task.job for task in tasks if task.spec.options}
        kept = [f for f in kept if not (isinstance(f, Wanted) and f.job in opened)]
        kept += [
            Measured(task.at + draw.uniform(0.1, 60), task.job, draw.uniform(0.1, 8))
            for task in tasks
            if task.job in opened and draw.random() < 0.5
        ]
    return World(tasks, hosts, queues, rules, costs, kept)


def _opened(draw: random.Random, task: Task) -> Task:
    """The task with options: kinds, ranks and strategies, with speeds that know no law."""
    ways = {
        (draw.choice("ab"), draw.choice((1, 1, 2, 3, 4, 6)), draw.choice(("", "s")))
        for _ in range(draw.randint(1, 6))
    }
    options = tuple(
        Option(kind, ranks, strategy, draw.uniform(0.2, 4.0))
        for kind, ranks, strategy in sorted(ways)
    )
    first = draw.choice(options)
    spec = replace(
        task.spec,
        kinds=(first.kind,),
        ranks=first.ranks,
        least=0,
        mixed=False,
        options=options,
        weight=draw.choice((1.0, 1.0, 3.0)),
        move_s=draw.choice((0.0, 10.0, 1000.0)),
    )
    return replace(task, spec=spec)


def calm(seed: int) -> World:
    """A world without faults whose jobs have limits that hold, and whose rules have a patience."""
    here = world(seed)
    draw = random.Random(seed)
    tasks = []
    for task in here.tasks:
        limit_s = task.work_s * draw.uniform(1.0, 3.0) + 30.0
        tasks.append(replace(task, spec=replace(task.spec, limit_s=limit_s)))
    rules = replace(here.rules, patience_s=draw.choice((0.0, 30.0, 200.0)))
    return replace(here, tasks=tasks, rules=rules, faults=[])


def _job(draw: random.Random, queues: int) -> JobSpec:
    ranks = draw.choice((1, 1, 2, 3, 4, 6, 8))
    mixed = draw.random() < 0.1
    within = "" if mixed else draw.choice(("", "", "row", "rack", "host", "chip"))
    return JobSpec(
        f"q{draw.randrange(queues)}",
        ranks,
        ("a", "b") if mixed else draw.choice((("a",), ("a",), ("b",), ("a", "b"), ("b", "a"))),
        least=draw.choice((0, draw.randint(1, ranks))),
        devices=draw.choice((1, 1, 2)),
        priority=draw.choice((0, 0, 1, 2)),
        limit_s=draw.choice((math.inf, draw.uniform(30, 200), draw.uniform(1, 60))),
        grace_s=draw.choice((0.0, draw.uniform(0, 20))),
        within=within,
        required=bool(within) and draw.random() < 0.5,
        balanced=not mixed and draw.random() < 0.3,
        mixed=mixed,
        user=draw.choice(("", "u", "v")),
    )
