"""Measured schedules on disk: one file for each problem, in a folder for each kind of device.

A folder is named by the device's description and the compiler's own source, so that a choice is
never used where it was not measured. A damaged file, and one of another form, counts as missing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from hal.cache import Cache
from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from hal.core.facts import dataclass
from stack.compiler.templates.blocking import Blocks, MatmulShape
from stack.compiler.templates.schedule import (
    NO_CHOICES,
    Block,
    Choices,
    LoopProblem,
    LoopSizes,
    Problem,
    Schedule,
)
from stack.runtime.target import target_of

FAMILIES: dict[str, tuple[type[Problem], type[Schedule]]] = {
    "matmul": (MatmulShape, Blocks),
    "group matmul": (MatmulShape, Block),
    "loops": (LoopProblem, LoopSizes),
}


Made = TypeVar("Made", bound=Problem | Schedule)


@dataclass(frozen=True, slots=True)
class TunedCandidate:
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
    results: tuple[TunedCandidate, ...]
    chosen: int


def records_of(cache_dir: str, info: DeviceInfo) -> Cache:
    """Where the records for such a device and this compiler are."""
    return Cache(cache_dir, "tuned", target_of(info)[:32])


def read_choices(cache_dir: str, info: DeviceInfo) -> Choices:
    """The schedules that were chosen for such a device instead of the rules' own."""
    if not Path(cache_dir, "tuned").is_dir():
        return NO_CHOICES
    found: dict[Problem, Schedule] = {}
    records = records_of(cache_dir, info)
    for name in records.names():
        record = _read(records, name)
        if record is not None and record.chosen:
            found[record.problem] = record.results[record.chosen].schedule
    return Choices(found)


def read_record(records: Cache, problem: Problem) -> Record | None:
    """The record of a problem; None where there is none, or a damaged one."""
    found = _read(records, _name(problem))
    return found if found is not None and found.problem == problem else None


def write_record(records: Cache, record: Record) -> None:
    """Keep a record in the place of the one before. Raises OSError."""
    records.write(_name(record.problem), json.dumps(to_json(record), indent=1).encode())


def to_json(record: Record) -> dict[str, Any]:
    """The record as what JSON has; its problem's family is named."""
    kinds = type(record.problem), type(record.results[0].schedule)
    family = next(name for name, both in FAMILIES.items() if both == kinds)
    facts = dataclasses.asdict(record)
    problem = {k: v.short if isinstance(v, DType) else v for k, v in facts["problem"].items()}
    return {"family": family, **facts, "problem": problem}


def _from_json(facts: Any) -> Record:
    """The record of what JSON has. Raises ValueError for anything else than `to_json` gives."""
    family, *rest = _values(facts, ("family", "problem", "seconds", "results", "chosen"))
    if not isinstance(family, str) or family not in FAMILIES:
        raise ValueError(f"no family {family!r}")
    problem_type, schedule_type = FAMILIES[family]
    problem, seconds, listed, chosen = rest
    if not isinstance(listed, list):
        raise ValueError("the results are no list")  # noqa: TRY004  a wrong text, not a wrong call
    results = tuple([_result(result, schedule_type) for result in listed])
    if type(chosen) is not int or not 0 <= chosen < len(results):
        raise ValueError(f"no result {chosen!r}")
    return Record(_made(problem_type, problem), _number(seconds), results, chosen)


def _result(facts: Any, schedule_type: type[Schedule]) -> TunedCandidate:
    keys = ("schedule", "predicted", "measured", "rounds", "refused")
    schedule, predicted, measured, rounds, refused = _values(facts, keys)
    if type(rounds) is not int or not isinstance(refused, str):
        raise ValueError("no rounds, or no reason")
    time = None if measured is None else _number(measured)
    return TunedCandidate(_made(schedule_type, schedule), _number(predicted), time, rounds, refused)


def _made(kind: type[Made], facts: Any) -> Made:
    """A problem or schedule, each field of its own type. Raises ValueError."""
    types = get_type_hints(kind)
    values = [_field(types[k], v) for k, v in zip(types, _values(facts, types), strict=True)]
    return kind(*values)


def _field(kind: Any, value: Any) -> Any:
    kinds = get_args(kind) or (kind,)
    if DType in kinds and isinstance(value, str):
        return DType(value)
    if type(value) not in kinds or (isinstance(value, int) and not 0 <= value < 1 << 63):
        wanted = " or ".join(k.__name__ for k in kinds)
        raise ValueError(f"{value!r} in the place of {wanted}")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1e300:
        raise ValueError(f"{value!r} is no ratio and no time")
    return float(value)


def _values(facts: Any, keys: Iterable[str]) -> list[Any]:
    """The values of exactly these keys."""
    wanted = list(keys)
    if not isinstance(facts, dict) or set(facts) != set(wanted):
        raise ValueError(f"the keys are not {', '.join(wanted)}")
    return [facts[key] for key in wanted]


def _read(records: Cache, name: str) -> Record | None:
    """The record of that name; an entry that is none, or that of another problem, is removed."""
    content = records.get(name)
    if content is None:
        return None
    try:
        record = _from_json(json.loads(content))
    except (ValueError, RecursionError):
        record = None
    if record is not None and _name(record.problem) == name:
        return record
    records.remove(name)
    return None


def _name(problem: Problem) -> str:
    return f"{hashlib.sha256(repr(problem).encode()).hexdigest()[:32]}.json"
