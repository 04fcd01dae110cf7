"""Copies and collectives between core groups: what they move, and how long that takes."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hal_plugin_sunway import traffic
from hal_plugin_sunway.chip import changed
from hal_plugin_sunway.ring import Remedies, without
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.core.values import AllocOptions, Collective, CollectiveKind, GroupSpec, OpenOptions

GROUPS = 6
NBYTES = 48 << 10
NAMES = tuple(f"sunway:{i}" for i in range(GROUPS))
REMEDIES = Remedies()


def taken(chip, kind, nbytes=NBYTES, remedies=REMEDIES, root=0, size=GROUPS):
    counts = ((nbytes // 4,) * size,) * size if kind is CollectiveKind.ALL_TO_ALL_V else ()
    call = Collective(kind, DType.F32, nbytes // 4, root=root, counts=counts)
    return traffic.cycles(chip, remedies, traffic.phases(call, size), range(size))


def moved(kind, size, root=0):
    """The bytes that leave each member's memory, for parts of 600 bytes."""
    counts = ((150,) * size,) * size
    out = [0] * size
    for phase in traffic.phases(Collective(kind, DType.F32, 150, root=root, counts=counts), size):
        for move in phase.moves:
            assert move.reader != move.owner
            out[move.owner] += move.nbytes
    return out


@given(st.integers(2, 6), st.data())
def test_as_much_is_moved_as_the_kinds_need_at_least(size, data):
    root = data.draw(st.integers(0, size - 1))
    others = [600 * (rank != root) for rank in range(size)]
    assert moved(CollectiveKind.ALL_GATHER, size) == [600 * (size - 1)] * size
    assert moved(CollectiveKind.REDUCE_SCATTER, size) == [600 * (size - 1)] * size
    assert moved(CollectiveKind.ALL_TO_ALL, size) == [600 * (size - 1)] * size
    assert moved(CollectiveKind.ALL_TO_ALL_V, size) == [600 * (size - 1)] * size
    assert moved(CollectiveKind.GATHER, size, root) == others
    assert sum(moved(CollectiveKind.SCATTER, size, root)) == sum(others)
    # Parts of what all have go round twice.
    assert sum(moved(CollectiveKind.ALL_REDUCE, size)) == 2 * 600 * (size - 1)


def test_a_member_alone_moves_nothing(chip):
    for kind in CollectiveKind:
        assert taken(chip, kind, size=1) == 0


def test_what_one_memory_gives_to_all_takes_its_time_for_all(chip):
    memory = chip["memory_nbytes_s"] / chip["cpe_hz"]
    assert taken(chip, CollectiveKind.SCATTER) > (GROUPS - 1) * NBYTES / memory
    assert taken(chip, CollectiveKind.GATHER) < taken(chip, CollectiveKind.SCATTER)


def test_a_slower_memory_and_slower_links_are_felt_where_they_are_the_limit(chip):
    slow_memory = changed(chip, f"memory_nbytes_s={chip['memory_nbytes_s'] / 2}")
    kind = CollectiveKind.SCATTER
    assert 1.4 < taken(slow_memory, kind) / taken(chip, kind) < 2.1
    slow_links = changed(chip, "link_nbytes_cycle=4")
    assert taken(slow_links, CollectiveKind.ALL_TO_ALL) > 2 * taken(chip, CollectiveKind.ALL_TO_ALL)
    near, far = (taken(changed(chip, f"hop_cycles={n}"), CollectiveKind.BARRIER) for n in (5, 500))
    assert far > 5 * near


def test_without_a_remedy_congestion_costs(chip):
    congested = changed(chip, "link_nbytes_cycle=16")
    plain = taken(congested, CollectiveKind.ALL_TO_ALL)
    longer = taken(congested, CollectiveKind.ALL_TO_ALL, remedies=without("shortest_path"))
    assert longer > 1.3 * plain
    assert taken(chip, CollectiveKind.SCATTER, remedies=without("merging")) > 1.3 * taken(
        chip, CollectiveKind.SCATTER
    )
    with pytest.raises(InvalidCall, match="flow_control"):
        without("luck")


@settings(max_examples=6, deadline=None)
@given(st.sampled_from([k for k in CollectiveKind if k is not CollectiveKind.BARRIER]))
def test_long_messages_go_on_as_their_first_parts_did(chip, kind):
    found = taken(chip, kind, 8 * NBYTES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traffic, "MOST_REQUESTS", 1 << 20)
        assert found == pytest.approx(taken(chip, kind, 8 * NBYTES), rel=0.03)


@pytest.fixture
def six(plugin, tmp_path):
    report = tmp_path / "report.jsonl"
    options = OpenOptions(settings={"memory_nbytes": str(4 << 20), "report": str(report)})
    devices = [plugin[0].open(name, options=options) for name in NAMES]
    yield devices, report
    for device in devices:
        device.close()


def test_a_collective_of_the_six_has_its_emulated_time_on_each(six, chip):
    devices, report = six
    groups = joined(devices)
    data = np.arange(64, dtype=np.float32)
    buffers = [device.alloc(data.nbytes, AllocOptions()) for device in devices]
    call = Collective(CollectiveKind.ALL_REDUCE, DType.F32, data.size)
    points = []
    for device, group, buffer in zip(devices, groups, buffers, strict=True):
        queue = device.create_timeline(host_driven=False)
        device.copy(buffer.region(), data.tobytes(), queue, [])
        region = buffer.region()
        points.append(device.collective(group, call, region, region, queue, []))
    for device, point in zip(devices, points, strict=True):
        assert device.wait([point], 20, True)
    wanted = chip.seconds(taken(chip, CollectiveKind.ALL_REDUCE, data.nbytes)) * 1e9
    spans = [device.timestamps(p)[0] for device, p in zip(devices, points, strict=True)]
    assert [span.device_ns for span in spans] == [pytest.approx(wanted)] * GROUPS
    found = np.frombuffer(devices[5].map(buffers[5].region(), writable=False), np.float32)
    assert (found == 6 * data).all()
    rows = [json.loads(line) for line in report.read_text().splitlines()]
    assert {"all-reduce"} == {row["transfer"] for row in rows if "transfer" in row}


def joined(devices):
    """A group of all, which each joins from a thread of its own."""
    with ThreadPoolExecutor(len(devices)) as threads:
        joins = [
            threads.submit(device.create_group, GroupSpec("traffic", rank, NAMES, 20.0))
            for rank, device in enumerate(devices)
        ]
        return [join.result(20.0) for join in joins]


def test_a_copy_from_another_core_group_takes_longer_the_farther_it_is(six):
    devices, _ = six
    here = devices[0]
    queue = here.create_timeline(host_driven=False)
    own = [here.alloc(NBYTES, AllocOptions()) for _ in range(2)]
    there = {i: devices[i].alloc(NBYTES, AllocOptions()) for i in (1, 3, 5)}
    took = {}
    for index, source in {0: own[1], **there}.items():
        point = here.copy(own[0].region(), source.region(), queue, [])
        assert here.wait([point], 20, True)
        took[index] = here.timestamps(point)[0].device_ns
    assert took[3] > took[1] == took[5]  # the ring is closed
    links = {link.peer: link for link in here.info.links}
    for index in there:
        assert took[index] == pytest.approx(
            NBYTES / links[f"sunway:{index}"].bandwidth * 1e9, rel=0.1
        )
