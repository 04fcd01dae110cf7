"""Batches of text: windows of the right shape whose targets are the bytes that follow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.storage.data import Samples
from tests.journeys.tiny import corpus


@st.composite
def cases(draw):
    context, rows = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    length = draw(st.integers(2 * context, 20 * context))
    data = np.arange(length, dtype=np.int64)  # a window of it shows where it begins
    return data, rows, context


def assert_windows(tokens, targets, data, rows, context):
    assert tokens.shape == targets.shape == (rows, context)
    assert tokens.dtype == targets.dtype == np.int64
    np.testing.assert_array_equal(targets, tokens + 1)
    np.testing.assert_array_equal(tokens, tokens[:, :1] + np.arange(context))
    assert tokens.min() >= 0
    assert targets.max() < len(data)


@given(cases())
def test_pairs_of_windows_are_inputs_and_what_follows(case):
    data, rows, context = case
    starts = np.arange(rows) % (len(data) - context)
    assert_windows(*corpus.pairs([data[s : s + context + 1] for s in starts]), *case)


def test_a_text_has_a_shard_of_its_own_which_is_made_once(tmp_path):
    first, other = np.arange(99, dtype=np.uint8), np.arange(1, 100, dtype=np.uint8)
    assert not corpus.shard_of(first, tmp_path, make=False).exists()
    folder = corpus.shard_of(first, tmp_path, make=True)
    assert [w.tolist() for w in Samples(folder, 98).batch(1)] == [list(range(99))]
    before = (folder / corpus.SHARD).stat()
    assert corpus.shard_of(first, tmp_path, make=True) == folder
    assert (folder / corpus.SHARD).stat() == before
    assert corpus.shard_of(other, tmp_path, make=True) != folder


@given(cases(), st.integers(1, 6))
def test_there_is_at_least_one_validation_batch_and_as_many_as_there_is_text_for(case, count):
    data, rows, context = case
    batches = list(corpus.validation_batches(data, count, rows, context))
    for tokens, targets in batches:
        assert_windows(tokens, targets, *case)
    assert len(batches) == max(1, min(count, (len(data) - 1) // (rows * context)))


@pytest.mark.parametrize(("files", "held"), [(1, 1), (9, 1), (10, 1), (25, 2)])
def test_each_tenth_file_or_the_last_tenth_of_few_is_held_back(tmp_path, files, held):
    for i in range(files):
        (tmp_path / f"{i:02}").write_bytes(bytes([i]) * 99)
    loaded = corpus.load([str(tmp_path)], context=4)
    assert loaded.files == files
    assert len(loaded.train) + len(loaded.validation) >= 99 * files
    if files < 10:
        assert abs(len(loaded.validation) - len(loaded.train) / 9) <= 2
    else:
        assert set(loaded.validation.tolist()) - {10} == {10 * n + 9 for n in range(held)}
        assert not set(loaded.validation.tolist()) - {10} & set(loaded.train.tolist())


def test_without_paths_the_text_is_the_standard_librarys():
    paths = corpus.standard_library()
    assert len(paths) > 200
    assert {"json/__init__.py", "argparse.py"} <= {"/".join(p.parts[-2:]) for p in paths} | {
        p.name for p in paths
    }
    assert not any({"site-packages", "test"} & set(p.parts) for p in paths)
