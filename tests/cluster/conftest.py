"""What tests of several modules start."""

import pytest

from tests.cluster import own_slurm


@pytest.fixture(scope="module")
def slurm_hosts(tmp_path_factory):
    """A Slurm of four hosts: its environment."""
    with own_slurm.started(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment
