"""What a training run leaves behind, and how it is interrupted and resumed."""

import json
import re
import signal
import time
from collections import Counter

import numpy as np
import pytest

from stack.framework.checkpoints import TreeCheckpoints
from tests.journeys.conftest import Commands, read_until, wait_until

pytestmark = pytest.mark.slow
STEPS = 6


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, environment):
    """The folder and the output of a whole run with --json and --trace."""
    commands = Commands(tmp_path_factory.mktemp("finished"), environment)
    ended = commands.train("--steps", STEPS, "--json", "log.json", "--trace", "trace.json")
    assert ended.code == 0, ended.err
    return commands.folder, ended


def test_every_step_is_a_line_of_json_and_the_last_line_is_the_validation(finished):
    *steps, last = lines(finished[0] / "log.json")
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    assert all(line.keys() == {"step", "loss", "tokens_per_s"} for line in steps)
    assert all(0 < line["loss"] < 7 and line["tokens_per_s"] > 0 for line in steps)
    assert last.keys() == {"step", "val_loss"}
    assert 0 < last["val_loss"] < 7


def test_progress_loss_and_a_sample_are_shown(finished):
    folder, ended = finished
    loss = lines(folder / "log.json")[-1]["val_loss"]
    assert f"validation loss {loss:.4f} nats/byte after {STEPS} steps; see out" in ended.out
    assert f"step {STEPS}/{STEPS}" in ended.err
    sample = (folder / "out" / "sample.txt").read_bytes()
    assert len(sample) == 12
    assert len(ended.out.rstrip("\n").rpartition("see out\n")[2]) == len(sample)


def test_the_loss_curve_is_an_image_with_curves_in_it(finished):
    from matplotlib import image  # noqa: PLC0415  not in each process that collects this

    pixels = image.imread(finished[0] / "out" / "loss.png")
    assert pixels.shape == (480, 840, 4)
    colours = np.unique(pixels.reshape(-1, 4), axis=0)
    assert len(colours) > 100
    blue = (pixels[..., 2] > 0.6) & (pixels[..., 0] < 0.3)
    assert blue.any(), "the training curve is drawn in blue"


def test_the_checkpoint_has_the_model_and_its_place_in_the_run(finished):
    with TreeCheckpoints(finished[0] / "out" / "checkpoints") as checkpoints:
        step, state = checkpoints.load()
    assert step == state["step"] == STEPS
    assert state["config"]["width"] == 16
    assert [step for step, _ in state["losses"]["train"]] == list(range(1, STEPS + 1))
    assert state["model"]["token.weight"].shape == (256, 16)
    assert np.isfinite(state["model"]["head.weight"].numpy()).all()


def test_the_trace_has_host_calls_and_the_kernels_that_ran_by_name(finished):
    trace = json.loads((finished[0] / "trace.json").read_text())
    events = trace["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X", "s", "f"}
    assert all(isinstance(e["pid"], int) and isinstance(e["tid"], int) for e in events)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert set(names.values()) == {"host", "cpu:0"}
    slices = [e for e in events if e["ph"] == "X"]
    assert all(e["ts"] > 0 and e["dur"] >= 0 for e in slices)
    host = Counter(e["name"] for e in slices if names[e["pid"]] == "host")
    kernels = Counter(e["name"] for e in slices if names[e["pid"]] == "cpu:0")
    assert host["replay"] >= STEPS
    assert {"load", "bind", "record", "copy", "wait", "close"} <= set(host)
    loaded = [e["args"]["source"] for e in slices if e["name"] == "load"]
    assert loaded
    known = " ".join(map(str, loaded))
    assert all(name == "copy" or name in known for name in kernels), (kernels, known)
    products = sum(count for name, count in kernels.items() if name.startswith("matmul"))
    assert products >= STEPS * 3 * 6, "three products for each of at least six in a step"


def test_a_slice_of_the_device_lies_between_the_first_and_the_last_call(finished):
    events = json.loads((finished[0] / "trace.json").read_text())["traceEvents"]
    host = [e for e in events if e.get("cat") == "host"]
    device = [e for e in events if e.get("cat") == "device"]
    first, last = min(e["ts"] for e in host), max(e["ts"] + e["dur"] for e in host)
    assert all(first <= e["ts"] <= e["ts"] + e["dur"] <= last for e in device)
    arrows = Counter(e["id"] for e in events if e["ph"] in "sf")
    assert set(arrows.values()) == {2}


def interrupted(commands, steps, *arguments, by=signal.SIGINT):
    """Press Ctrl-C (or ask as schedulers do) after some lines of the log of a long run."""
    log = commands.folder / "log.json"
    process = commands.start_training("--steps", 10**6, "--json", log, *arguments)
    wait_until(process, lambda: log.exists() and len(lines(log)) >= steps)
    process.send_signal(by)
    return commands.ended(process)


@pytest.mark.turns
def test_an_interrupted_run_saves_and_goes_on_as_if_nothing_had_happened(commands, tmp_path):
    ended = interrupted(commands, 3)
    assert ended.code == 130
    assert "Traceback" not in ended.err
    log = lines(tmp_path / "log.json")
    assert f"interrupted at step {len(log)}; saved out/checkpoints; go on" in ended.out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["checkpoints", "data"]
    assert interrupted(commands, len(log) + 3, "--resume", by=signal.SIGTERM).code == 130
    resumed = lines(tmp_path / "log.json")
    (tmp_path / "log.json").unlink()
    assert interrupted(commands, len(log) + 3, "--out", "whole").code == 130
    whole = lines(tmp_path / "log.json")
    assert [line["step"] for line in resumed] == list(range(1, len(resumed) + 1))
    both = len(log) + 3
    assert [a["loss"] for a in resumed[:both]] == [b["loss"] for b in whole[:both]]


@pytest.mark.turns
def test_a_killed_run_leaves_the_checkpoint_of_its_last_validation(commands, tmp_path):
    log = tmp_path / "log.json"
    process = commands.start_training("--steps", 10**6, "--json", log)
    committed = (tmp_path / "out" / "checkpoints").glob
    wait_until(process, lambda: log.exists() and [*committed("step-*/manifest.json")])
    process.kill()
    assert commands.ended(process).code == -signal.SIGKILL
    with TreeCheckpoints(tmp_path / "out" / "checkpoints") as checkpoints:
        step = checkpoints.newest()
    assert step % 4 == 0
    assert 4 <= step <= len(lines(log))
    assert commands.train("--resume", "--steps", step + 1).code == 0


@pytest.mark.turns
def test_ctrl_c_during_the_first_compile_ends_without_a_traceback(commands, tmp_path):
    env = {"HAL_CACHE_DIR": str(tmp_path / "empty")}
    process = commands.start_training("--steps", 10**6, env=env)
    read_until(process.stdout, b"parameters on cpu:0")
    time.sleep(0.5)  # into the compilation of the first step
    process.send_signal(signal.SIGINT)
    ended = commands.ended(process)
    assert ended.code == 130
    assert "ending after the step under way" in ended.err
    assert "Traceback" not in ended.err
    # The signal may come just before the step begins.
    assert re.search("interrupted (at step 1; saved out/|before the first step)", ended.out)


@pytest.mark.turns
def test_a_second_ctrl_c_ends_at_once_and_keeps_the_older_checkpoint(commands, tmp_path):
    assert commands.train("--steps", 1).code == 0
    checkpoints = tmp_path / "out" / "checkpoints"
    before = (checkpoints / "step-000000000001" / "manifest.json").read_bytes()
    env = {"HAL_CACHE_DIR": str(tmp_path / "empty")}
    process = commands.start_training("--steps", 10**6, "--resume", env=env)
    read_until(process.stdout, b"parameters on cpu:0")
    process.send_signal(signal.SIGINT)
    read_until(process.stderr, b"ending after")
    process.send_signal(signal.SIGINT)
    ended = commands.ended(process)
    assert ended.code == 130
    assert "Traceback" not in ended.err
    assert "checkpoints written before are whole" in ended.err
    assert (checkpoints / "step-000000000001" / "manifest.json").read_bytes() == before
