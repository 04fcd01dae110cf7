"""What rank 0 knows of the network reaches the choice of all ranks."""

import pytest

from hal.core.values import CollectiveKind as Kind
from stack.comm.choose.choices import PLANS_VARIABLE, choices_in, keep, own_choices, path_of
from stack.comm.choose.measured import Measurement
from stack.comm.choose.network import network_of_hosts
from stack.comm.plan.error import PlanError
from tests.comm.engine.crew import crews

NETWORK = network_of_hosts((0, 1))
ROW = Measurement(Kind.ALL_REDUCE, "ring", 64, 1e-3)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HAL_CACHE_DIR", str(tmp_path))


def test_rows_that_are_kept_are_handed_out():
    assert choices_in(own_choices(NETWORK), NETWORK).rows == ()
    path = keep(NETWORK, [ROW])
    assert path == path_of(NETWORK)
    slower = Measurement(Kind.ALL_REDUCE, "ring", 64, 2e-3)
    keep(NETWORK, [slower])
    assert choices_in(own_choices(NETWORK), NETWORK).rows == (slower,)


def test_a_damaged_table_is_named_with_its_rank():
    keep(NETWORK, [ROW]).write_text("damaged")
    with pytest.raises(PlanError, match=r"\.measured of rank 0 is damaged, or no table"):
        choices_in(own_choices(NETWORK), NETWORK)


def test_a_wrong_word_is_an_error_on_all_ranks(monkeypatch):
    monkeypatch.setenv(PLANS_VARIABLE, "all_reduce=rang")
    with pytest.raises(PlanError, match=r"all-reduce has ring, .*; got 'rang'"), crews((0, 1)):
        pass
