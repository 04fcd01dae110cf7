"""Plugins that crash, hang or leave: the survey has a cause for each and spares the others."""

import subprocess
import sys
import time

import pytest

import hal
from hal.core.errors import InvalidCall
from hal.core.manifest import discover

pytestmark = pytest.mark.slow
INSTALLED = frozenset(found.name for found in discover())

GOOD = """
    from hal.core.description import DeviceSummary
    from hal.core.spec import hookimpl

    @hookimpl
    def enumerate_devices():
        {enumerate}
        return [DeviceSummary(0, "one")]

    @hookimpl
    def open_device(index, options):
        {open}
        raise OSError("no driver")
"""
SEGFAULT = "import ctypes; ctypes.string_at(0)"


def good(enumerate="pass", open="pass"):
    return GOOD.format(enumerate=enumerate, open=open)


def rows():
    return {row.plugin: row for row in hal.Registry(blocked=INSTALLED).devices()}


@pytest.fixture
def short(monkeypatch):
    """A deadline long enough for a plugin that works, on a busy machine too."""
    monkeypatch.setenv("HAL_SURVEY_S", "5")


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (SEGFAULT, "killed by SIGSEGV at import"),
        ("import os; os.abort()", "killed by SIGABRT at import"),
        ("import os; os._exit(7)", "ended its process with status 7 at import"),
        ("import os; print('chip 3 is on fire', flush=True); os._exit(7)", "chip 3 is on fire"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        (good(enumerate=SEGFAULT), "killed by SIGSEGV at enumerate"),
        (good(enumerate="import sys; sys.exit('bye')"), "SystemExit: bye"),
    ],
)
def test_a_plugin_that_ends_its_process_is_a_row_and_the_others_work(site, code, cause):
    site.install("bad", code)
    site.install("good", good())
    found = rows()
    assert found["bad"].status == "broken"
    assert cause in found["bad"].cause
    assert found["good"].status == "ok"


def test_hanging_plugins_are_rows_after_the_deadline_and_the_others_work(site, short):
    site.install("asleep", "import time; time.sleep(60)")
    site.install("stuck", good(enumerate="import time; time.sleep(60)"))
    site.install("good", good())
    found = rows()
    assert found["asleep"].cause == "did not finish importing in 5 s"
    assert found["stuck"].cause == "did not finish enumerating in 5 s"
    assert found["good"].status == "ok"


def test_what_a_plugin_started_ends_with_the_survey(site, tmp_path):
    started = tmp_path / "started"
    code = f"import subprocess; p = subprocess.Popen(['sleep', '60']); open({str(started)!r}, 'w')"
    site.install("parent", f"{code}.write(str(p.pid))\n{SEGFAULT}")
    rows()
    pid, deadline = started.read_text(), time.monotonic() + 10
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not running(pid)


def running(pid):
    command = ["ps", "-o", "stat=", "-p", pid]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.stdout.strip() not in ("", "Z")


def test_listing_imports_no_plugin_here(site):
    site.install("good", good())
    assert rows()["good"].status == "ok"
    hal.Registry(blocked=INSTALLED).plugins()
    assert "hal_plugin_good.plugin" not in sys.modules


def test_the_devices_named_in_an_error_are_found_without_importing_a_crashing_plugin(site):
    site.install("bad", SEGFAULT)
    site.install("good", good())
    with pytest.raises(hal.HalError) as caught:
        hal.Registry(blocked=INSTALLED).open("nochip:0")
    assert "good:0" in str(caught.value)
    assert "broken plugin bad: killed by SIGSEGV at import" in str(caught.value)


def test_a_look_with_opening_says_how_far_each_plugin_came(site):
    site.install("driverless", good())
    site.install("crashing", good(open=SEGFAULT))
    looks = hal.Registry(blocked=INSTALLED).looks(opens=True)
    assert (looks["driverless"].stage, looks["crashing"].stage) == ("open", "open")
    assert "OSError: no driver" in looks["driverless"].cause
    assert "killed by SIGSEGV at open" in looks["crashing"].cause
    assert [summary.index for summary in looks["crashing"].devices] == [0]


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan"])
def test_a_deadline_that_is_no_time_is_refused(site, monkeypatch, value):
    site.install("good", good())
    monkeypatch.setenv("HAL_SURVEY_S", value)
    with pytest.raises(InvalidCall, match="HAL_SURVEY_S"):
        hal.Registry(blocked=INSTALLED).devices()
