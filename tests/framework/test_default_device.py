"""Which device new tensors are on when nobody says."""

import pytest

import stack.framework as ht
from hal.core.errors import InvalidCall
from stack.comm.world import World
from stack.framework import devices as device

WORLD = World(1, 4, 1, 2, "node1", "mychip:1", "127.0.0.1:4711", "secret", "job", 5.0)


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch, engine):
    monkeypatch.setattr(device, "_default", [])
    return engine


def test_without_a_job_it_is_the_processor():
    assert ht.default_device() == "cpu:0"


def test_a_rank_of_a_job_has_the_device_that_the_launcher_gave_it(monkeypatch, nothing_chosen):
    for name, value in WORLD.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(device.engines, "mychip:1", nothing_chosen)
    assert ht.default_device() == "mychip:1"
    assert ht.zeros(2).device == "mychip:1"


def test_what_a_program_sets_goes_before_that(monkeypatch):
    for name, value in WORLD.environment().items():
        monkeypatch.setenv(name, value)
    ht.set_default_device("interpreter:0")
    assert ht.default_device() == "interpreter:0"


def test_a_broken_environment_is_an_error_and_not_another_device(monkeypatch):
    monkeypatch.setenv("HAL_WORLD_RANK", "1")
    with pytest.raises(InvalidCall, match="HAL_WORLD_DEVICE"):
        ht.default_device()
