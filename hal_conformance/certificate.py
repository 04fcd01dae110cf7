"""The certificate of a run: everything that a reader needs to judge it, as one JSON object."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import hal
from hal.core.description import CONTRACT_VERSION, PERFORMANCE, Feature
from hal.core.discovery.manifest import Found
from hal_conformance import hashes, look
from hal_conformance.catalog import catalog
from hal_conformance.conform import Request
from hal_conformance.judge import Result
from hal_conformance.results import by_seed, level_reached, over_seeds, summary
from hal_conformance.runner import Look

SCHEMA = "hal-conformance/1"


def certificate(
    request: Request, results: Sequence[Result], seen: Look | None, seconds: float
) -> dict[str, Any]:
    """The certificate of a run's results. It holds its own hash."""
    info = seen.info if seen else None
    cases = [_case(result) for result in over_seeds(results)]
    table = {
        "schema": SCHEMA,
        "suite": {"version": hal.__version__, "hash": hashes.of_suite()},
        "contract": CONTRACT_VERSION,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "plugin": _plugin(look.plugin_of(request.device)),
        "device": info,
        "capabilities": capabilities(info),
        "run": _run(request, seconds),
        "cases": cases,
        "summary": counts(cases),
        "level": level(cases),
        "complete": complete(cases),
        "seeds": [
            {"seed": seed, "summary": summary(same)} for seed, same in by_seed(results).items()
        ],
        "performance": _performance(info, results),
    }
    return signed(table)


def signed(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with its own hash, over everything but the hash."""
    body = {key: value for key, value in table.items() if key != "hash"}
    return {**body, "hash": hashes.of_json(body)}


def capabilities(info: Mapping[str, Any] | None) -> dict[str, bool]:
    """Each feature of the contract, and whether the device declares it."""
    return {f.value: f.value in info["features"] for f in Feature} if info else {}


def counts(cases: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """A count per outcome, as `summary` says it."""
    empty = summary(())
    return {key: sum(case["outcome"] == key for case in cases) for key in empty}


def level(cases: Sequence[Mapping[str, Any]]) -> str | None:
    """The level that the cases reach, None below L0."""
    reached = level_reached((case["level"], case["outcome"]) for case in cases)
    return None if reached is None else str(reached)


def complete(cases: Sequence[Mapping[str, Any]]) -> bool:
    """Whether every case of this suite has a row."""
    return {case.id for case in catalog()} <= {case["id"] for case in cases}


def _case(result: Result) -> dict[str, Any]:
    return {
        "id": result.id,
        "level": result.level,
        "outcome": result.outcome.value,
        "seconds": round(result.seconds, 6),
        "detail": result.detail,
    }


def _plugin(found: Found) -> dict[str, str]:
    return {
        "name": found.name,
        "distribution": found.distribution,
        "version": found.version,
        "hash": hashes.of_folder(look.folder(found)),
    }


def _run(request: Request, seconds: float) -> dict[str, Any]:
    return {
        "device": request.device,
        "with": list(request.others),
        "chosen": str(request.choice),
        "settings": dict(request.settings),
        "seeds": list(request.seeds),
        "seeded": request.seeded,
        "seconds": round(seconds, 3),
    }


def _performance(info: Mapping[str, Any] | None, results: Sequence[Result]) -> list[dict[str, Any]]:
    """Each declared figure beside the measured one, None where it was not measured."""
    figures = {key: value for result in results for key, value in result.figures.items()}
    said = {key: figures[f"declared {key}"] for key in PERFORMANCE if f"declared {key}" in figures}
    declared = {**(info["declared"] if info else {}), **said}
    return [
        {"key": key, "declared": declared[key], "measured": figures.get(key)}
        for key in PERFORMANCE
        if key in declared
    ]
