"""Plans of faults of a job: their text, and what happens when."""

import pytest

from hal.core.errors import InvalidCall
from stack.launch.faults import EPOCH, KINDS, STEP, JobFaults, check_faults
from tests.draw import stream

PLAN = """
seed 7
kill at step nth 3 rank 1
stop at epoch nth 2          # the seed draws the rank
slow at step probability 0.25 factor 2
cut at step every 4; flip at step nth 3
"""


def test_what_happens_when():
    faults = JobFaults.of(PLAN)
    three = [(s.fault.kind, s.rank) for s in faults.struck(STEP, 3, 4) if s.fault.kind != "slow"]
    assert three[0] == ("kill", 1)
    assert [kind for kind, _ in three] == ["kill", "flip"]
    assert [s.fault.kind for s in faults.struck(EPOCH, 2, 4)] == ["stop"]
    assert faults.struck(EPOCH, 1, 4) == []
    assert faults == JobFaults.of(str(faults))
    assert faults.struck(STEP, 3, 4) == JobFaults.of(PLAN).struck(STEP, 3, 4)
    assert [s.fault.kind for s in faults.struck(STEP, 3, 1)][-1] == "flip"  # there is no rank 1
    cuts = [
        n for n in range(1, 20) if any(s.fault.kind == "cut" for s in faults.struck(STEP, n, 4))
    ]
    assert cuts == [4, 8, 12, 16]
    slow = sum(s.fault.kind == "slow" for n in range(1000) for s in faults.struck(STEP, n, 4))
    assert 180 < slow < 320
    ranks = {s.rank for n in range(200) for s in faults.struck(STEP, 4 * n, 4)}
    assert ranks == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("crash at step nth 1", "no kind 'crash'; there are kill, stop"),
        ("kill at keep", "kill cannot happen at 'keep', only at step, epoch"),
        ("kill at step rank -1", "rank is -1"),
        ("kill at step nth 1 every 2", "two positions"),
        ("slow at step factor 1", "factor is 1"),
        ("kill at step nth 0", "nth and every are 1 or more"),
        ("torn-write at keep rank 1", "leave out the position and the rank"),
        ("kill at step where 3", "no key 'where'"),
        ("kill step", 'a line is "KIND at HOOK ..."'),
    ],
)
def test_what_is_no_plan(line, words):
    with pytest.raises(InvalidCall) as refused:
        JobFaults.of(f"seed 1\n{line}")
    assert words in str(refused.value)
    assert "line 2" in str(refused.value)


def test_faults_of_the_disk_take_a_job_that_writes():
    plan = JobFaults.of("disk-full at keep")
    check_faults(plan, keeps=True)
    with pytest.raises(InvalidCall, match="give --keep, too"):
        check_faults(plan, keeps=False)


def test_every_plan_is_read_again_as_it_was():
    rng = stream("job faults")
    for _ in range(50):
        kind = rng.choice(list(KINDS))
        hook = rng.choice(KINDS[kind])
        position = (
            rng.choice(["nth 5", "every 3", "probability 0.5"]) if hook != "keep" else "nth 1"
        )
        plan = JobFaults.of(f"seed {rng.randrange(99)}\n{kind} at {hook} {position}")
        assert JobFaults.of(str(plan)) == plan
