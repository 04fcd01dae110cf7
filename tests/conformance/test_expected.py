"""The file with which a plugin says what it expects of the suite."""

import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.core.errors import PluginError
from hal_conformance.case import Level
from hal_conformance.expected import parse_expected, read_expected
from hal_conformance.judge import Outcome, Result
from hal_conformance.results import green, level_reached, over_seeds, summary

TEXT = """
[environment]
A = "1"
B = "1 of {number}"

[environment.K]
B = "2 of {number}"

[[expected-failure]]
case = "A.opens"
reason = "firmware 2.1"
expires = 2030-01-31

[ratchet]
launch_s = 3e-6
"""
EXPECTED = parse_expected(TEXT)
BEFORE, LAST, AFTER = (datetime.date(2030, 1, 30) + datetime.timedelta(n) for n in range(3))


def result(outcome, id="A.opens", level="L0", seed=0):
    return Result(id, level, outcome, 0.0, "it broke", seed)


def test_the_environment_of_a_group_goes_over_the_common_one():
    assert EXPECTED.environment_of("C", "x:0") == {"A": "1", "B": "1 of 0"}
    assert EXPECTED.environment_of("K", "x:3") == {"A": "1", "B": "2 of 3"}
    assert EXPECTED.floors == {"launch_s": 3e-6}


@pytest.mark.parametrize("outcome", [Outcome.FAIL, Outcome.CRASH, Outcome.HANG])
def test_a_failure_is_expected_until_its_last_day(outcome):
    for day in (BEFORE, LAST):
        judged = EXPECTED.judged(result(outcome), day)
        assert judged.outcome is Outcome.XFAIL
        assert "firmware 2.1" in judged.detail
        assert "it broke" in judged.detail
    assert EXPECTED.judged(result(outcome), AFTER).outcome is outcome
    assert "is over" in EXPECTED.judged(result(outcome), AFTER).detail


def test_a_pass_that_was_not_expected_is_red():
    judged = EXPECTED.judged(result(Outcome.PASS), BEFORE)
    assert judged.outcome is Outcome.XPASS
    assert not green([judged])


def test_other_cases_are_as_they_are():
    other = result(Outcome.FAIL, "C.alloc-at-the-limit")
    assert EXPECTED.judged(other, BEFORE) is other


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[[", "not valid TOML"),
        ("[surprise]", "'surprise' is not one of the tables"),
        ("environment = 3", "'environment' is not one of the tables"),
        ("[environment]\nA = 1", "strings"),
        ("[environment.Z]\nA = '1'", "no groups"),
        ("[[expected-failure]]\ncase = 'A.opens'", "case, reason and expires"),
        (TEXT.replace("A.opens", "A.nothing"), "'A.nothing' is no case of this suite"),
        (TEXT.replace("firmware 2.1", " "), "needs a reason"),
        (TEXT.replace("2030-01-31", "'soon'"), "not 'soon'"),
        (TEXT.replace("launch_s", "speed"), "names ['speed']"),
        (TEXT.replace("3e-6", "-1"), "not -1"),
        (TEXT.replace("3e-6", "true"), "not True"),
    ],
)
def test_a_bad_file_is_refused_with_what_is_wrong(tmp_path, text, words):
    path = tmp_path / "hal-conformance.toml"
    path.write_text(text)
    with pytest.raises(PluginError) as refused:
        read_expected(str(tmp_path))
    assert words in str(refused.value)
    assert str(path) in str(refused.value)


def test_no_file_expects_nothing(tmp_path):
    assert read_expected(str(tmp_path)).environment_of("A", "x:0") == {}


OUTCOMES = st.lists(st.tuples(st.sampled_from(Level), st.sampled_from(Outcome)), max_size=8)
RED = {"fail", "xpass", "crash", "hang"}


@given(OUTCOMES)
@settings(max_examples=300, deadline=None)
def test_a_level_is_reached_when_it_passes_something_and_nothing_up_to_it_is_red(rows):
    reached = level_reached((str(level), outcome.value) for level, outcome in rows)
    fits = [
        level
        for level in Level
        if any(mine is level and o is Outcome.PASS for mine, o in rows)
        and not any(mine <= level and o.value in RED for mine, o in rows)
    ]
    assert reached == max(fits, default=None)


def test_the_worst_seed_stands_for_a_case():
    rows = [result(Outcome.PASS, seed=1), result(Outcome.FAIL, seed=2), result(Outcome.PASS, "A.x")]
    worst, other = over_seeds(rows)
    assert (worst.outcome, other.outcome) == (Outcome.FAIL, Outcome.PASS)
    assert worst.detail == "with seed 2: it broke"
    assert summary(rows)["pass"] == 2
