"""The suite's cases of groups on devices that join others of other processes: those in several
processes, and of the others, which every hosted device passes, some."""

import os
import sys

import pytest

from hal_conformance.conform import Request, conform
from hal_conformance.judge import Outcome
from hal_conformance.plan import Choice
from hal_conformance.results import RED
from tests.draw import stream
from tests.hosted.joins import install

BETWEEN = (
    "H.processes-sum-2", "H.processes-sum-4", "H.process-killed", "H.process-does-not-come",
    "H.process-stays-away",
)  # fmt: skip


OTHERS = 16


@pytest.mark.slow
@pytest.mark.turns
def test_cases_in_one_process_and_in_several(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    install(tmp_path, "joins")
    few = Choice(groups=("H",), sample=OTHERS, timed=False)
    for choice in (Choice(groups=("H",)).only(frozenset(BETWEEN)), few):
        seed = stream("cases of groups").randrange(1 << 30)
        request = Request("joins:0", choice, seeds=(seed,))
        found = [result for group in conform(request) for result in group.results]
        assert {r.id: r.detail for r in found if r.outcome in RED} == {}
        passed = {r.id for r in found if r.outcome is Outcome.PASS}
        assert passed >= {*BETWEEN} if choice.ids else len(passed) >= OTHERS // 2
