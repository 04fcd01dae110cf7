"""Measured schedules on disk: one file for each problem, in a folder for each kind of device.

A folder is named by the device's description and the compiler's own source, so that a choice is
never used where it was not measured. A damaged file, and one of another form, counts as missing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from stack.compiler.templates.blocking import Blocks, MatmulShape
from stack.compiler.templates.group_matmul import Block
from stack.compiler.templates.schedule import (
    NO_CHOICES,
    Choices,
    LoopProblem,
    LoopSizes,
    Problem,
    Schedule,
)
from stack.runtime.sealed import read_sealed, write_sealed
from stack.runtime.target import target_of

FAMILIES: dict[str, tuple[type[Problem], type[Schedule]]] = {
    "matmul": (MatmulShape, Blocks),
    "group matmul": (MatmulShape, Block),
    "loops": (LoopProblem, LoopSizes),
}


@dataclass(frozen=True, slots=True)
class Result:
    """A candidate: its time over that of the rules' schedule as a model predicts it and as it was
    measured, the median of `rounds` (None: its first run was hopeless, or the budget spent), and
    why it was refused ("": it was not)."""

    schedule: Schedule
    predicted: float
    measured: float | None
    rounds: int
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """What was measured for a problem: the seconds of a run under the rules' schedule, which is the
    first result, every candidate that was tried, and which of them is to be used."""

    problem: Problem
    seconds: float
    results: tuple[Result, ...]
    chosen: int


def folder_of(cache_dir: str, info: DeviceInfo) -> Path:
    """Where the records for such a device and this compiler are."""
    return Path(cache_dir, "tuned", target_of(info)[:32])


def read_choices(cache_dir: str, info: DeviceInfo) -> Choices:
    """The schedules that were chosen for such a device instead of the rules' own."""
    if not Path(cache_dir, "tuned").is_dir():
        return NO_CHOICES
    found: dict[Problem, Schedule] = {}
    for path in sorted(folder_of(cache_dir, info).glob("*.json")):
        record = _read(path)
        if record is not None and record.chosen:
            found[record.problem] = record.results[record.chosen].schedule
    return Choices(found)


def read_record(folder: Path, problem: Problem) -> Record | None:
    """The record of a problem; None where there is none, or a damaged one."""
    found = _read(_path(folder, problem))
    return found if found is not None and found.problem == problem else None


def write_record(folder: Path, record: Record) -> None:
    """Keep a record in the place of the one before. Raises OSError."""
    write_sealed(_path(folder, record.problem), json.dumps(to_json(record), indent=1).encode())


def to_json(record: Record) -> dict[str, Any]:
    """The record as what JSON has; its problem's family is named."""
    kinds = type(record.problem), type(record.results[0].schedule)
    family = next(name for name, both in FAMILIES.items() if both == kinds)
    facts = dataclasses.asdict(record)
    problem = {k: v.short if isinstance(v, DType) else v for k, v in facts["problem"].items()}
    return {"family": family, **facts, "problem": problem}


def _from_json(facts: dict[str, Any]) -> Record:
    problem_type, schedule_type = FAMILIES[facts["family"]]
    types = {k: DType(v) for k, v in facts["problem"].items() if k in ("dtype", "accumulate")}
    results = [
        Result(**{**result, "schedule": schedule_type(**result["schedule"])})
        for result in facts["results"]
    ]
    problem = problem_type(**{**facts["problem"], **types})
    return Record(problem, facts["seconds"], tuple(results), facts["chosen"])


def _read(path: Path) -> Record | None:
    content = read_sealed(path)
    try:
        return None if content is None else _from_json(json.loads(content))
    except (ValueError, KeyError, TypeError):
        return None  # written by a version of this package that kept records in another form


def _path(folder: Path, problem: Problem) -> Path:
    return folder / f"{hashlib.sha256(repr(problem).encode()).hexdigest()[:32]}.json"
