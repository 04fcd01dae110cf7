"""Ranks die in a training, and its numbers are those of one process that nobody disturbed."""

import json
import os
import subprocess
import sys
import time
from itertools import product

import pytest

from stack.fault.parts import share, shares
from stack.launch.membership import Member
from tests.draw import stream
from tests.fault import train
from tests.launch.running import LONG_S, Folder

STEPS = 80


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The loss of each step, and the last parameters, by one process."""
    out = tmp_path_factory.mktemp("alone")
    command = (sys.executable, train.__file__, str(out), str(STEPS))
    subprocess.run(command, check=True, timeout=LONG_S, stdin=subprocess.DEVNULL)
    return losses(out / "alone.txt"), (out / "final.bin").read_bytes()


def losses(file):
    rows = [line.split() for line in file.read_text().splitlines()]
    return {int(step): loss for step, _, _, loss, _ in rows}


@pytest.mark.slow
@pytest.mark.turns
def test_ranks_that_die_leave_no_trace_in_the_numbers(tmp_path, monkeypatch, undisturbed):
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    (tmp_path / "out").mkdir()
    # A spare takes the place of the first one, which is killed; the others go on without the
    # second one, which is stopped.
    options = ("-n", "3", "--least", "2", "--spares", "1", "--restarts", "0", "--devices", "cpu:0")
    plan = "kill at step nth 12 rank 1; stop at step nth 16 rank 0"
    options += ("--events", "events", "--faults", plan)
    done = Folder(tmp_path).run(*options, train.__file__, tmp_path / "out", STEPS)
    assert done.code == 0, done.err
    wanted, parameters = undisturbed
    assert (tmp_path / "out/final.bin").read_bytes() == parameters
    check_losses(tmp_path, wanted)
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    epochs = [e["epoch"]["members"] for e in events if e["event"] == "form"]
    assert len(epochs[0]) == 3
    found = [(e["kind"], e["seat"]) for e in events if e["event"] == "found"]
    killed, stopped = (Member.of(e["member"]).seat for e in events if e["event"] == "fault")
    assert ("ended", killed) in found
    assert ("stopped", stopped) in found or ("silent", stopped) in found
    recoveries = [e["s"] for e in events if e["event"] == "entered"]
    assert len(recoveries) >= 3
    check_compiled(tmp_path)


def check_compiled(folder):
    """Nobody compiles anything after its first step, however many ranks there are in the next."""
    sizes = set()
    for file in (folder / "out").glob("*.txt"):
        rows = [line.split() for line in file.read_text().splitlines()]
        assert len({compiled for *_, compiled in rows}) == 1, file
        assert int(rows[0][-1]) > 0
        sizes |= {size for _, size, *_ in rows}
    assert len(sizes) > 1


def check_losses(folder, wanted):
    """Whoever did a step, and however often, its loss is that of the undisturbed run."""
    seen = {}
    for file in (folder / "out").glob("*.txt"):
        for step, loss in losses(file).items():
            assert loss == wanted[step], (file, step)
            seen[step] = loss
    assert seen == wanted


@pytest.mark.slow
@pytest.mark.turns
def test_flipped_bits_are_named_and_leave_no_trace(tmp_path, monkeypatch, undisturbed):
    """One of four ranks; then before anybody compares a rank dies, first the one whose gradients
    were wrong, then one that had only taken them; then one of two. The seed is one of which all
    bits are of weights."""
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    (tmp_path / "out").mkdir()
    options = ("-n", 4, "--least", "1", "--devices", "cpu:0", "--events", "events")
    plan = "seed 562; flip at step nth 5 rank 0; "
    plan += "flip at step nth 18 rank 1; kill at step nth 20 rank 1; "
    plan += "flip at step nth 52 rank 1; kill at step nth 54 rank 0; flip at step nth 66 rank 1"
    done = Folder(tmp_path).run(*options, "--faults", plan, train.__file__, tmp_path / "out", STEPS)
    assert done.code == 0, done.err
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    struck = [(e["kind"], int(e["member"][0])) for e in events if e["event"] == "fault"]
    assert [kind for kind, _ in struck] == ["flip", "flip", "kill", "flip", "kill", "flip"]
    first, *others = [e for e in events if e["event"] == "found" and e["kind"] == "wrong"]
    assert (first["seat"], first["host"], first["device"]) == (0, "this host", "cpu:0")
    assert struck[-1][1] in {e["seat"] for e in others}
    assert (tmp_path / "out/final.bin").read_bytes() == undisturbed[1]


@pytest.mark.slow
@pytest.mark.turns
def test_a_rank_whose_device_is_lost_is_named_and_replaced(tmp_path, monkeypatch, undisturbed):
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    (tmp_path / "out").mkdir()
    options = ("-n", 2, "--least", "1", "--restarts", "1", "--devices", "cpu:0")
    options += ("--instead", "cpu:0", "--events", "events")
    given = (train.__file__, tmp_path / "out", STEPS, "1.0@device")
    done = Folder(tmp_path).run(*options, *given)
    assert done.code == 0, done.err
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    first, *_ = [e for e in events if e["event"] == "found"]
    assert (first["kind"], first["seat"], first["device"]) == ("device lost", 1, "cpu:0")
    (moved,) = (e for e in events if e["event"] == "moved")
    assert (moved["seat"], moved["device"]) == (1, "cpu:0")
    assert (tmp_path / "out/final.bin").read_bytes() == undisturbed[1]


@pytest.mark.slow
@pytest.mark.turns
def test_the_state_outlives_the_only_process_that_has_it(tmp_path, monkeypatch, undisturbed):
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    (tmp_path / "out").mkdir()
    options = ("-n", 1, "--least", "1", "--restarts", "1", "--devices", "cpu:0")
    done = Folder(tmp_path).run(*options, train.__file__, tmp_path / "out", STEPS, "0.0@12")
    assert done.code == 0, done.err
    assert min(losses(tmp_path / "out/0.1.txt")) == 12
    assert (tmp_path / "out/final.bin").read_bytes() == undisturbed[1]


@pytest.mark.slow
@pytest.mark.turns
def test_another_host_has_the_state_of_each_that_is_lost_with_all_ranks(
    tmp_path, monkeypatch, undisturbed
):
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    (tmp_path / "out").mkdir()
    (tmp_path / "hosts").write_text("one\ntwo\nthree\n")
    options = ("-n", 1, "--least", "1", "--spares", "2", "--hosts", "hosts", "--devices", "cpu:0")
    options += ("--shell", "sh -c 'eval \"exec $1\"' {host}", "--address", "127.0.0.1")
    plan = "agent-kill at step nth 30 rank 0; cut at step nth 50 rank 0"
    options += ("--events", "events", "--faults", plan)
    done = Folder(tmp_path).run(*options, train.__file__, tmp_path / "out", STEPS)
    assert done.code == 0, done.err
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    lost = [i for i, e in enumerate(events) if e["event"] == "lost"]
    for at, step in zip(lost, (29, 49), strict=True):
        copied = [e["step"] for e in events[:at] if e["event"] == "copied" and not e["why"]]
        went_on = next(e for e in events[at:] if e["event"] == "entered")
        assert went_on["seat"] != events[at]["host"]
        assert went_on["step"] >= max(copied) >= step
    check_losses(tmp_path, undisturbed[0])
    assert (tmp_path / "out/final.bin").read_bytes() == undisturbed[1]


@pytest.mark.slow
@pytest.mark.turns
def test_a_job_that_ends_before_its_time_goes_on_in_the_next_one(
    tmp_path, monkeypatch, undisturbed
):
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    (tmp_path / "out").mkdir()
    folder, common = Folder(tmp_path), ("--devices", "cpu:0", "--keep", "kept", train.__file__)
    with folder.start("-n", "2", "--least", "2", *common, tmp_path / "out", STEPS) as process:
        wait_for(tmp_path / "out/0.0.txt", 5)
        process.kill()  # the launcher: no rank stays, and the agent keeps the state
    wait_for(tmp_path / "kept/state.bin", 1)
    for file in (tmp_path / "out").iterdir():
        file.unlink()
    done = folder.run("-n", "1", "--least", "1", *common, tmp_path / "out", STEPS)
    assert done.code == 0, done.err
    wanted, parameters = undisturbed
    later = losses(tmp_path / "out/0.0.txt")
    assert min(later) >= 5
    assert later == {step: wanted[step] for step in range(min(later), STEPS)}
    assert (tmp_path / "out/final.bin").read_bytes() == parameters
    assert not (tmp_path / "kept/state.bin").exists()


def wait_for(file, lines):
    until_s = time.monotonic() + LONG_S
    while not file.exists() or file.read_bytes().count(b"\n") < lines:
        assert time.monotonic() < until_s, f"{file} did not get {lines} lines"
        time.sleep(0.01)


def test_the_parts_of_ranks_are_all_parts_in_order():
    for count in range(1, 20):
        for size in range(1, count + 1):
            shares = [share(count, rank, size) for rank in range(size)]
            assert [i for own in shares for i in own] == list(range(count))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_parts_go_by_how_long_ranks_take_for_one():
    assert shares(4, [1, 1, 1, 1]) == [range(i, i + 1) for i in range(4)]
    assert [len(own) for own in shares(16, [1, 1, 5, 1])] == [5, 5, 1, 5]
    rng = stream("shares")
    for _ in range(100):
        part_s = [rng.choice((1, 1, 2, 7)) + rng.random() for _ in range(rng.randint(1, 4))]
        count = rng.randint(len(part_s), 7)
        found = shares(count, part_s)
        assert [i for own in found for i in own] == list(range(count))
        all_ways = product(range(1, count + 1), repeat=len(part_s))
        ways = (way for way in all_ways if sum(way) == count)
        best_s = min(max(n * s for n, s in zip(way, part_s, strict=True)) for way in ways)
        lasts_s = max(len(own) * s for own, s in zip(found, part_s, strict=True))
        assert lasts_s == pytest.approx(best_s)
