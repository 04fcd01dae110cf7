"""A run on the command line, its certificate and what a change of the certificate does."""

import json
import re

import pytest
from click.testing import CliRunner

from hal.core.description import Feature
from hal_conformance.catalog import catalog
from hal_conformance.certificate import signed
from hal_conformance.page import page
from hal_conformance.verify import BadCertificate, read
from hal_tools.cli import main
from tests.conformance.plugins import GOOD

EXPECTS = """
[[expected-failure]]
case = "C.alloc-at-the-limit"
reason = "it does not fail"
expires = 2999-01-01
"""
UNDECLARED = next(case.id for case in catalog() if Feature.COLLECTIVES in case.needs)
CASES = ("--case", "A.opens", "--case", "C.alloc-at-the-limit", "--case", UNDECLARED)


@pytest.fixture(scope="module")
def ran(site, tmp_path_factory):
    """What the command said, and the files that it wrote."""
    site.install("fine", GOOD)
    folder = tmp_path_factory.mktemp("ran")
    files = ("--json", str(folder / "c.json"), "--html", str(folder / "c.html"))
    done = CliRunner().invoke(main, ["conform", "fine:0", *CASES, "--caps", *files])
    return done, folder


@pytest.fixture
def table(ran):
    return json.loads((ran[1] / "c.json").read_text())


def test_a_green_run_exits_with_0_and_says_the_level(ran):
    done, _ = ran
    assert done.exit_code == 0, done.output
    assert "level L0 reached" in done.output.splitlines()[-1] or "level L0" in done.output
    assert re.search(r"^C  memory +1 pass", done.output, re.MULTILINE)
    assert re.search(r"^collectives +not declared", done.output, re.MULTILINE)


def test_the_certificate_says_what_was_run_on_what(table):
    rows = {case["id"]: case for case in table["cases"]}
    assert rows["A.opens"]["outcome"] == rows["C.alloc-at-the-limit"]["outcome"] == "pass"
    assert rows[UNDECLARED]["outcome"] == "unsupported"
    assert set(rows["A.opens"]) == {"id", "level", "outcome", "seconds", "detail"}
    assert table["summary"]["pass"] == 2
    assert table["summary"]["unsupported"] == len(rows) - 2
    assert table["level"] == "L0"
    assert table["complete"] is False
    assert table["device"]["name"] == "fine:0"
    assert table["plugin"]["distribution"] == "hal-plugin-fine"
    assert table["plugin"]["version"] == "1.5"
    assert table["capabilities"]["map"] is True
    assert table["capabilities"]["collectives"] is False


def test_the_page_stands_alone(ran):
    text = (ran[1] / "c.html").read_text()
    assert "fine:0" in text
    assert "C.alloc-at-the-limit" in text
    assert not re.search(r"<script|<link|<img|https?://|url\(", text)


def test_the_page_draws_declared_against_measured(table):
    figures = {"launch_s": (1e-6, 1.2e-6), "device_to_host": (1e9, None), "overlap": (1.0, 9.0)}
    table["performance"] = [
        {"key": key, "declared": declared, "measured": measured}
        for key, (declared, measured) in figures.items()
    ]
    drawn = page(table)
    assert drawn.count("<circle") == 2
    assert "not measured" in drawn


def test_a_certificate_that_was_not_touched_is_valid(ran):
    done = CliRunner().invoke(main, ["verify-certificate", str(ran[1] / "c.json")])
    assert done.exit_code == 0
    assert "is valid: fine:0" in done.output


def _pass_all(table):
    table["cases"][-1]["outcome"] = "pass"


def _other_level(table):
    table["level"] = "L4"


def _other_suite(table):
    table["suite"]["hash"] = "0" * 64


def _other_case(table):
    table["cases"][0]["id"] = "A.invented"


def _more_features(table):
    table["device"]["features"].append("collectives")


def _no_device(table):
    del table["device"]["limits"]


def _no_outcome(table):
    table["cases"][0]["outcome"] = "fine"


def _no_summary(table):
    del table["summary"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_pass_all, "'summary' is"),
        (_other_level, "'level' is \"L4\""),
        (_other_suite, "another suite"),
        (_other_case, "no case A.invented"),
        (_more_features, "'capabilities' does not follow"),
        (_no_device, "not a device description"),
        (_no_outcome, "a case is not"),
        (_no_summary, "it lacks 'summary'"),
    ],
)
def test_a_change_is_found_even_under_a_new_hash(table, tmp_path, change, words):
    change(table)
    path = tmp_path / "c.json"
    for text in (json.dumps(table), json.dumps(signed(table))):
        path.write_text(text)
        with pytest.raises(BadCertificate, match=re.escape(words)):
            read(str(path))


def test_a_changed_detail_breaks_the_hash(table, tmp_path):
    table["cases"][0]["detail"] = "all is well"
    (tmp_path / "c.json").write_text(json.dumps(table))
    with pytest.raises(BadCertificate, match="hash does not fit"):
        read(str(tmp_path / "c.json"))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"text"', "{}", "\x00"])
def test_a_file_that_is_no_certificate_is_refused(tmp_path, text):
    path = tmp_path / "c.json"
    path.write_text(text)
    done = CliRunner().invoke(main, ["verify-certificate", str(path)])
    assert done.exit_code == 1
    assert str(path) in done.stderr
    assert "Traceback" not in done.output


def test_an_unexpected_pass_makes_the_run_red(site):
    site.install("modest", GOOD, EXPECTS)
    done = CliRunner().invoke(main, ["conform", "modest:0", "--case", "C.alloc-at-the-limit"])
    assert done.exit_code == 1
    assert "XPASS C.alloc-at-the-limit" in done.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nochip:0",), "no plugin 'nochip'"),
        (("fine:9",), "there is no device 'fine:9'"),
        (("fine",), "is not a device name"),
        (("fine:0", "--level", "L9"), "there is no level 'L9'"),
        (("fine:0", "--group", "Z"), "there is no group Z"),
        (("fine:0", "--case", "no-such-case"), "no case is chosen"),
        (("fine:0", "--seeds", "5"), "seeds are FIRST:END"),
        (("fine:0", "--set", "seed"), "a setting is KEY=VALUE"),
        (("fine:0", "--json", "/nowhere/c.json"), "there is no folder"),
    ],
)
def test_a_wrong_call_is_an_error_with_the_next_step(ran, arguments, words):
    done = CliRunner().invoke(main, ["conform", *arguments])
    assert done.exit_code == 1
    assert words in done.stderr
    assert "what to do:" in done.stderr
