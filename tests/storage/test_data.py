"""The order of samples, their shards, and what goes on over restarts."""

import io
import tarfile
import tracemalloc
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.storage import Checkpoints, Damaged, Mismatch, StorageError
from stack.storage.data import (
    Samples,
    add_tar,
    add_tokens,
    damage_of,
    permuted,
    shards_in,
)
from tests.comm.engine.crew import crews

LENGTH, SEED = 7, 3


@given(st.integers(1, 3000), st.integers(0, 2**70), st.integers(0, 2**40))
def test_an_epoch_has_each_sample_once(count, seed, epoch):
    order = permuted(np.arange(count), count, seed, epoch)
    assert (np.sort(order) == np.arange(count)).all()


@given(st.integers(10**6, 2**62), st.lists(st.integers(0, 10**6 - 1), min_size=2, unique=True))
def test_no_two_positions_of_any_count_have_one_sample(count, positions):
    order = permuted(np.array(positions), count, 1, 2)
    assert len(set(order.tolist())) == len(positions)
    assert 0 <= order.min() <= order.max() < count


def test_orders_of_epochs_and_seeds_are_unlike():
    orders = [permuted(np.arange(4096), 4096, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            # Equal positions of two random orders: Poisson with mean 1.
            assert (one == other).sum() < 12
        # The mean distance of neighbours in a random order of n is n / 3.
        assert abs(np.abs(np.diff(one)).mean() / (4096 / 3) - 1) < 0.05


MASK = (1 << 64) - 1


def mixed(value):
    """splitmix64 in whole numbers without a size."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


def one_by_one(position, count, seed, epoch):
    """The network by the book."""
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    start = seed * 0x9E3779B97F4A7C15 + epoch * 0xD1B54A32D192ED03
    keys = [mixed((start + i * 0xBF58476D1CE4E5B9) & MASK) for i in range(1, 7)]
    for _ in range(1000):
        left, right = divmod(position, 1 << half)
        for key in keys:
            left, right = right, left ^ mixed(right ^ key) % (1 << half)
        position = left << half | right
        if position < count:
            return position
    raise AssertionError("it walks on and on")


@given(st.integers(1, 2**62), st.integers(0, 2**70), st.integers(0, 2**40), st.data())
def test_the_order_is_that_of_the_network(count, seed, epoch, data):
    position = data.draw(st.integers(0, count - 1))
    want = one_by_one(position, count, seed, epoch)
    assert permuted(np.array([position]), count, seed, epoch).tolist() == [want]


def test_many_samples_need_no_more_memory_than_few():
    def peak(count):
        tracemalloc.start()
        permuted(np.arange(256), count, 1, 1)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(10**3)
    # Other threads of the process may need some meanwhile
    many, few = (min(peak(count) for _ in range(3)) for count in (10**12, 10**3))
    assert many <= few + 4096


@pytest.mark.parametrize(("position", "count"), [(5, 5), (-1, 5), (0, 0), (0, 2**62 + 1)])
def test_positions_outside_are_refused(position, count):
    with pytest.raises(StorageError, match="are not among"):
        permuted(np.array([position]), count, 0, 0)


def tokens(folder, name, count, start):
    """A shard of numbers that tell where they are."""
    array = np.arange(start, start + count, dtype=np.uint32)
    if name.endswith(".npy"):
        np.save(folder / name, array)
        return add_tokens(folder, name)
    array.tofile(folder / name)
    return add_tokens(folder, name, "uint32")


@pytest.fixture
def folder(tmp_path):
    tokens(tmp_path, "a.npy", 50, 0)
    tokens(tmp_path, "b.bin", 36, 1000)
    tokens(tmp_path, "c.npy", 3, 2000)  # too short for a window
    return tmp_path


STARTS = [*range(0, 49, LENGTH), *range(1000, 1035, LENGTH)]


def firsts(batch):
    return [int(sample[0]) for sample in batch]


def test_windows_are_the_tokens_of_their_place(folder):
    samples = Samples(folder, LENGTH, SEED)
    assert samples.count == len(STARTS)
    batch = samples.batch(samples.count)
    assert sorted(firsts(batch)) == STARTS
    for sample in batch:
        assert (sample == np.arange(sample[0], sample[0] + LENGTH + 1)).all()


def epochs(folder, ranks, size, batches, position=None):
    """All ranks' samples of so many batches, in the order of the ranks."""

    def run(group):
        samples = Samples(folder, LENGTH, SEED, group)
        if position is not None:
            samples.go_to(position)
        return [firsts(samples.batch(size)) for _ in range(batches)], samples.position.as_json()

    with crews(ranks) as [crew]:
        found = crew.do(run)
    return [[*chain(*parts)] for parts in zip(*(f for f, _ in found), strict=True)], found[0][1]


def test_any_number_of_ranks_has_one_order(folder):
    want, end = epochs(folder, 1, 5, 8)
    for ranks in (2, 3, 4, 8):
        assert epochs(folder, ranks, 5, 8) == (want, end)
    order = [*chain(*want)]
    for start in range(0, len(order) - 12, 12):
        assert sorted(order[start : start + 12]) == STARTS


@pytest.mark.slow
def test_every_step_of_an_epoch_can_be_gone_on_from_on_other_ranks(folder):
    want, _ = epochs(folder, 1, 2, 9)
    for step in range(7):
        before, position = epochs(folder, 1 + step % 3, 2, step)
        after, _ = epochs(folder, 1 + (step + 1) % 4, 2, 9 - step, position)
        assert before + after == want


def test_the_position_is_part_of_a_checkpoint(folder, tmp_path):
    samples = Samples(folder, LENGTH, SEED)
    samples.batch(5)
    with Checkpoints(tmp_path / "run") as c:
        c.save(1, {"model": {"w": np.zeros(2)}}, {"data": samples.position.as_json()})
        want = firsts(samples.batch(4))
        again = Samples(folder, LENGTH, SEED)
        again.go_to(c.load().state["data"])
    assert firsts(again.batch(4)) == want


def test_shards_that_come_later_join_at_the_next_epoch(folder):
    samples = Samples(folder, LENGTH, SEED)
    seen = firsts(samples.batch(3))
    position = samples.position.as_json()
    tokens(folder, "d.npy", 15, 5000)
    again = Samples(folder, LENGTH, SEED)
    assert again.count == 14
    again.go_to(position)
    seen += firsts(again.batch(9))
    assert sorted(seen) == STARTS
    assert sorted(firsts(again.batch(14))) == [*STARTS, 5000, 5007]


def test_a_position_in_other_data_is_refused(folder):
    position = Samples(folder, LENGTH, SEED).position.as_json()
    with pytest.raises(Mismatch, match="seed 3 and windows of 7; these samples have seed 4"):
        Samples(folder, LENGTH, 4).go_to(position)
    with pytest.raises(Mismatch, match=r"an epoch of 9 shards; .* has only 3"):
        Samples(folder, LENGTH, SEED).go_to(position | {"shards": 9})


def tar(folder, name, members):
    with tarfile.open(folder / name, "w") as made:
        for member, data in members:
            info = tarfile.TarInfo(member)
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
    return add_tar(folder, name)


def test_samples_of_tar_shards_are_their_members(tmp_path):
    rng = np.random.default_rng(0)
    want = {}
    for number in range(3):
        members = []
        for i in range(5):
            key = f"{number}{i}"
            want[key] = {"jpg": rng.bytes(int(rng.integers(2000))), "meta.json": key.encode()}
            members += [(f"{key}.{ending}", data) for ending, data in want[key].items()]
        assert tar(tmp_path, f"{number}.tar", members).count == 5
    samples = Samples(tmp_path, seed=1)
    found = {s["meta.json"].decode(): s for s in samples.batch(15)}
    assert found == want


def test_every_flipped_bit_of_a_shard_is_found(folder):
    path = folder / "b.bin"
    before = path.read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(40):
        data = bytearray(before)
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        path.write_bytes(data)
        with pytest.raises(Damaged, match=r"b\.bin: bytes 0 to 4,096 are not what was written"):
            Samples(folder, LENGTH, SEED).batch(12)
        assert len(damage_of(folder)) == 1
    path.write_bytes(before[:-1])
    with pytest.raises(Damaged, match="has 143 bytes; it had 144"):
        Samples(folder, LENGTH, SEED)
    path.write_bytes(before)
    assert damage_of(folder) == []
    (folder / "b.bin.crc32c").write_bytes(b"\0\0\0\0")
    with pytest.raises(Damaged, match=r"b\.bin\.crc32c is not what was written"):
        Samples(folder, LENGTH, SEED)


def test_a_damaged_line_is_an_error_and_an_unfinished_one_is_not(folder):
    index = folder / "index.jsonl"
    before = index.read_bytes()
    for cut in range(2, 60, 7):
        index.write_bytes(before[:-cut])
        assert len(shards_in(folder)) == 2
        (folder / "c.npy").rename(folder / f"c{cut}.npy")
        add_tokens(folder, f"c{cut}.npy")
        assert [s.file for s in shards_in(folder)] == ["a.npy", "b.bin", f"c{cut}.npy"]
        (folder / f"c{cut}.npy").rename(folder / "c.npy")
    for at in {*range(0, len(before), 11), len(before) - 1, before.index(b"\n")}:
        data = bytearray(before)
        data[at] ^= 1
        index.write_bytes(data)
        with pytest.raises(Damaged, match=r"index\.jsonl, line \d: the checksum differs"):
            shards_in(folder)


@pytest.mark.parametrize(
    ("add", "text"),
    [
        (lambda f: add_tokens(f, "a.npy"), "has a.npy already"),
        (lambda f: add_tokens(f, "../a.npy"), "is no file of"),
        (lambda f: add_tokens(f, "no.npy"), "is no file of"),
        (lambda f: add_tokens(f, "odd.bin", "uint16"), "no whole number of uint16"),
        (lambda f: add_tokens(f, "odd.bin"), "does not say its element type"),
        (lambda f: add_tar(f, "odd.bin"), "is no plain tar file"),
        (lambda f: Samples(f / "none", 3), "has no sample"),
        (lambda f: Samples(f, -1), "a window of -1 tokens"),
        (lambda f: Samples(f), "has a.npy among shards of tar"),
    ],
)
def test_what_cannot_be_is_said(add, text, folder):
    (folder / "odd.bin").write_bytes(b"123")
    with pytest.raises(StorageError, match=text):
        add(folder)
