"""Killed ranks; `python -m benchmarks.storage_kills` does it a hundred times."""

import pytest

from benchmarks.storage_kills import kills
from stack.storage import Checkpoints


@pytest.mark.slow
@pytest.mark.turns
def test_ranks_that_are_killed_in_a_save_leave_the_old_state_or_the_new_one(tmp_path):
    old, new = kills(str(tmp_path), 2, size=2, seed=3)
    assert old + new == 2
    with Checkpoints(tmp_path, keep=1) as c:
        c.save(2, c.load().tensors)
    assert [f.name for f in tmp_path.glob("step-*")] == ["step-000000000002"]
