"""One case on one device, judged: the outcome and why."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from hal.core.errors import HalError
from hal.core.facts import dataclass
from hal_conformance.case import Case
from hal_conformance.expect import Unfit, Wrong
from hal_conformance.probe import check_refused
from hal_conformance.rig import Rig, Setting


class Outcome(Enum):
    """PASS and UNSUPPORTED are right; XFAIL is a failure that the plugin declared, XPASS one that
    it declared and that did not happen; CRASH and HANG are seen from outside the process."""

    PASS = "pass"
    FAIL = "fail"
    UNSUPPORTED = "unsupported"
    XFAIL = "xfail"
    XPASS = "xpass"
    CRASH = "crash"
    HANG = "hang"


@dataclass(frozen=True, slots=True)
class Result:
    """What a case came to, in which time, and in words why. `figures` is what it measured."""

    id: str
    level: str
    outcome: Outcome
    seconds: float
    detail: str
    seed: int = 0
    figures: Mapping[str, float] = field(default_factory=dict)


def judge(case: Case, setting: Setting) -> Result:
    """Run the case here and now. A crash or a hang is not caught: see the worker."""
    begin = time.perf_counter()
    rig = Rig(case, setting)
    try:
        outcome, detail = _outcome(case, rig)
    finally:
        closed = _closed(rig)
    if closed and outcome is not Outcome.FAIL:
        outcome, detail = Outcome.FAIL, closed
    seconds = time.perf_counter() - begin
    return Result(case.id, str(case.level), outcome, seconds, detail, setting.seed, rig.figures)


def _outcome(case: Case, rig: Rig) -> tuple[Outcome, str]:
    try:
        if missing := case.needs and sorted(case.needs - rig.info.features, key=lambda f: f.value):
            for feature in missing:
                check_refused(rig, feature)
            names = ", ".join(feature.value for feature in missing)
            return Outcome.UNSUPPORTED, f"the device does not declare {names}"
        if len(rig.setting.peers) < case.devices:
            return Outcome.UNSUPPORTED, f"it needs {case.devices} devices of one plugin"
        case.body(rig)
    except Unfit as unfit:
        return Outcome.UNSUPPORTED, str(unfit)
    except Wrong as wrong:
        return Outcome.FAIL, str(wrong)
    except HalError as error:
        return Outcome.FAIL, f"unexpected {type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  the device's own code runs here
        return Outcome.FAIL, traceback.format_exc(limit=-3)
    return Outcome.PASS, ""


def _closed(rig: Rig) -> str:
    """End the case's sessions; gives what went wrong."""
    try:
        rig.close()
    except Exception as error:  # noqa: BLE001  the device's own code runs here
        return f"close raised {type(error).__name__}: {error}"
    return ""
