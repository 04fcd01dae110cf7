"""Which cases of a job keep programs."""

from hal_conformance.catalog import catalog
from hal_conformance.job import APART, KEPT, Job


def keeping(*seeds):
    """The ids of the cases that keep programs with the first seed."""
    job = Job("cpu:0", (), (), seeds=seeds, cache_dir="/kept")
    return {c.id for c in catalog() if job.setting(seeds[0], c, None).cache_dir == "/kept"}


def test_a_run_with_one_seed_keeps_the_programs_that_cases_share_and_some_that_they_do_not():
    apart = {c.id for c in catalog() if c.group in APART}
    found, share = [keeping(seed) for seed in (1, 2)], KEPT * len(apart)
    assert all(ids >= {c.id for c in catalog()} - apart for ids in found)
    assert all(share / 2 < len(ids & apart) < 2 * share for ids in found)
    assert found[0] != found[1]
    assert found[0] == keeping(1)


def test_a_run_with_many_seeds_keeps_all_that_later_seeds_load_again():
    assert len(keeping(1, 2)) == len(catalog())
