"""What a plugin says about its own runs: the file `hal-conformance.toml` beside its manifest.

[environment]                  # set for every child process of a run
HAL_MYCHIP_PROGRESS = "0.2"
HAL_MYCHIP_DEVICES = "8 of {number}"   # that of the device under test

[environment.K]                # and more for the child of one group
HAL_MYCHIP_DEVICES = "1 of {number}"

[[expected-failure]]           # a failure that is known; the run stays green until it expires
case = "F.wait-any-of-two"
reason = "firmware 2.1 wakes one waiter only"
expires = 2030-01-31

[ratchet]                      # figures of declared performance that must not get worse
launch_s = 3e-6
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from hal.core.description import PERFORMANCE
from hal.core.errors import PluginError
from hal.core.facts import dataclass
from hal_conformance.catalog import GROUPS, catalog
from hal_conformance.judge import Outcome, Result

FILE = "hal-conformance.toml"
_TABLES = {"environment": dict, "expected-failure": list, "ratchet": dict}
_BAD = (Outcome.FAIL, Outcome.CRASH, Outcome.HANG)


@dataclass(frozen=True, slots=True)
class Known:
    """A failure that the plugin's maker knows of: why, and until when it is accepted."""

    case: str
    reason: str
    expires: datetime.date


@dataclass(frozen=True, slots=True)
class Expected:
    """The file's content; an absent file is an empty one."""

    environment: Mapping[str, str] = field(default_factory=dict)
    of_group: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    failures: Mapping[str, Known] = field(default_factory=dict)
    floors: Mapping[str, float] = field(default_factory=dict)

    def environment_of(self, group: str, device: str) -> dict[str, str]:
        """What is set for the child of a group that looks at a device."""
        said = {**self.environment, **self.of_group.get(group, {})}
        number = device.rpartition(":")[2]
        return {name: value.replace("{number}", number) for name, value in said.items()}

    def judged(self, result: Result, today: datetime.date) -> Result:
        """The result in the light of what was expected."""
        known = self.failures.get(result.id)
        if known is None or result.outcome is Outcome.UNSUPPORTED:
            return result
        if result.outcome is Outcome.PASS:
            text = f"it passes, but {FILE} expects a failure ({known.reason}): remove the entry"
            return replace(result, outcome=Outcome.XPASS, detail=text)
        if known.expires < today:
            text = f"expected ({known.reason}) until {known.expires}, which is over: "
            return replace(result, detail=text + result.detail)
        text = f"expected until {known.expires}, {known.reason}: {result.detail}"
        return replace(result, outcome=Outcome.XFAIL, detail=text)


def read_expected(folder: str) -> Expected:
    """The file in a plugin's folder. Raises PluginError that names the file and what is wrong."""
    path = Path(folder) / FILE
    if not path.exists():
        return Expected()
    try:
        return parse_expected(path.read_text(encoding="utf-8"))
    except (PluginError, OSError, UnicodeDecodeError) as error:
        raise PluginError(f"{path}: {error}") from error


def parse_expected(text: str) -> Expected:
    """The content of a file. Raises PluginError for what is wrong in it."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PluginError(f"not valid TOML: {error}") from error
    for key, value in table.items():
        if key not in _TABLES or not isinstance(value, _TABLES[key]):
            raise PluginError(f"{key!r} is not one of the tables {sorted(_TABLES)}")
    common, groups = _environment(table.get("environment", {}))
    failures = [_known(entry) for entry in table.get("expected-failure", [])]
    floors = _floors(table.get("ratchet", {}))
    return Expected(common, groups, {known.case: known for known in failures}, floors)


def _environment(table: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    groups = {key: value for key, value in table.items() if isinstance(value, dict)}
    if unknown := sorted(groups.keys() - GROUPS.keys()):
        raise PluginError(f"environment of {unknown}, which are no groups; those are {[*GROUPS]}")
    common = {key: value for key, value in table.items() if key not in groups}
    for values in (common, *groups.values()):
        if wrong := sorted(key for key, value in values.items() if not isinstance(value, str)):
            raise PluginError(f"the values of the environment are strings; these are not: {wrong}")
    return common, groups


def _known(entry: object) -> Known:
    match entry:
        case {"case": str(case), "reason": str(reason), "expires": expires, **more} if not more:
            if not reason.strip():
                raise PluginError(f"the expected failure of {case} needs a reason")
            if case not in {c.id for c in catalog()}:
                raise PluginError(f"the expected failure {case!r} is no case of this suite")
            return Known(case, reason, _date(case, expires))
    raise PluginError(f"an expected failure has case, reason and expires, not {entry!r}")


def _date(case: str, value: object) -> datetime.date:
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    try:
        return datetime.date.fromisoformat(str(value))
    except ValueError:
        raise PluginError(f"{case} expires on a date such as 2030-01-31, not {value!r}") from None


def _floors(table: Mapping[str, Any]) -> dict[str, float]:
    if unknown := sorted(table.keys() - PERFORMANCE.keys()):
        raise PluginError(f"the ratchet names {unknown}; it may name {sorted(PERFORMANCE)}")
    for key, value in table.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise PluginError(f"the ratchet of {key} is a positive number, not {value!r}")
    return {key: float(value) for key, value in table.items()}
