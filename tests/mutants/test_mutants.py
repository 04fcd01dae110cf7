"""Each mutant is red in the case that is recorded for it, and the reference device is green there.

A case that hung, crashed or took seconds when the table was made is not repeated here.
"""

import os
import sys

import pytest

from hal_conformance import musts
from hal_conformance.catalog import catalog
from hal_conformance.crowd import crowd
from hal_conformance.judge import Outcome, judge
from tests.draw import sample
from tests.mutants.run import PATIENCE_S, install, run
from tests.mutants.table import KILLED, PAGE, UNBROKEN, page, read
from tests.mutants.zoo import let_loose, setting, zoo

CASES = {case.id: case for case in catalog()}
FIRST = {name: red[0] for name, red in read(KILLED).items() if red}
REPEATED = {
    name: red["case"]
    for name, red in FIRST.items()
    if red["outcome"] == "fail" and not red.get("slow")
}
DRAWN = sample("mutants", REPEATED, 60)
"""Run again in each run; `python -m tests.mutants.table` runs all."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    path = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path))
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        yield path


def test_every_wrong_device_is_found_and_the_odd_one_passes():
    assert {name for name, mutant in zoo().items() if mutant.passes} == zoo().keys() - FIRST.keys()


def test_every_sentence_of_the_contract_has_a_device_that_breaks_it():
    assert musts.ids() - {mutant.must for mutant in zoo().values()} == set(UNBROKEN)


def test_every_wrong_device_is_found_by_a_case_of_its_sentence():
    """One that is found by others alone points to a gap."""
    others = [
        name
        for name, red in read(KILLED).items()
        if red and not any(zoo()[name].must in CASES[one["case"]].musts for one in red)
    ]
    assert others == []


def test_every_record_is_of_a_mutant_and_a_case():
    assert set(FIRST) <= set(zoo())
    assert {red["case"] for red in FIRST.values()} <= set(CASES)


def test_the_page_is_not_stale():
    assert PAGE.read_text() == page(read(KILLED)), "run: python -m tests.mutants.table"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DRAWN)
def test_a_mutant_is_red(name, site, tmp_path):
    install(zoo()[name], site)
    result = run(zoo()[name], CASES[REPEATED[name]], str(tmp_path))
    assert result.outcome is Outcome.FAIL


@pytest.mark.filterwarnings("ignore")
def test_a_call_that_fails_at_its_deadline_has_heard_of_no_mismatch(tmp_path, monkeypatch):
    """However long the case waits for it, as on a busy machine."""
    monkeypatch.setattr(crowd, "__defaults__", (PATIENCE_S / 2,))
    result = run(zoo()["mismatch-fails-one"], CASES["H.mismatch-count"], str(tmp_path))
    assert result.outcome is Outcome.FAIL


@pytest.mark.parametrize("case", sorted({REPEATED[name] for name in DRAWN}))
def test_the_reference_device_is_green_where_a_mutant_is_red(case, tmp_path):
    if CASES[case].timed:
        pytest.skip("time decides it")
    with let_loose(None):
        result = judge(CASES[case], setting(None, str(tmp_path)))
    assert result.outcome in (Outcome.PASS, Outcome.UNSUPPORTED), result.detail
