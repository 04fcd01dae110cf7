"""Groups of a mesh end together: who is lost is told along all axes."""

import itertools
import re
import signal
import time

import pytest

from tests.comm.engine.ranks import running

CORNERS = list(itertools.product(range(2), repeat=3))
"""The ranks of a mesh of two by two by two: the last axis varies fastest."""
JOINED = """globals().update(lines=[
    Group.join(store, address, f'{g.key}/{axis} of {ranks}', ranks.index(g.rank), 2, 20.0,
               line=MeshLine('job', ranks))
    for axis, step in enumerate((4, 2, 1))
    for ranks in [(g.rank & ~step, g.rank | step)]
])"""
NAMED = re.compile(r"the process of rank (\d) ?\(?(?:rank (\d))?(?: of the job\)?)? ?has ended")


def in_job(failed):
    """The number in the job of the rank that an error names."""
    assert failed.kind == "PeerLost"
    on_line, of_job = NAMED.search(failed.text).groups()
    return int(of_job or on_line)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("victim", range(8))
def test_a_killed_rank_is_named_to_ranks_that_share_no_group_with_it(victim):
    others = set(range(8)) - {victim}
    with running(8) as ranks:
        ranks.ask_all(JOINED)
        for rank in others:  # neighbours wait along different axes: nobody comes
            ranks.tell(rank, f"lines[{sum(CORNERS[rank]) % 3}].barrier()")
        time.sleep(0.05)
        ranks.signal(victim, signal.SIGKILL)
        for rank in others:
            assert in_job(ranks.fails(rank)) == victim
        for rank in others:  # for good, along every axis
            for axis in range(3):
                ranks.tell(rank, f"lines[{axis}].barrier()")
                assert in_job(ranks.fails(rank)) == victim


@pytest.mark.slow
@pytest.mark.turns
def test_a_group_that_is_aborted_ends_those_of_its_mesh_and_no_other():
    with running(4) as ranks:
        ranks.ask_all(JOINED.replace("(4, 2, 1)", "(2, 1)"))
        for rank in (1, 2, 3):  # 3 has no group with 0
            ranks.tell(rank, f"lines[{sum(CORNERS[rank]) % 2}].barrier()")
        time.sleep(0.05)
        ranks.ask(0, "lines[0].abort()")
        found = {rank: ranks.fails(rank) for rank in (1, 2, 3)}
        assert {failed.kind for failed in found.values()} == {"GroupAborted"}
        assert all("rank 0 of the job has ended another group" in found[r].text for r in (2, 3))
        assert "rank 0 has" in found[1].text
        ranks.ask_all("g.barrier()")
