"""Whatever a plugin does to its process, a run of the suite ends, with those rows red."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from hal_conformance.conform import Request, conform
from hal_conformance.judge import Outcome
from hal_conformance.plan import Choice
from hal_conformance.results import green
from hal_conformance.runner import NOT_RUN
from tests.conformance.plugins import CRASHES, DIES, FORKS, HANGS, LEAKS, LIES, TALKS

RUNS = {
    "forks": (FORKS, "A.import-starts-nothing"),
    "crashes": (CRASHES, "C.alloc-at-the-limit"),
    "hangs": (HANGS, "C.alloc-at-the-limit"),
    "leaks": (LEAKS, "A.open-and-close-50"),
    "dies": (DIES, "C.alloc-"),
    "lies": (LIES, "C.alloc-at-the-limit"),
}


def run(name, *texts):
    """Every result of a run by its case's id."""
    groups = conform(Request(f"{name}:0", Choice(texts=("A.imports", *texts))))
    return {result.id: result for group in groups for result in group.results}


@pytest.fixture(scope="module")
def runs(site):
    """The runs, all at once: most of their time is waiting."""
    for name, (code, _) in RUNS.items():
        site.install(name, code)
    with ThreadPoolExecutor(len(RUNS)) as pool:
        done = {name: pool.submit(run, name, text) for name, (_, text) in RUNS.items()}
        return {name: future.result(timeout=120) for name, future in done.items()}


def test_a_plugin_that_crashes_is_a_row_with_the_signal_and_the_stack(runs):
    results = runs["crashes"]
    assert results["A.imports"].outcome is Outcome.CRASH
    assert "died of SIGSEGV" in results["A.imports"].detail
    assert "plugin.py" in results["A.imports"].detail


def test_a_plugin_that_hangs_is_a_row_that_says_where(runs):
    results = runs["hangs"]
    assert results["A.imports"].outcome is Outcome.HANG
    assert "it took more than 5 s" in results["A.imports"].detail
    assert "plugin.py" in results["A.imports"].detail


@pytest.mark.parametrize("name", ["crashes", "hangs"])
def test_after_a_bad_first_look_every_other_row_is_red_and_says_why(runs, name):
    others = [r for r in runs[name].values() if r.id.startswith("C.")]
    assert {r.outcome for r in others} == {Outcome.FAIL}
    assert all(r.detail.startswith(NOT_RUN) for r in others)


def test_a_descriptor_that_leaks_at_each_open_is_a_red_row(runs):
    assert runs["leaks"]["A.imports"].outcome is Outcome.PASS
    assert runs["leaks"]["A.open-and-close-50"].outcome is Outcome.FAIL


def test_a_lie_about_the_memory_is_a_red_row(runs):
    assert runs["lies"]["A.imports"].outcome is Outcome.PASS
    assert not green(runs["lies"].values())
    assert runs["lies"]["C.alloc-at-the-limit"].outcome is Outcome.FAIL


def test_a_child_that_an_import_leaves_behind_is_named_at_once(runs):
    result = runs["forks"]["A.import-starts-nothing"]
    assert result.outcome is Outcome.FAIL, result
    assert "(threads, children, changed variables)" in result.detail


def test_info_is_json_whatever_a_plugin_prints(site):
    site.install("talks", TALKS)
    command = [
        sys.executable,
        "-c",
        "from hal_tools.cli import main; main()",
        "info",
        "talks:0",
        "--json",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, timeout=60, check=True, env=environment)
    assert json.loads(done.stdout)["name"] == "talks:0"
    assert b"a driver greets you" in done.stderr
    assert b"and once more" in done.stderr


def test_after_a_crash_a_new_process_goes_on(runs):
    results = [r for r in runs["dies"].values() if not r.detail.startswith(NOT_RUN)]
    died = [r.id for r in results if r.outcome is Outcome.CRASH]
    assert "C.alloc-at-the-limit" in died
    assert "SIGABRT" in runs["dies"]["C.alloc-at-the-limit"].detail
    assert sum(r.outcome is Outcome.PASS for r in results) > len(died)
