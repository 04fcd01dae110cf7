"""What a run leaves behind when it is ended, and the suite under pytest."""

import os
import signal
import subprocess
import sys
import time

import pytest

from hal_conformance.catalog import catalog
from hal_conformance.conform import Request, conform
from hal_conformance.judge import judge
from hal_conformance.plan import Choice, chosen
from hal_conformance.results import RED, by_seed
from hal_conformance.rig import Setting
from tests.conformance.plugins import GOOD
from tests.draw import sample

STOPS = """
import os, pathlib, time
path = pathlib.Path(os.environ["PID_FILE"])
path.with_suffix(".new").write_text(str(os.getpid()))
path.with_suffix(".new").rename(path)
time.sleep(600)
"""
CONFORM = (sys.executable, "-c", "from hal_tools.cli import main; main()", "conform")


def environment(**more):
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **more}


def until(holds, timeout_s=60):
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def lives(pid):
    """Whether the process runs; one that nobody has reaped yet does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter: it ended while it was read
        return False


@pytest.mark.parametrize("how", sample("ends", (signal.SIGINT, signal.SIGTERM, signal.SIGKILL), 1))
def test_a_run_that_is_ended_ends_its_children(site, tmp_path, how):
    site.install(f"stops{how:d}", STOPS)
    pid_file = tmp_path / "pid"
    command = (*CONFORM, f"stops{how:d}:0", "--case", "A.imports")
    (room := tmp_path / "room").mkdir()
    run = subprocess.Popen(command, env=environment(PID_FILE=str(pid_file), TMPDIR=str(room)))
    until(pid_file.exists)
    run.send_signal(how)
    assert run.wait(timeout=60) != 0
    until(lambda: not lives(int(pid_file.read_text())))
    assert how == signal.SIGKILL or not list(room.iterdir())


def pytest_on(*arguments):
    command = (sys.executable, "-m", "pytest", "-q", "--pyargs", "hal_conformance")
    return subprocess.run(
        (*command, "-p", "no:cacheprovider", *arguments),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_under_pytest_each_case_is_an_item(site):
    site.install("fine", GOOD)
    done = pytest_on("--hal-device", "fine:0", "--hal-level", "L0", "-k", "A.lists or A.opens")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_under_pytest_a_run_without_a_device_is_an_error():
    done = pytest_on()
    assert done.returncode not in (0, 5)
    assert "add --hal-device" in done.stdout


def test_the_pytest_plugin_brings_in_nothing():
    code = "import sys, hal_conformance.pytest_plugin as p; "
    code += "sys.exit('numpy' in sys.modules or 'hal_conformance.catalog' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_each_seed_has_its_results(site):
    site.install("seeded", GOOD)
    choice = Choice(texts=("A.opens", "C.alloc-at-the-limit"))
    found = conform(Request("seeded:0", choice, seeds=(3, 4), seeded=True))
    seeds = by_seed(result for group in found for result in group.results)
    assert {s: [r.id for r in rs] for s, rs in seeds.items()} == {
        3: ["A.opens", "C.alloc-at-the-limit"],
        4: ["C.alloc-at-the-limit"],
    }


def test_the_cpu_describes_itself_as_the_contract_says(tmp_path):
    setting = Setting("cpu:0", ("cpu:0",), cache_dir=str(tmp_path))
    results = [judge(case, setting) for case in chosen(Choice(groups=("B",), timed=False))]
    assert [(r.id, r.detail) for r in results if r.outcome in RED] == []
    assert len(results) > 40


def test_ids_are_words_that_a_command_line_takes():
    for case in catalog():
        assert not set(case.id) & set(" '\"$*?[](){};&|<>\\"), case.id
