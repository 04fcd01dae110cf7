"""Kueue's baseline load through a cluster with its durable journal, in real time:
`python -m benchmarks.cluster_load`.

15,000 jobs are handed in when they come, in calls of their own that are durable when they return;
each "runs" for its time on a clock, without a process. Prints how long all took (the bound by the
devices is 66 s), the use of the devices, and how long each class of jobs waited.
"""

from __future__ import annotations

import heapq
import json
import os
import select
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import click

from stack.cluster.cluster import LiveCluster
from stack.cluster.engine import Alive, JobEngine, Over
from stack.cluster.files import ClusterFile, JobFile, told
from stack.cluster.journal import Attempt
from stack.cluster.users import User
from stack.scheduler.traces import kueue_baseline

UNITS = 600


class Clockwork(JobEngine):
    """Runs that are over after the time that their first argument says."""

    def __init__(self, folder: Path, name: str, config: ClusterFile) -> None:
        super().__init__(folder, name, config)
        self._due: list[tuple[float, int, Attempt]] = []
        self._live: dict[int, Attempt] = {}
        self._news = threading.Condition()
        self.began: dict[int, float] = {}
        threading.Thread(target=self._ring, daemon=True).start()

    def start(self, run: Attempt, job: JobFile, user: User) -> Alive:
        """Set the clock for a run."""
        now, watched = time.monotonic(), os.eventfd(0)
        self.began.setdefault(run.job, now)
        with self._news:
            self._live[watched] = run
            heapq.heappush(self._due, (now + float(job.arguments[0]), watched, run))
            self._news.notify()
        return Alive(0, watched)

    def ask(self, alive: Alive) -> None:
        """A run that is asked to end does so at once."""
        os.eventfd_write(alive.watched, 1)

    def end(self, run: Attempt, alive: Alive) -> Over:
        """A run whose time is over has ended well."""
        with self._news:
            del self._live[alive.watched]
            os.close(alive.watched)
        return Over(0)

    def _ring(self) -> None:
        with self._news:
            while True:
                now = time.monotonic()
                while self._due and self._due[0][0] <= now:
                    _, watched, run = heapq.heappop(self._due)
                    if self._live.get(watched) is run:  # else it was asked to end before
                        os.eventfd_write(watched, 1)
                self._news.wait(self._due[0][0] - now if self._due else None)


@click.command()
@click.option("--part", default=1.0, help="The part of the load, from its beginning, by time.")
def main(part: float) -> None:
    """Kueue's baseline load in real time."""
    tasks, _, queues = kueue_baseline()
    tasks.sort(key=lambda task: task.at)
    tasks = [task for task in tasks if task.at <= part * tasks[-1].at]
    config = told(
        {
            "hosts": [{"name": "units", "chips": [{"kind": "cpu", "devices": UNITS}]}],
            "queues": [
                {"name": q.name, "quota": q.quota, "cohort": q.cohort, "borrow": q.borrow}
                for q in queues
            ],
        },
        ClusterFile,
        "the load",
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").touch()
        cluster = LiveCluster(Path(folder, "state"), config, Clockwork)
        engine = cluster._engine
        assert isinstance(engine, Clockwork), "it was asked for"
        files = [
            JobFile(
                script="train.py",
                arguments=(str(task.work_s),),
                folder=folder,
                queue=task.spec.queue,
                ranks=task.spec.ranks,
                priority=task.spec.priority,
                limit_s=task.spec.limit_s,
                name=task.spec.name,
            )
            for task in tasks
        ]
        begun = time.monotonic()
        due: dict[int, float] = {}
        number = 0
        used_s = 0.0
        while number < len(tasks) or len(cluster):
            calls = []
            while number < len(tasks) and begun + tasks[number].at <= time.monotonic():
                calls.append(partial(_submit, file=files[number]))
                due[number] = begun + tasks[number].at
                number += 1
            for answer in cluster.do(calls) if calls else ():
                if isinstance(answer, Exception):
                    raise answer
            wait_s = cluster.look()
            if number < len(tasks):
                wait_s = min(wait_s, max(begun + tasks[number].at - time.monotonic(), 0.0))
            watched = cluster.watched()
            poll = select.poll()
            for descriptor in watched:
                poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll(min(wait_s, 1.0) * 1000):
                cluster.ended(watched[descriptor])
        took_s = time.monotonic() - begun
        cluster.close()
    waits: dict[str, list[float]] = {}
    for index, task in enumerate(tasks):
        used_s += task.work_s * task.spec.ranks
        waits.setdefault(task.spec.name, []).append(engine.began[index + 1] - due[index])
    found = {
        "jobs": len(tasks),
        "makespan_s": round(took_s, 2),
        "use": round(used_s / (took_s * UNITS), 4),
        "mean_wait_s": {name: round(sum(w) / len(w), 3) for name, w in waits.items()},
        "load": os.getloadavg()[0],
    }
    click.echo(json.dumps(found))


def _submit(cluster: LiveCluster, file: JobFile) -> int:
    return cluster.submit(file)


if __name__ == "__main__":
    main()
