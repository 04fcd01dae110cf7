"""A process that grows a few times does not leak; one that grows with every program does."""

import pytest

from hal_conformance.cases import programs_alive
from hal_conformance.catalog import catalog
from hal_conformance.judge import Outcome, judge
from hal_conformance.rig import Setting

MIB = 1 << 20


class Grows:
    """A process that has grown by these bytes when it is asked, one after the other."""

    def __init__(self, *nbytes):
        self.left = iter(nbytes)

    def grown(self):
        return next(self.left)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nbytes", "outcome"),
    [((5 * MIB, 5 * MIB, 0), Outcome.PASS), ((5 * MIB,) * 4, Outcome.FAIL)],
)
def test_programs_leak_where_every_round_grows(nbytes, outcome, monkeypatch, tmp_path):
    process = Grows(*nbytes)
    monkeypatch.setattr(programs_alive, "used", lambda: process)
    monkeypatch.setattr(programs_alive, "DISTINCT", 10)
    (case,) = (c for c in catalog() if c.id == "D.load-distinct-and-free")
    result = judge(case, Setting("reference:0", ("reference:0",), {}, str(tmp_path)))
    assert result.outcome is outcome, result.detail
