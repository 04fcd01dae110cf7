"""Checks a certificate: it is whole, nobody changed it, and what it says follows from its cases."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hal.core.description import CONTRACT_VERSION
from hal.core.description_json import from_json
from hal.core.errors import HalError
from hal_conformance import hashes
from hal_conformance.catalog import catalog
from hal_conformance.certificate import SCHEMA, capabilities, complete, counts, level, signed
from hal_conformance.judge import Outcome


class BadCertificate(HalError):
    """The file is no certificate of this suite that can be trusted."""

    next_step = "run `hal conform DEVICE --json FILE` again, with this release of hal-accel"


_KINDS: Mapping[str, tuple[type, ...]] = {
    "schema": (str,),
    "suite": (dict,),
    "contract": (int,),
    "date": (str,),
    "plugin": (dict,),
    "device": (dict, type(None)),
    "capabilities": (dict,),
    "run": (dict,),
    "cases": (list,),
    "summary": (dict,),
    "level": (str, type(None)),
    "complete": (bool,),
    "seeds": (list,),
    "performance": (list,),
    "hash": (str,),
}
_CASE = {"id": str, "level": str, "outcome": str, "seconds": float, "detail": str}


def read(path: str) -> dict[str, Any]:
    """The certificate in a file, checked. Raises BadCertificate with everything that is wrong."""
    try:
        table = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadCertificate(f"{path} is not a JSON file that can be read: {error}") from error
    for check in (_shape, _truth):
        if wrong := list(check(table)):
            raise BadCertificate("\n  ".join([f"{path} is not a valid certificate:", *wrong]))
    whole: dict[str, Any] = table
    return whole


def _shape(table: Any) -> Iterator[str]:
    """What is missing or of another kind than it must be."""
    if not isinstance(table, dict):
        yield f"it must be an object, not {type(table).__name__}"
        return
    for key, kinds in _KINDS.items():
        if key not in table:
            yield f"it lacks {key!r}"
        elif not isinstance(table[key], kinds):
            yield f"{key!r} has the wrong kind of value: {_shown(table[key])}"
    for case in table["cases"] if isinstance(table.get("cases"), list) else ():
        if not _is_case(case):
            yield f"a case is not {sorted(_CASE)}: {_shown(case)}"


def _truth(table: Mapping[str, Any]) -> Iterator[str]:
    """What does not follow: from the content, or from this suite."""
    if table["schema"] != SCHEMA:
        yield f"its schema is {table['schema']!r}, this suite reads {SCHEMA!r}"
    if table["hash"] != signed(table)["hash"]:
        yield "its hash does not fit its content: it was changed after it was written"
    if table["suite"].get("hash") != hashes.of_suite():
        yield f"it comes from another suite: version {table['suite'].get('version')!r}"
    if table["contract"] != CONTRACT_VERSION:
        yield f"it is of contract version {table['contract']}, this is {CONTRACT_VERSION}"
    yield from _cases(table)
    yield from _device(table)
    for key, follows in _FOLLOWS.items():
        if table[key] != (wanted := follows(table["cases"])):
            yield f"{key!r} is {_shown(table[key])}, its cases make it {_shown(wanted)}"


_FOLLOWS: Mapping[str, Callable[[Any], Any]] = {
    "summary": counts,
    "level": level,
    "complete": complete,
}


def _cases(table: Mapping[str, Any]) -> Iterator[str]:
    levels = {case.id: str(case.level) for case in catalog()}
    seen: set[str] = set()
    for case in table["cases"]:
        if levels.get(case["id"]) != case["level"]:
            yield f"this suite has no case {case['id']} of level {case['level']}"
        if case["id"] in seen:
            yield f"the case {case['id']} has two rows"
        seen.add(case["id"])


def _device(table: Mapping[str, Any]) -> Iterator[str]:
    info = table["device"]
    if info is None:
        return
    try:
        from_json(info)
    except HalError as error:
        yield f"'device' is {error}"
        return
    if table["capabilities"] != capabilities(info):
        yield "'capabilities' does not follow from the device's features"
    if info["name"] != table["run"].get("device"):
        yield f"'device' is {info['name']!r}, the run was of {table['run'].get('device')!r}"


def _is_case(case: object) -> bool:
    return (
        isinstance(case, dict)
        and case.keys() == _CASE.keys()
        and all(isinstance(case[key], kind) for key, kind in _CASE.items())
        and case["outcome"] in {outcome.value for outcome in Outcome}
    )


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:120]}..."
