"""`hal tune`."""

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

import hal
from hal_tools.cli import main
from stack.compiler.tune import candidates
from stack.framework.cell import Context, here
from stack.runtime import opening
from stack.runtime.tuned import Record, TunedCandidate, records_of, write_record
from stack.tune.commands import product
from stack.tune.session import problems_of

SCRIPT = """
import sys
import stack.framework as ht

a = ht.ones((6, 7), device="cpu:0")
b = ht.ones((7, 5), device="cpu:0")
print("the script says", float((a @ b).sum().item()), sys.argv[1:])
sys.exit(int(sys.argv[-1]))
"""


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    context = Context()  # what is pending here belongs to engines that are out of reach
    monkeypatch.setattr(here, "context", context)
    monkeypatch.setattr(here, "unsettled", context.unsettled)
    monkeypatch.setattr(here, "generators", {})
    monkeypatch.setattr(here, "recordings", {})
    monkeypatch.setattr(opening, "_engines", {})
    monkeypatch.setenv("HAL_CACHE_DIR", str(tmp_path / "cache"))
    yield
    opening.close_all()


def run(*args):
    return CliRunner(env={"COLUMNS": "250"}).invoke(main, ["tune", *args])


def keep(text, tmp_path):
    """A record for a product on cpu:0: the third candidate is chosen, the second crashed."""
    with hal.open("cpu:0") as device:
        info = device.info
    (tunable,) = problems_of([product(text, "f32")], info)
    first, second, third = (c.schedule for c in candidates(tunable.problem, info)[:3])
    results = (
        TunedCandidate(first, 1, 1, 9),
        TunedCandidate(second, 1.25, None, 0, "crash: killed by SIGSEGV"),
        TunedCandidate(third, 1.5, 0.5, 9),
    )
    record = Record(tunable.problem, 3e-3, results, 2)
    write_record(records_of(str(tmp_path / "cache"), info), record)


def test_records_are_shown(tmp_path):
    keep("48x40x56", tmp_path)
    done = run("cpu:0", "--matmul", "48x40x56", "--all")
    assert done.exit_code == 0
    for words in (
        "matmul 48x40x56 f32",
        "3 ms",
        "1.5 ms",
        "2.00",
        "cached",
        "crash: killed by SIGSEGV",
        "chosen",
        "the rules'",
    ):
        assert words in done.stdout
    short = run("cpu:0", "--matmul", "48x40x56").stdout
    assert "crash" not in short
    assert len(short.splitlines()) < 8


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "say what to tune"),
        (("--matmul", "8x8x8", "script.py"), "say what to tune"),
        (("--matmul", "8x8"), "is no product"),
        (("--matmul", "8x8x0"), "positive sizes"),
        (("--matmul", "2x2x8x8x8"), "three or four"),
        (("--matmul", "8x8x8", "--dtype", "f31"), "f31"),
        (("--matmul", "2x2x2", "--budget", "nan"), "--budget is nan; it is a number of seconds"),
        (("--matmul", "2x2x2", "--budget", "-1"), "--budget is -1; it is a number of seconds"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(args, words):
    done = run("cpu:0", *args)
    assert done.exit_code == 2
    assert words in done.output


def test_a_script_that_is_missing_is_an_error():
    done = run("cpu:0", "no_such_script.py")
    assert done.exit_code == 1
    assert "there is no script 'no_such_script.py'" in done.stderr


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("status", ["0", "3"])
def test_the_kernels_of_a_script_are_found_whatever_it_exits_with(tmp_path, status):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    before = sys.argv, sys.path[:]
    done = run("cpu:0", "--budget", "0", "--", str(script), "--steps", status)
    assert (sys.argv, sys.path) == before
    assert f"the script says 210.0 ['--steps', '{status}']" in done.stdout, done.output
    assert "the budget is spent" in done.stdout
    assert ("ended with status 3" in done.stderr) == (status == "3")
    assert done.exit_code == 0


@pytest.mark.slow
@pytest.mark.turns
def test_a_product_is_tuned_in_a_process_of_its_own(tmp_path):
    args = ["tune", "cpu:0", "--matmul", "2x2x8x3", "--budget", "200"]
    env = os.environ | {"HAL_CACHE_DIR": str(tmp_path / "cache"), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", "from hal_tools.cli import main; main()", *args],
        capture_output=True,
        text=True,
        env=env,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "matmul 2x8x3 f32, batch 2" in done.stdout
    assert len(list((tmp_path / "cache" / "tuned").rglob("*.json"))) == 1


def test_products_are_graphs():
    request = product("3x4x5x6", "bf16")
    (out,) = request.outputs
    assert (out.op, out.shape, out.dtype) == ("matmul", (3, 4, 5), hal.DType.BF16)
    assert [n.shape for n in request.inputs] == [(3, 4, 6), (3, 6, 5)]
