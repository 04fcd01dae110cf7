"""Jobs to simulate: the published schemas of public traces, and generators with published numbers.

The traces' files are the user's: each reader names the columns that it needs, and says in a
sentence which one a file lacks."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from stack.scheduler.simulate import Task
from stack.scheduler.spec import Chip, HostSpec, JobSpec, QueueSpec, SpecError

Setting = tuple[list[Task], list[HostSpec], list[QueueSpec]]
"""Jobs, the hosts that they meant, and the queues that they name."""


def gang_mix(
    seed: int, jobs: int = 2000, devices: int = 512, load: float = 0.95, elastic: bool = False
) -> Setting:
    """Gangs of 8 to 256 devices, mostly small, that run for log-normal times (median 1 h, sigma
    1.2) and come as a Poisson stream at a load; users ask for twice the time that they need. With
    `elastic` a job starts from a quarter of its ranks."""
    draw = random.Random(seed)
    sizes, weights = (8, 16, 32, 64, 128, 256), (50, 24, 14, 8, 3, 1)
    mean_size = sum(s * w for s, w in zip(sizes, weights, strict=True)) / sum(weights)
    mean_s = math.exp(1.2**2 / 2) * 3600
    rate = load * devices / (mean_size * mean_s)
    tasks, at = [], 0.0
    for job in range(jobs):
        at += draw.expovariate(rate)
        (ranks,) = draw.choices(sizes, weights)
        work_s = math.exp(draw.gauss(0, 1.2)) * 3600
        least = ranks // 4 if elastic else 0
        tasks.append(
            Task(at, job, JobSpec("all", ranks, ("gpu",), least, limit_s=2 * work_s), work_s)
        )
    hosts = [HostSpec(f"h{n}", (Chip("gpu", 8),)) for n in range(devices // 8)]
    return tasks, hosts, [QueueSpec("all")]


def kueue_baseline(patience: float = 4.0) -> Setting:
    """The load of Kueue's own performance test (test/performance/scheduler/configs/baseline): 5
    cohorts of 6 queues, each owning 20 units and borrowing up to 100, with 350 small, 100 medium
    and 50 large jobs a queue. `patience` is a limit over the time that a job needs."""
    classes = {"small": (350, 1, 0.2, 0.1, 50), "medium": (100, 5, 0.5, 0.5, 100)}
    classes["large"] = (50, 20, 1.0, 1.2, 200)
    tasks: list[Task] = []
    queues = []
    for name in (f"c{cohort}q{queue}" for cohort in range(5) for queue in range(6)):
        queues.append(QueueSpec(name, {"cpu": 20}, name[:2], {"cpu": 100}))
        for label, (count, units, work_s, every_s, priority) in classes.items():
            for number in range(count):
                limit_s = patience * work_s
                spec = JobSpec(
                    *(name, units, ("cpu",)), priority=priority, limit_s=limit_s, name=label
                )
                tasks.append(Task(number * every_s, len(tasks), spec, work_s))
    return tasks, [HostSpec("units", (Chip("cpu", 600),))], queues


def philly(path: Path) -> Setting:
    """Microsoft's Philly trace (2017): the JSON list `cluster_job_log`. A job's last attempt
    counts; virtual clusters become queues."""
    tasks = []
    entries = json.loads(path.read_text())
    for entry in entries:
        _need(path, entry, ("vc", "user", "submitted_time", "attempts"))
        attempts = [a for a in entry["attempts"] if a.get("start_time") and a.get("end_time")]
        if not attempts or not entry["submitted_time"]:
            continue
        last = attempts[-1]
        ranks = sum(len(detail["gpus"]) for detail in last.get("detail", ()))
        work_s = _stamp(last["end_time"]) - _stamp(last["start_time"])
        if ranks and work_s > 0:
            spec = JobSpec(entry["vc"], ranks, ("gpu",), user=entry["user"], limit_s=2 * work_s)
            tasks.append((_stamp(entry["submitted_time"]), spec, work_s))
    return _setting(tasks, gpus_a_host=8)


def helios(path: Path) -> Setting:
    """SenseTime's Helios trace (2020): CSV of one cluster; `queue` and `gpu_num` as given, times as
    they were measured."""
    tasks = []
    for row in _rows(path, ("user", "vc", "gpu_num", "submit_time", "duration")):
        if int(row["gpu_num"]) and float(row["duration"]) > 0:
            work_s = float(row["duration"])
            spec = JobSpec(
                row["vc"], int(row["gpu_num"]), ("gpu",), user=row["user"], limit_s=2 * work_s
            )
            tasks.append((_stamp(row["submit_time"]), spec, work_s))
    return _setting(tasks, gpus_a_host=8)


def alibaba2023(path: Path) -> Setting:
    """Alibaba's GPU cluster trace of 2023: CSV of pods, times in seconds. A pod is a job of as many
    ranks as it has GPUs; parts of a GPU count as one."""
    tasks = []
    for row in _rows(path, ("num_gpu", "qos", "creation_time", "deletion_time", "scheduled_time")):
        if not row["scheduled_time"] or not int(row["num_gpu"]):
            continue
        work_s = float(row["deletion_time"]) - float(row["scheduled_time"])
        if work_s > 0:
            priority = {"LS": 2, "Burstable": 1}.get(row["qos"], 0)
            spec = JobSpec(
                *("all", int(row["num_gpu"]), ("gpu",)), priority=priority, limit_s=2 * work_s
            )
            tasks.append((float(row["creation_time"]), spec, work_s))
    return _setting(tasks, gpus_a_host=8)


def alibaba2026(path: Path) -> Setting:
    """Alibaba's spot trace of 2026: CSV of jobs with workers of some GPUs each; jobs of high
    priority before spot ones, GPU models as kinds, organizations as queues."""
    tasks = []
    columns = ("organization", "gpu_model", "gpu_request", "worker_num", "submit_time", "duration")
    for row in _rows(path, (*columns, "job_type")):
        devices = math.ceil(float(row["gpu_request"]))
        work_s = float(row["duration"])
        if devices and work_s > 0:
            spec = JobSpec(
                *(row["organization"], int(row["worker_num"]), (row["gpu_model"],)),
                devices=devices,
                priority=int(row["job_type"] == "HP"),
                limit_s=2 * work_s,
            )
            tasks.append((float(row["submit_time"]), spec, work_s))
    return _setting(tasks, gpus_a_host=8)


FORMATS: dict[str, Callable[[Path], Setting]] = {
    "philly": philly,
    "helios": helios,
    "alibaba2023": alibaba2023,
    "alibaba2026": alibaba2026,
}


def _setting(jobs: list[tuple[float, JobSpec, float]], gpus_a_host: int) -> Setting:
    """Jobs from the first one's time on; hosts for 0.95 of their mean load, at least for the
    largest."""
    if not jobs:
        raise SpecError("the trace has no job that used devices for a time")
    jobs.sort(key=lambda entry: entry[0])
    first, last = jobs[0][0], jobs[-1][0]
    tasks = [
        Task(at - first, number, spec, work_s) for number, (at, spec, work_s) in enumerate(jobs)
    ]
    hosts = []
    for kind in sorted({spec.kinds[0] for _, spec, _ in jobs}):
        mine = [(spec, work_s) for _, spec, work_s in jobs if spec.kinds[0] == kind]
        work = sum(spec.ranks * spec.devices * work_s for spec, work_s in mine)
        largest = max(spec.ranks * spec.devices for spec, _ in mine)
        size = max(gpus_a_host, *(spec.devices for spec, _ in mine))
        devices = max(work / (0.95 * max(last - first, 1.0)), largest)
        hosts += [
            HostSpec(f"{kind}{n}", (Chip(kind, size),)) for n in range(-(-int(devices) // size) + 1)
        ]
    queues = [QueueSpec(name) for name in sorted({spec.queue for _, spec, _ in jobs})]
    return tasks, hosts, queues


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            _need(path, row, columns)
            yield row


def _need(path: Path, entry: dict[str, str], names: tuple[str, ...]) -> None:
    lacks = [name for name in names if name not in entry]
    if lacks:
        there = ", ".join(entry)
        raise SpecError(f"{path} lacks {', '.join(lacks)}; it has {there}: is the format right?")


def _stamp(text: str) -> float:
    """Seconds of a time as the traces write it, taken as UTC; or of a plain number."""
    try:
        return float(text)
    except ValueError:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
