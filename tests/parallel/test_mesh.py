"""Where ranks stand in a mesh, against numpy's own numbering of a grid."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hal.core.errors import InvalidCall
from stack.comm.engine.failures import Words
from stack.comm.engine.meeting import MeshLine
from stack.comm.world import World
from stack.parallel import Mesh
from tests.launch.running import Folder
from tests.parallel import rank as script

SCRIPT = Path(script.__file__)
NAMES = ("data", "stage", "tensor")


def world(rank, size):
    return World(rank, size, rank, size, "here", "cpu:0", "127.0.0.1:1", "token", "job", 60.0)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_every_rank_has_its_place_and_its_lines(sizes, data):
    grid = np.arange(np.prod(sizes)).reshape(sizes)
    rank = data.draw(st.integers(0, grid.size - 1))
    mesh = Mesh.of(world(rank, grid.size), **dict(zip(NAMES, sizes, strict=False)))
    place = np.argwhere(grid == rank)[0].tolist()
    for number, name in enumerate(mesh.axes):
        assert (mesh.size(name), mesh.place(name)) == (sizes[number], place[number])
        line = [slice(None) if i == number else at for i, at in enumerate(place)]
        assert mesh.ranks(name) == tuple(grid[tuple(line)])


def test_a_mesh_without_sizes_is_a_line():
    mesh = Mesh.of(world(2, 5))
    assert (mesh.axes, mesh.sizes, mesh.ranks("data")) == (("data",), (5,), (0, 1, 2, 3, 4))
    assert Mesh.of(None) == Mesh(None, ("data",), (1,))
    assert Mesh.present() == Mesh.of(None)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"data": 3}, "a mesh of data=3 takes 3 ranks, but this job has 4; change the sizes"),
        ({"data": 4, "tensor": 2}, "a mesh of data=4 * tensor=2 takes 8 ranks, but this job has 4"),
        ({"data": -2, "tensor": -2}, "takes 4 ranks"),
    ],
)
def test_sizes_must_multiply_to_the_ranks(sizes, says):
    with pytest.raises(InvalidCall, match=re.escape(says)):
        Mesh.of(world(0, 4), **sizes)


def test_an_axis_that_is_not_there_and_a_group_of_nobody():
    with pytest.raises(InvalidCall, match="no axis 'tensor', only data"):
        Mesh.of(world(0, 4)).size("tensor")
    with pytest.raises(InvalidCall, match="start it by `hal run"):
        Mesh.of(None).join("data")


@pytest.mark.slow
def test_ranks_of_which_one_gave_up_meet_when_it_comes_again(tmp_path):
    """They counted how often they came, each for itself, and met in no group any more."""
    done = Folder(tmp_path).run("-n", 2, "--deadline", 2, "--devices", "cpu:0", SCRIPT, "late")
    assert (done.code, done.err) == (0, [])
    said = [line for line in done.out if "[[" in line]
    assert len(said) == 2
    first, second = json.loads(said[0].partition("] ")[2])
    assert first[0] + second[0] > 2


def test_what_is_said_of_a_rank_on_a_line_has_its_number_in_the_job():
    ranks = Mesh.of(world(3, 4), data=2, tensor=2).ranks("tensor")
    words = Words("job/tensor", 1, 10.0, 1.0, MeshLine("job", ranks))
    assert words.who(0) == "rank 0 (rank 2 of the job)"
    assert Words("job", 1, 10.0, 1.0).who(0) == "rank 0"
