"""What a rank reads from its environment."""

import os
from dataclasses import replace

import pytest

from hal.core.errors import InvalidCall
from stack.comm.world import PREFIX, World, host_and_port

WORLD = World(1, 4, 1, 2, "node1", "cpu:1", "127.0.0.1:4711", "secret", "job", 2.5, 3, 9)


def with_(**changed):
    changed = {PREFIX + name.upper(): value for name, value in changed.items()}
    return {**WORLD.environment(), **changed}


def test_the_environment_gives_back_the_world():
    assert World.from_environment({"PATH": "/bin", **WORLD.environment()}) == WORLD
    assert World.present(WORLD.environment()) == WORLD


def test_without_the_variables_there_is_no_world():
    assert World.present({"HAL_CACHE_DIR": "/tmp"}) is None
    with pytest.raises(InvalidCall, match=r"HAL_WORLD_RANK, .* no rank of a job; start it by `hal"):
        World.from_environment({})


def test_half_a_world_is_an_error_that_names_the_rest():
    for missing in WORLD.environment():
        given = {name: value for name, value in WORLD.environment().items() if name != missing}
        with pytest.raises(InvalidCall, match=f"lacks {missing}: "):
            World.present(given)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"rank": "4"}, "HAL_WORLD_RANK is 4; it must be below HAL_WORLD_SIZE, 4"),
        ({"rank": "-1"}, "HAL_WORLD_RANK is '-1'; it must be a whole number"),
        ({"rank": "1" * 5000}, "it must be a whole number"),
        ({"size": "two"}, "HAL_WORLD_SIZE is 'two'"),
        ({"local_rank": "2"}, "HAL_WORLD_LOCAL_RANK is 2; it must be below HAL_WORLD_LOCAL_SIZE"),
        ({"local_size": "5"}, "HAL_WORLD_LOCAL_SIZE is 5, more than HAL_WORLD_SIZE, 4"),
        ({"store": "localhost"}, "'localhost' is not an address"),
        ({"deadline_s": "0"}, "HAL_WORLD_DEADLINE_S is '0'; it must be a number of seconds above"),
        ({"deadline_s": "nan"}, "HAL_WORLD_DEADLINE_S is 'nan'"),
        ({"deadline_s": "inf"}, "HAL_WORLD_DEADLINE_S is 'inf'"),
        ({"deadline_s": "1e300"}, "HAL_WORLD_DEADLINE_S is '1e300'; .* at most 1,000,000"),
    ],
)
def test_a_wrong_value_is_named(changed, text):
    with pytest.raises(InvalidCall, match=text):
        World.from_environment(with_(**changed))


def test_a_child_of_a_rank_is_not_the_rank():
    replace(WORLD, process=0).check_process()
    replace(WORLD, process=os.getpid()).check_process()
    with pytest.raises(InvalidCall, match="rank 1 is taken by process 9 on host node1; this is"):
        WORLD.check_process()


def test_the_token_is_not_shown():
    assert "secret" not in repr(WORLD)


def test_addresses():
    assert host_and_port("node1:80") == ("node1", 80)
    assert host_and_port("[::1]:65535") == ("::1", 65535)
    for wrong in (
        "",
        ":80",
        "node1:",
        "node1:0",
        "node1:65536",
        "node1:8o",
        "node1:٣",
        "::1:80",
        "a:1:2",
    ):
        with pytest.raises(InvalidCall):
            host_and_port(wrong)
