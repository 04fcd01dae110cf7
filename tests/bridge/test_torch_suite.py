"""Some of PyTorch's own tests of process groups on backend hal; `torch_suite` runs all of them."""

import pytest

pytest.importorskip("torch")

from tests.bridge import torch_suite
from tests.draw import sample

SOME = (  # of which each run draws a few
    "test_all_gather_coalesced_with_empty",
    "test_all_reduce_coalesced_full_group_sum",
    "test_gather_checks",
    "test_get_future",
    "test_monitored_barrier_gloo_rank_0_timeout",
    "test_monitored_barrier_gloo_subgroup",
    "test_reduce_sum_twice",
    "test_scatter_checks",
    "test_send_recv_any_source",
    "test_sparse_all_reduce_sum",
    "test_static_graph_api_cpu",
)


@pytest.mark.slow
@pytest.mark.turns
def test_some_of_the_tests_that_gloo_passes():
    drawn = sample("tests of torch", SOME, 5)
    assert torch_suite.outcomes("hal", drawn) == dict.fromkeys(drawn, "passed")
