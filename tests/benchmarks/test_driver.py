import json

import pytest
from click.testing import CliRunner

from benchmarks import __main__ as driver
from benchmarks import bench_gpt_step, gpt, machine, report
from benchmarks.row import Bar, BenchmarkError, Row
from benchmarks.timer import interleaved
from benchmarks.worker import Step, Worker


def test_the_ratio_is_how_many_times_as_good_as_the_peer():
    assert Row("c", "tokens/s", 300, 200, "p", more_is_better=True).ratio == 1.5
    assert Row("c", "s", 2, 3, "p").ratio == 1.5
    assert Row("c", "s", 2).ratio is None


@pytest.mark.parametrize(
    ("ours", "peer", "bar", "status"),
    [
        (7, 10, Bar(ratio=0.7), "ok"),
        (6.9, 10, Bar(ratio=0.7), "missed"),
        (7, None, Bar(ratio=0.7), "absent"),
        (None, None, Bar(limit=1), "absent"),
        (0, None, Bar(limit=0), "ok"),
        (1.1, None, Bar(limit=1), "missed"),
        (5, None, None, "info"),
        (None, None, None, "absent"),
    ],
)
def test_a_row_is_judged_by_its_bar(ours, peer, bar, status):
    assert Row("c", "u", ours, peer, "p", bar, more_is_better=True).status == status


def test_functions_take_turns():
    calls = []
    times = interleaved([lambda: calls.append("a"), lambda: calls.append("b")], 2, 2)
    assert calls == list("aabbaabb")
    assert len(times) == 2
    assert min(times) > 0


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    return tmp_path


def test_a_run_prints_and_writes_its_rows_and_the_page(folder, monkeypatch):
    rows = [Row("a step", "s", 2.0, 3.0, "peer", Bar(ratio=1.0)), Row("b", "MiB", 1e6, note="why")]
    monkeypatch.setattr(bench_gpt_step, "rows", lambda quick: iter(rows))
    done = CliRunner().invoke(driver.main, ["gpt_step"])
    assert (done.exit_code, done.exception) == (0, None)
    assert "1.50" in done.output
    found = json.loads((folder / "results" / "gpt_step.json").read_text())
    assert found["command"] == "python -m benchmarks gpt_step"
    assert found["machine"]["cores"] == machine.cores()
    assert found["versions"]["numpy"]
    assert found["rows"][0]["ratio"] == 1.5
    page = (folder / "README.md").read_text()
    assert "| a step | 2 | 3 (peer) | s | 1.50 | ratio 1 | ok |" in page
    assert "| b | 1,000,000 |  | MiB |  |  | info |" in page
    assert "* b: why" in page


def test_a_quick_look_is_not_written_down(folder, monkeypatch):
    monkeypatch.setattr(bench_gpt_step, "rows", lambda quick: iter([Row("c", "s", float(quick))]))
    assert CliRunner().invoke(driver.main, ["gpt_step", "--quick"]).exit_code == 0
    assert not (folder / "results").exists()


def test_one_failure_is_shown_and_the_others_are_measured(folder, monkeypatch):
    def broken(quick):
        raise BenchmarkError("the worker ended")

    monkeypatch.setattr("benchmarks.bench_memory.rows", broken)
    monkeypatch.setattr(bench_gpt_step, "rows", lambda quick: iter([Row("c", "s", 1.0)]))
    done = CliRunner().invoke(driver.main, ["memory", "gpt_step"])
    assert done.exit_code == 1
    assert "memory failed: the worker ended" in done.output
    assert [p.name for p in (folder / "results").iterdir()] == ["gpt_step.json"]


def test_an_absent_peer_gives_a_row(monkeypatch):
    monkeypatch.setattr(bench_gpt_step, "versions", lambda: {"torch": "absent"})
    monkeypatch.setattr(bench_gpt_step, "in_turns", lambda *given: [gpt.TOKENS / 1000.0])
    rows = list(bench_gpt_step.against_peers(True))
    made = {(r.ours, r.peer, r.status) for r in rows if f"{gpt.BATCH} of" in r.claim}
    assert made == {(1000.0, None, "absent")}
    assert {r.note for r in rows} == {"torch is not installed"}


def test_a_worker_answers_step_by_step(tmp_path, monkeypatch):
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "counting.py").write_text(
        'import sys\nprint(\'{"seconds": 1, "loss": 5}\', flush=True)\n'
        "for i, _ in enumerate(sys.stdin):\n"
        '    print(f\'{{"seconds": 2, "loss": {i}}}\', flush=True)\n'
    )
    monkeypatch.setattr("benchmarks.worker.ROOT", tmp_path)
    with Worker("counting") as worker:
        assert worker.first == Step(1, 5)
        assert [worker.step(), worker.step()] == [Step(2, 0), Step(2, 1)]
    with pytest.raises(BenchmarkError, match="'missing' ended with code 1"):
        Worker("missing")
