"""Loaders with workers against PyTorch's: batches, order, seeds, errors and ends."""

import os
import random
import signal
import time

import numpy as np
import pytest
import torch
import torch.utils.data as peer

import stack.framework as ht
from stack.framework.utils import data as own

pytestmark = pytest.mark.slow


class Squares:
    """Sample i: a row of i, its square, a word; a later sample is there sooner."""

    def __init__(self, size, fails=None):
        self.size, self.fails = size, fails

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        if i == self.fails:
            raise KeyError(f"no sample {i}")
        time.sleep(0.002 * (i % 3 == 0))
        return {"row": np.full(3, i, np.float32), "square": i * i, "word": f"w{i}"}


class Counted:
    """The numbers of its worker's part."""

    def __iter__(self):
        info = self.space.get_worker_info()
        number, count = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(number, 7 * count - 3 * number, count))


class OwnCounted(Counted, own.IterableDataset):
    space = own


class PeerCounted(Counted, peer.IterableDataset):
    space = peer


def plain(value):
    """A batch as lists."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def test_workers_give_the_batches_of_one_process_in_their_order():
    how = {"batch_size": 4, "drop_last": True}
    expected = [plain(b) for b in peer.DataLoader(Squares(14), **how)]
    loader = own.DataLoader(
        Squares(14), num_workers=2, persistent_workers=True, prefetch_factor=1, **how
    )
    assert len(loader) == len(expected)
    for _ in range(2):
        assert [plain(b) for b in loader] == expected
    batch = next(iter(loader))  # the rest of this epoch is left
    assert (batch["row"].dtype, batch["row"].device) == (ht.float32, ht.default_device())
    assert [plain(b) for b in loader] == expected


def test_shuffled_batches_do_not_depend_on_the_workers():
    found = []
    for workers in (0, 2):
        ht.manual_seed(11)
        loader = own.DataLoader(Squares(9), batch_size=2, shuffle=True, num_workers=workers)
        found.append([plain(b) for b in loader])
    assert found[0] == found[1]
    assert sorted(n for b in found[0] for n in b["square"]) == [i * i for i in range(9)]


def test_workers_of_an_iterated_dataset_take_turns_until_each_has_ended():
    how = {"batch_size": 2, "num_workers": 2}
    expected = [plain(b) for b in peer.DataLoader(PeerCounted(), **how)]
    assert [plain(b) for b in own.DataLoader(OwnCounted(), **how)] == expected


def drawn(_):
    return random.random(), float(np.random.rand()), ht.rand(2).tolist(), own.get_worker_info().seed


def test_each_worker_draws_random_numbers_of_its_own_that_follow_from_the_seed():
    def epoch():
        ht.manual_seed(5)
        loader = own.DataLoader([0, 1, 2, 3], batch_size=None, num_workers=2, collate_fn=drawn)
        return list(loader)

    first = epoch()
    assert epoch() == first
    assert len({values[0] for values in first}) == len({values[1] for values in first}) == 4
    seeds = [values[3] for values in first]
    assert seeds[1] == seeds[0] + 1
    assert seeds[::2] == [seeds[0]] * 2


def test_what_a_worker_raises_is_raised_with_its_traceback():
    with pytest.raises(KeyError, match=r"DataLoader worker process 1(.|\n)*no sample 3"):
        list(own.DataLoader(Squares(8, fails=3), batch_size=2, num_workers=2))


def ends(number):
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def stays(_):
    time.sleep(60)


def test_a_worker_that_dies_or_is_late_is_named():
    with pytest.raises(RuntimeError, match=r"worker 1 \(pid \d+\) exited unexpectedly, .* -9"):
        list(own.DataLoader(Squares(8), num_workers=2, worker_init_fn=ends))
    with pytest.raises(RuntimeError, match=r"timed out after 0\.2 seconds"):
        list(own.DataLoader([1], num_workers=1, collate_fn=stays, timeout=0.2))
    with pytest.raises(ValueError, match="num_workers of 1 or more"):
        own.DataLoader([1], prefetch_factor=2)


def test_no_process_is_left_after_a_loader():
    loader = own.DataLoader(Squares(20), num_workers=2, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    processes = [p.pid for p in loader._workers._processes]
    del batches, loader
    for pid in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_requests_larger_than_a_pipe_do_not_block():
    numbers = [list(range(30_000))] * 4
    loader = own.DataLoader(
        range(30_000), batch_sampler=numbers, num_workers=1, collate_fn=np.asarray
    )
    assert [b.shape for b in loader] == [(30_000,)] * 4
    assert torch.equal(torch.tensor(next(iter(loader))), torch.arange(30_000))


def test_samples_are_drawn_by_a_generator_where_it_is(engine):
    generator = ht.Generator("interpreter:0").manual_seed(3)
    loader = own.DataLoader(range(9), batch_size=2, shuffle=True, generator=generator)
    assert sorted(int(n) for batch in loader for n in batch.numpy()) == list(range(9))
    first, second = own.random_split(range(9), [0.7, 0.3], generator=generator)
    assert sorted([*first, *second]) == list(range(9))
    weighted = own.WeightedRandomSampler([1.0, 0, 2], 5, generator=generator)
    assert set(weighted) <= {0, 2}
