"""Plugins that crash, hang or leave: the survey has a cause for each and spares the others."""

import os
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager

import pytest

import hal
from hal.core.discovery.manifest import discover

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
    """A deadline long enough for a plugin that works."""
    monkeypatch.setenv("HAL_SURVEY_S", "2")


@contextmanager
def crowded(others):
    """The processes that are started meanwhile have one processor, together with so many others
    that always want it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    spins = [sys.executable, "-S", "-c", "while True: pass"]
    spinning = [subprocess.Popen(spins) for _ in range(others)]
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        for process in spinning:
            process.kill()
            process.wait(timeout=60)


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
    assert found["asleep"].cause == "did not finish importing in 2 s"
    assert found["stuck"].cause == "did not finish enumerating in 2 s"
    assert found["good"].status == "ok"


def test_a_plugin_that_waits_for_a_processor_does_not_hang(site, short):
    works = "import time; end = time.process_time() + 0.7\nwhile time.process_time() < end: pass\n"
    run = f"subprocess.run([sys.executable, '-c', {works!r}], timeout=60)"
    waits = f"import subprocess, sys; {run}\n"
    site.install("works", works + textwrap.dedent(good()))
    site.install("waits", waits + textwrap.dedent(good()))
    with crowded(4):
        found = rows()
    assert [found[name].status for name in ("works", "waits")] == ["ok", "ok"], found


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


def test_a_look_with_opening_says_why_each_device_is_refused(site):
    site.install("driverless", good())
    site.install("crashing", good(open=SEGFAULT))
    looks = hal.Registry(blocked=INSTALLED).looks(opens=True)
    [driverless], [crashing] = looks["driverless"].refused, looks["crashing"].refused
    assert (driverless.name, driverless.stage) == ("driverless:0", "open")
    assert "OSError: no driver" in driverless.cause
    assert "killed by SIGSEGV at open" in crashing.cause
    assert [summary.index for summary in looks["crashing"].devices] == [0]


SEVERAL = """
    import ctypes, os, time
    from hal_plugin_bytes.device import BytesDevice
    from hal.core.description import DeviceSummary
    from hal.core.spec import hookimpl

    class Device(BytesDevice):
        def __init__(self, index):
            super().__init__(index, ())
            self.name = f"several:{index}"
            facts = {key: getattr(self.info, key) for key in self.info.__slots__}
            self.info = type(self.info)(**{**facts, "name": self.name, "plugin": "several"})

    @hookimpl
    def enumerate_devices():
        return [DeviceSummary(index, "one of six") for index in range(6)]

    @hookimpl
    def open_device(index, options):
        if index == 1:
            print("chip 1 is on fire", flush=True)
            ctypes.string_at(0)
        if index == 2:
            time.sleep(60)
        if index == 3:
            raise PermissionError(13, "Permission denied", "/dev/several3")
        return None if index == 4 else Device(index)
"""


def test_a_device_that_cannot_be_opened_is_a_row_and_the_others_are_opened(site, short):
    site.install("several", SEVERAL)
    found = hal.Registry(blocked=INSTALLED).devices(opens=True)
    rows = {row.name: row for row in found if row.plugin == "several"}
    assert [row.status for row in rows.values()] == ["ok", *["broken"] * 4, "ok"]
    causes = [row.cause for row in rows.values()]
    assert causes[1] == "killed by SIGSEGV at open; it printed last: chip 1 is on fire"
    assert causes[2] == "did not finish opening in 2 s"
    assert "Permission denied" in causes[3]
    assert "open_device(4) returned None" in causes[4]
    for row in hal.Registry(blocked=INSTALLED).devices():
        assert row.status == "ok" or row.plugin != "several"


def test_processes_that_write_notes_at_once_lose_none():
    code = """
        import os, select
        from hal.core.discovery.survey_process import file
        notes, writers = file("notes"), []
        for number in range(4):
            writers.append(os.fork())
            if not writers[-1]:
                for _ in range(5000):
                    os.write(notes, b"%d\\n" % number)
                os._exit(0)
        for writer in writers:
            assert select.select([os.pidfd_open(writer)], [], [], 40)[0]
        print(len(os.pread(notes, os.fstat(notes).st_size, 0).split()))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "20000"


@pytest.mark.parametrize(
    ("code", "started"),
    [
        ("import threading; threading.Timer(60, print).start()", "a thread"),
        ("import os, time; os.fork() or time.sleep(60)", "a process"),
        ("import numpy", None),
    ],
)  # fmt: skip
def test_what_an_import_starts_is_named(site, code, started):
    site.install("busy", f"{code}\n" + textwrap.dedent(good()))
    look = hal.Registry(blocked=INSTALLED).looks()["busy"]
    assert look.cause == ""
    assert look.started == ((started,) if started else ())
