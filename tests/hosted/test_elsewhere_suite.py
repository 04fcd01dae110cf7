"""The suite's cases of groups on devices that join others of other processes: in one process, and
in several."""

import os
import sys

import pytest

from hal_conformance.conform import Request, conform
from hal_conformance.judge import Outcome
from hal_conformance.plan import Choice
from hal_conformance.results import RED
from tests.hosted.joins import install

BETWEEN = (
    "H.processes-sum-2", "H.processes-sum-4", "H.process-killed", "H.process-does-not-come",
    "H.process-stays-away",
)  # fmt: skip


@pytest.mark.slow
def test_cases_in_one_process_and_in_several(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    install(tmp_path, "joins")
    request = Request("joins:0", Choice(groups=("H",)))
    found = [result for group in conform(request) for result in group.results]
    assert {r.id: r.detail for r in found if r.outcome in RED} == {}
    passed = {r.id for r in found if r.outcome is Outcome.PASS}
    assert passed >= {*BETWEEN}
    assert len(passed) > 100
