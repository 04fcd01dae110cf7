"""The scheduler on the loads that it is held to: `python -m benchmarks.scheduler_loads [LOAD]...`.

kueue     Kueue's baseline load in simulated time: 15,000 jobs; the devices alone bound it by 66 s
topology  Kueue's topology load: 1,050 gangs of 4 to 32 ranks on 10 racks of 64 hosts of 96 devices
hosts     100,000 jobs on 10,000 hosts of 8 devices
gang      one gang of 4,096 ranks on 96,000 hosts in supernodes of 256
gangs     the mix of gangs by seeds: waiting under FIFO, with backfill, and with elastic jobs

Prints a line of JSON for each. Times are processor time of this process, the simulator's included.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import click

from stack.scheduler.compare import simulate
from stack.scheduler.core import Scheduler
from stack.scheduler.events import Admit, HostJoined, Submitted
from stack.scheduler.simulate import Costs, Simulation, Task
from stack.scheduler.spec import Chip, Discipline, HostSpec, JobSpec, QueueSpec, Rules
from stack.scheduler.traces import gang_mix, kueue_baseline

Row = dict[str, Any]


def kueue() -> Iterator[Row]:
    """In order of submission and of priority, filling holes, without and with taking back what was
    lent; and in queues that lock."""
    for order in ("submitted",), ("priority", "submitted"):
        for discipline, reclaim in (
            (Discipline.LOCK, False),
            (Discipline.FILL, False),
            (Discipline.FILL, True),
        ):
            tasks, there, queues = kueue_baseline()
            queues = [replace(queue, discipline=discipline) for queue in queues]
            simulation = Simulation(tasks, there, queues, rules=Rules(order, reclaim=reclaim))
            begun_s = time.process_time()
            outcome = simulation.run()
            took_s = time.process_time() - begun_s
            waits: dict[str, list[float]] = {}
            for course in outcome.courses.values():
                waits.setdefault(course.task.spec.name, []).append(course.waited_s)
            yield {
                "order": order[0],
                "discipline": discipline.value,
                "reclaim": reclaim,
                "makespan_s": round(outcome.ended_at, 2),
                "use": round(outcome.use, 4),
                "mean_wait_s": {name: round(sum(w) / len(w), 2) for name, w in waits.items()},
                "jobs_per_s": round(len(outcome.courses) / took_s),
            }


def topology(seed: int = 0) -> Iterator[Row]:
    """A third of the gangs requires a rack, a third prefers one, a third is balanced in one."""
    draw = random.Random(seed)
    hosts = [
        HostSpec(f"r{rack}n{node}", (Chip("cpu", 96),), (f"r{rack}",))
        for rack in range(10)
        for node in range(64)
    ]
    tasks = []
    for job in range(1050):
        spec = JobSpec(
            *("all", draw.choice((4, 8, 16, 32)), ("cpu",)),
            devices=draw.choice((8, 16, 48)),
            within="rack",
            required=job % 3 == 0,
            balanced=job % 3 == 2,
        )
        tasks.append(Task(draw.uniform(0, 60), job, spec, draw.uniform(1, 10)))
    simulation = Simulation(tasks, hosts, [QueueSpec("all")], ("rack",))
    racks: dict[str, list[int]] = {"required": [], "preferred": [], "balanced": []}
    begun_s = time.process_time()
    for _, decisions in simulation.steps():
        for decision in decisions:
            if isinstance(decision, Admit):
                spec = tasks[decision.job].spec
                what = "required" if spec.required else "balanced" if spec.balanced else "preferred"
                racks[what].append(len({share.host.partition("n")[0] for share in decision.shares}))
    yield {
        "gangs": len(tasks),
        "in_one_rack": {what: f"{found.count(1)} of {len(found)}" for what, found in racks.items()},
        "makespan_s": round(simulation.outcome.ended_at, 1),
        "took_s": round(time.process_time() - begun_s, 2),
    }


def hosts(seed: int = 0) -> Iterator[Row]:
    """Jobs come three times as fast as the devices can serve them, so that many wait."""
    draw = random.Random(seed)
    there = [HostSpec(f"h{host}", (Chip("gpu", 8),), (f"s{host // 32}",)) for host in range(10_000)]
    tasks = []
    for job in range(100_000):
        (ranks,) = draw.choices((1, 2, 4, 8, 16, 64, 256), (50, 10, 10, 20, 6, 3, 1))
        work_s = math.exp(draw.gauss(0, 1.2)) * 3600
        spec = JobSpec(
            *("all", ranks, ("gpu",)),
            priority=draw.choice((0, 0, 1)),
            limit_s=2 * work_s,
            within="supernode" if ranks > 8 else "",
        )
        tasks.append(Task(job * 0.1, job, spec, work_s))
    simulation = Simulation(tasks, there, [QueueSpec("all")], ("supernode",))
    joined = [next(steps) for steps in [simulation.steps()] for _ in there]
    begun_s = time.process_time()
    outcome = simulation.run()
    took_s = time.process_time() - begun_s
    yield {
        "hosts": len(joined),
        "jobs": len(outcome.courses),
        "decisions": outcome.decisions,
        "took_s": round(took_s, 1),
        "decisions_per_s": round(outcome.decisions / took_s),
        "use": round(outcome.use, 3),
    }


def gang() -> Iterator[Row]:
    """On a machine that is partly taken."""
    scheduler = Scheduler([QueueSpec("all")], ("supernode",))
    for host in range(96_000):
        place = HostSpec(f"h{host}", (Chip("sunway", 6),), (f"s{host // 256}",))
        scheduler.handle(HostJoined(0.0, place))
    draw = random.Random(0)
    for job in range(2000):
        ranks = draw.choice((1, 6, 24, 96, 384))
        scheduler.handle(Submitted(1.0, job, JobSpec("all", ranks, ("sunway",))))
    begun_s = time.process_time()
    spec = JobSpec("all", 4096, ("sunway",), within="supernode")
    (start,) = scheduler.handle(Submitted(2.0, 2000, spec))
    took_s = time.process_time() - begun_s
    assert isinstance(start, Admit), "there is room"
    supernodes = {int(share.host[1:]) // 256 for share in start.shares}
    ranks = sum(len(share.devices) for share in start.shares)
    yield {"ranks": ranks, "supernodes": len(supernodes), "took_s": round(took_s, 3)}


def gangs() -> Iterator[Row]:
    """Seeds 0 to 14, by which the rules were chosen, and 15 to 39, by which they were not."""
    for seed in range(40):
        rows = {
            name: simulate(name, gang_mix(seed), Costs())[0]
            for name in ("fifo", "easy", "wide", "fair_start", "elastic")
        }
        fifo = rows["fifo"]
        yield {
            "seed": seed,
            "fifo_mean_h": round(fifo.mean_wait_s / 3600, 2),
            "fifo_p99_h": round(fifo.p99_wait_s / 3600, 2),
            **{
                name: {
                    "mean_of_fifo": round(row.mean_wait_s / fifo.mean_wait_s, 3),
                    "longest_h": round(row.longest_wait_s / 3600, 2),
                }
                for name, row in rows.items()
                if name != "fifo"
            },
        }


LOADS: dict[str, Callable[[], Iterator[Row]]] = {
    "kueue": kueue,
    "topology": topology,
    "hosts": hosts,
    "gang": gang,
    "gangs": gangs,
}


@click.command()
@click.argument("loads", nargs=-1, type=click.Choice(list(LOADS)))
def main(loads: tuple[str, ...]) -> None:
    """The scheduler on the loads that it is held to."""
    for name in loads or LOADS:
        for row in LOADS[name]():
            click.echo(json.dumps({"load": name, **row}))


if __name__ == "__main__":
    main()
