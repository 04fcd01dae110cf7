"""Two small devices that the suite's author did not tune for: how far they get with how little.

`trial0` is written in at most 120 lines and reaches L0; `trial1` in at most 250, reaches L1 and
trains. Lines that are blank or import, and a file's first docstring, do not count. The cases of a
level are a sample with a seed of its own in each run; $HAL_TRIAL_CASES=all takes all.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.draw import VENDOR, stream

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SAMPLE = 30
pytestmark = pytest.mark.slow


def drawn(way):
    """A mark for what runs by turns."""
    waits = way not in VENDOR and "HAL_TRIAL_CASES" not in os.environ
    return pytest.mark.skipif(waits, reason="another run does this")


SMALL = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests" / "journeys")!r})
import tiny
tiny.train_gpt.BATCH, tiny.train_gpt.RATE = 8, 0.1
sys.exit(tiny.train_gpt.main())
"""
"""The training script with a model and a rate for few steps."""


def run(*words, cwd):
    path = os.pathsep.join([str(HERE), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "HOME": str(cwd), "HAL_CACHE_DIR": str(cwd)}
    return subprocess.run(
        [sys.executable, *words],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def code_lines(text):
    """How many lines of a file are neither blank nor imports nor its docstring."""
    first, *rest = ast.parse(text).body
    skipped = [first, *(node for node in rest if isinstance(node, ast.Import | ast.ImportFrom))]
    gone = {line for node in skipped for line in range(node.lineno, node.end_lineno + 1)}
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and number not in gone for number, line in lines)


@pytest.mark.parametrize(("name", "most"), [("trial0", 120), ("trial1", 250)])
def test_it_is_small(name, most):
    files = (HERE / f"hal_plugin_{name}").glob("*.py")
    assert sum(code_lines(file.read_text()) for file in files) <= most


@drawn("levels")
@pytest.mark.parametrize(("name", "level"), [("trial0", "L0"), ("trial1", "L1")])
def test_it_reaches_its_level(tmp_path, name, level):
    report = tmp_path / "report.json"
    chosen = ["--level", level, "--no-timed", "--json", str(report)]
    count = os.environ.get("HAL_TRIAL_CASES", str(SAMPLE))
    if count != "all":
        chosen += ["--sample", count, "--seed", str(stream(name).randrange(1 << 30))]
    command = "from hal_tools.cli import main; main()"
    done = run("-c", command, "conform", f"{name}:0", *chosen, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    table = json.loads(report.read_text())
    red = [case for case in table["cases"] if case["outcome"] not in ("pass", "unsupported")]
    assert red == []
    assert table["summary"]["pass"] > (400 if count == "all" else SAMPLE // 3)


@drawn("training")
def test_it_trains(tmp_path):
    """The first loss is near that of guessing, ln 256, and the third one is lower."""
    (tmp_path / "script.py").write_text(SMALL)
    log = tmp_path / "log.json"
    text = tmp_path / "text"
    text.mkdir()
    for name in ("one", "two"):
        (text / name).write_text("what is repeated is learnt at once; " * 300)
    options = ["--device", "trial1:0", "--steps", "3", "--json", str(log), "--text", str(text)]
    done = run("script.py", *options, "--out", str(tmp_path / "out"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    losses = [
        line["loss"] for line in map(json.loads, log.read_text().splitlines()) if "loss" in line
    ]
    assert len(losses) == 3
    assert 5.0 < losses[0] < 6.2
    assert losses[2] < losses[0]
