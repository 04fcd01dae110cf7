"""Where the time of a job went, told from events whose times are known."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hal.core.errors import InvalidCall
from hal_tools.cli_goodput import goodput
from stack.launch.events import EventLog
from stack.launch.spent import Spent
from tests.draw import stream


def form(at_s, number, *members):
    return {
        "at_s": at_s,
        "event": "form",
        "epoch": {"number": number, "members": [f"{seat}.0" for seat in members]},
    }


def entered(at_s, seat, step, restore_s=0.0):
    own = {"seat": seat, "step": step, "restore_s": restore_s}
    return {"at_s": at_s, "event": "entered", **own}


def step(at_s, seat, number, save_s=0.25):
    return {"at_s": at_s, "event": "step", "seat": seat, "step": number, "save_s": save_s}


def found(at_s, seat, kind="ended"):
    return {"at_s": at_s, "event": "found", "seat": seat, "kind": kind}


def told(*events):
    spent = Spent()
    for event in events:
        spent.add(event)
    return spent.report


KILLED = (
    form(4.0, 1, 0, 1),
    entered(4.5, 0, 0),
    entered(5.0, 1, 0),
    step(6.0, 0, 1),
    step(7.0, 1, 1),  # the first step lasts until all have done it: 2 s, 0.25 s of it a copy
    step(8.0, 1, 2),
    step(9.0, 0, 2),
    step(9.5, 0, 3),  # which the other one has not done
    found(10.0, 2),  # a spare
    found(10.0, 0, "slow"),
    found(11.0, 1, "stopped"),
    form(12.0, 2, 0, 2),
    entered(12.5, 0, 1),
    entered(13.0, 2, 1, restore_s=0.75),
    step(14.0, 0, 2),
    step(14.0, 2, 2),
    step(15.0, 0, 3),
    step(15.0, 2, 3),
    {"at_s": 15.5, "event": "finish"},
)


def test_every_second_is_told():
    report = told(*KILLED)
    assert report.seconds == {
        "step": 1.75 + 1.75 + 0.75,
        "save": 4 * 0.25,
        "detect": 2.0,
        "start": 4.0 + 1.0,
        "agree": 1.0 + 0.25,
        "restore": 0.75,
        "redo": 0.75,
        "end": 0.5,
    }
    assert (report.steps, report.redone, report.recoveries) == (3, 1, 1)
    assert report.goodput == pytest.approx(4.25 / 15.5)
    assert str(report).startswith("3 steps in 15.5 s, 27.4% of it steps that count; save 1.00 s")


def test_no_moment_is_told_twice_or_left_out():
    """Whatever comes, in whatever order: the sum is the time that has passed."""
    rng = stream("where time went")
    for _ in range(200):
        events = sorted(rng.choices(KILLED, k=30), key=lambda event: rng.random())
        at_s, last = 0.0, 0.0
        spent = Spent()
        for event in events:
            at_s += rng.random()
            spent.add({**event, "at_s": at_s})
            if event["event"] in ("form", "finish"):
                last = at_s
                assert spent.report.total_s == pytest.approx(last)


def test_steps_before_a_wrong_one_are_done_again():
    back = {"at_s": 9.0, "event": "back", "step": 0}
    report = told(*KILLED[:7], back, step(10.0, 0, 1), step(11.0, 1, 1), step(12.0, 0, 2))
    assert (report.steps, report.redone) == (2, 1)
    assert report.seconds["redo"] == 2.0 - 0.25


def test_a_log_is_told_by_hal_goodput(tmp_path):
    file = tmp_path / "events"
    lines = [json.dumps(event) + "\n" for event in KILLED]
    file.write_text("".join(lines) + '{"at_s": 1')  # the launcher was killed
    told = CliRunner().invoke(goodput, ["--events", str(file)])
    assert told.exit_code == 0
    assert "detect         2.00 s  12.9%  from the last step" in told.output
    assert told.output.endswith("3 steps, 1 done again; 1 recoveries\n")
    file.write_text(lines[0] + '{"at_s": 5, "event": "step"}\n')
    told = CliRunner().invoke(goodput, ["--events", str(file)])
    assert told.exit_code == 1
    assert "line 2 of" in told.output
    assert CliRunner().invoke(goodput, ["--mtbf", "3"]).exit_code == 2


def test_a_log_without_room_says_so_once():
    log = EventLog(Path("/dev/full"))
    with pytest.raises(InvalidCall, match="/dev/full takes no more events"):
        log.write("moved", seat=1)
    log.write("unkept", why="what a job says at its end")
    log.close()
