"""Which cases of a job keep programs."""

from hal_conformance.catalog import catalog
from hal_conformance.job import KEPT, Job


def keeping(*seeds):
    """The ids of the cases that keep programs with the first seed."""
    job = Job("cpu:0", (), (), seeds=seeds, cache_dir="/kept")
    return {c.id for c in catalog() if job.setting(seeds[0], c, None).cache_dir == "/kept"}


def test_a_run_with_one_seed_keeps_the_programs_of_some_cases_and_another_seed_those_of_others():
    found, share = [keeping(seed) for seed in (1, 2)], KEPT * len(catalog())
    assert all(share / 2 < len(ids) < 2 * share for ids in found)
    assert found[0] != found[1]
    assert found[0] == keeping(1)


def test_a_run_with_many_seeds_keeps_all_that_later_seeds_load_again():
    assert len(keeping(1, 2)) == len(catalog())
