"""The page in a real browser, which is driven by the WebDriver protocol (W3C) alone."""

import json
import select
import shutil
import subprocess
import threading
import time
import urllib.request

import pytest

from stack.cluster.daemon import Daemon
from stack.cluster.files import ClusterFile, told
from tests.cluster.test_cluster import HOST

WAIT_S = 120.0
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key by which the protocol names an element."""
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
HERE = [{"name": HOST, "chips": [{"kind": "cpu", "devices": 1}]}]


class Browser:
    """A session of a browser. Elements are named by CSS."""

    def __init__(self, port: int, program: str) -> None:
        self._place = f"http://127.0.0.1:{port}/session"
        chrome = {"binary": program, "args": OPTIONS}
        wanted = {"browserName": "chrome", "goog:chromeOptions": chrome}
        made = self._ask("POST", "", capabilities={"alwaysMatch": wanted})
        self._place += f"/{made['sessionId']}"

    def _ask(self, method: str, path: str, **body):
        data = json.dumps(body).encode() if method == "POST" else None
        request = urllib.request.Request(self._place + path, data, method=method)
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return json.load(answer)["value"]

    def go(self, address: str) -> None:
        self._ask("POST", "/url", url=address)

    def _element(self, css: str) -> str:
        found = self._ask("POST", "/element", using="css selector", value=css)
        return f"/element/{found[ELEMENT]}"

    def fill(self, css: str, text: str) -> None:
        element = self._element(css)
        self._ask("POST", f"{element}/clear")
        self._ask("POST", f"{element}/value", text=text)

    def click(self, script: str) -> None:
        """Click on what a script finds, in the moment in which it is there: the page makes its rows
        anew each second."""
        self._ask("POST", "/execute/sync", script=f"{script}.click()", args=[])

    def text(self, css: str) -> str:
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)"
        return "\n".join(self._ask("POST", "/execute/sync", script=script, args=[css]))

    def until(self, css: str, words: str) -> None:
        """Wait until an element says something."""
        end_s = time.monotonic() + WAIT_S
        while words not in self.text(css):
            assert time.monotonic() < end_s, (css, words, self.text("body"))
            time.sleep(0.1)

    def close(self) -> None:
        self._ask("DELETE", "")


@pytest.fixture
def browser():
    driver = shutil.which("chromedriver")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if driver is None or program is None:
        pytest.skip("there is no Chromium with its chromedriver here")
    server = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True)
    try:
        port = None
        while port is None:
            assert select.select([server.stdout], [], [], WAIT_S)[0]
            line = server.stdout.readline()
            assert line, "chromedriver has ended"
            if "successfully on port " in line:
                port = int(line.rpartition(" ")[2].rstrip(".\n"))
        made = Browser(port, program)
        yield made
        made.close()
    finally:
        server.terminate()
        server.communicate(timeout=WAIT_S)


@pytest.fixture
def page(tmp_path):
    """The address of the page of a daemon with one device."""
    daemon = Daemon(tmp_path / "state", told({"hosts": HERE}, ClusterFile, "the test"), 0)
    thread = threading.Thread(target=daemon.run, daemon=True)
    thread.start()
    yield daemon.page
    daemon.end()
    thread.join(WAIT_S)


def submit(browser, script, folder):
    browser.fill("#submit [name=script]", script)
    browser.fill("#submit [name=folder]", str(folder))
    browser.click("document.querySelector('#submit button')")


def of_job(number, button):
    """What finds a button of a job's row."""
    rows = "[...document.querySelectorAll('#jobs tbody tr')]"
    row = f"{rows}.find(row => row.cells[0].innerText == {number})"
    return f"[...{row}.querySelectorAll('button')].find(b => b.innerText == '{button}')"


@pytest.mark.slow
def test_jobs_are_submitted_watched_explained_and_cancelled_on_the_page(browser, page, tmp_path):
    (tmp_path / "long.py").write_text(
        "import time\nprint('it begins', flush=True)\ntime.sleep(600)\n"
    )
    (tmp_path / "short.py").write_text("print('it is short')\n")
    browser.go(page)
    browser.until("#hosts", HOST)
    submit(browser, "none.py", tmp_path)
    browser.until("#error", "there is no script 'none.py'")
    submit(browser, "long.py", tmp_path)
    browser.until("#jobs .running", "running")
    assert browser.text("#error") == ""
    assert browser.text("#hosts .taken") == "1"
    browser.click(of_job(1, "output"))
    browser.until("#log", "it begins")
    submit(browser, "short.py", tmp_path)
    browser.until("#jobs .waiting", "waiting")
    assert "finds room for 0" in browser.text("#jobs")
    browser.click(of_job(1, "cancel"))
    browser.until("#jobs", "stopped: it was cancelled")
    browser.until("#jobs", "done")
    browser.click(of_job(2, "output"))
    browser.until("#log", "it is short")
    assert browser.text("#jobs .ended") == "ended\nended"
