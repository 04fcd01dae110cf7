"""The walk over a program gives the closed forms that are known of each algorithm."""

from dataclasses import replace

import pytest

from hal.core.description import DeviceInfo, Link
from hal.core.values import CollectiveKind as Kind
from hal.reference.describe import describe
from stack.comm.choose.network import ACROSS, COPIED, INSIDE, Network, Wire, network_of, uniform
from stack.comm.plan.error import PlanError
from tests.comm.choose.networks import network, seconds

ALPHA, BETA, GAMMA = 1e-5, 1e-9, 5e-10
"""Seconds of a message, of a byte on a wire, and of a byte of a sum."""


@pytest.mark.parametrize("size", [2, 4, 5, 8])
def test_ring(size):
    """2 (n - 1) turns of a latency and 1 / n of the vector; half of them add."""
    count = 1000 * size
    part = 4 * count / size
    want = 2 * (size - 1) * (ALPHA + part * BETA) + (size - 1) * part * GAMMA
    net = network(size, added=1 / GAMMA)
    assert seconds(Kind.ALL_REDUCE, "ring", net, count) == pytest.approx(want)
    gathered = (size - 1) * (ALPHA + 4 * count * BETA)
    assert seconds(Kind.ALL_GATHER, "ring", net, count) == pytest.approx(gathered)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_recursive_doubling(turns):
    """log2(n) turns of the whole vector."""
    count = 1000
    want = turns * (ALPHA + 4 * count * (BETA + GAMMA))
    net = network(1 << turns, added=1 / GAMMA)
    assert seconds(Kind.ALL_REDUCE, "recursive-doubling", net, count) == pytest.approx(want)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_halving_and_doubling(turns):
    """2 log2(n) latencies, the bytes of a ring."""
    size, count = 1 << turns, 840
    moved = 4 * count * (size - 1) / size
    want = 2 * turns * ALPHA + moved * (2 * BETA + GAMMA)
    net = network(size, added=1 / GAMMA)
    assert seconds(Kind.ALL_REDUCE, "halving-doubling", net, count) == pytest.approx(want)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_pairwise_exchange(size):
    want = (size - 1) * (ALPHA + 400 * BETA)
    assert seconds(Kind.ALL_TO_ALL, "pairwise", network(size), 100) == pytest.approx(want)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_direct_exchange_has_one_latency(size):
    """All messages are under way at once, one after the other through each port; the walk, which
    looks at one message at a time, may leave a port idle for one."""
    least = ALPHA + (size - 1) * 400 * BETA
    found = seconds(Kind.ALL_TO_ALL, "direct", network(size), 100)
    assert least * 0.999 < found < least + 1.001 * 400 * BETA


@pytest.mark.parametrize("size", [2, 3, 8, 11])
def test_binomial_broadcast_and_dissemination(size):
    turns = (size - 1).bit_length()
    if size in (2, 8):
        want = turns * (ALPHA + 400 * BETA)
        assert seconds(Kind.BROADCAST, "binomial", network(size), 100) == pytest.approx(want)
    told = seconds(Kind.BARRIER, "dissemination", network(size), 0)
    assert told == pytest.approx(turns * ALPHA)


def test_an_overhead_is_paid_for_each_step_that_a_rank_begins():
    """A root that sends to n - 1 ranks begins n - 1 messages, and a copy for itself."""
    net = network(5, latency_s=0, overhead_s=1e-6)
    assert seconds(Kind.SCATTER, "direct", net, 0) == pytest.approx(5e-6)


def test_a_cut_ring_adds_while_it_sends():
    """In the limit only the bytes on the wires count, not those of the sums."""
    net, count = network(4, latency_s=0, added=1.2e9), 1 << 20
    wires = 2 * 3 / 4 * 4 * count * BETA
    assert seconds(Kind.ALL_REDUCE, "ring", net, count, cut=16) == pytest.approx(wires, rel=0.1)
    assert seconds(Kind.ALL_REDUCE, "ring", net, count) > 1.3 * wires


def test_ranks_of_a_host_share_its_way_out():
    """Two ranks that send to another host need twice the time of one."""
    slow = Wire(0.0, 1e8)
    net = network(4, latency_s=0, bandwidth=1e15, hosts=2, between=slow)
    alone = replace(net, places=((0,), (1,), (2,), (3,)))
    shared = seconds(Kind.ALL_TO_ALL, "direct", net, 1000)
    apart = seconds(Kind.ALL_TO_ALL, "direct", replace(alone, wires=net.wires), 1000)
    assert shared == pytest.approx(2 * 2 * 4000 / 1e8)
    assert apart == pytest.approx(shared / 2)


def test_levels_spare_the_wires_between_hosts():
    """4 hosts of 4: 2 * 3/4 of the vector crosses the port of each host; a flat algorithm, which
    does not know of hosts, sends more."""
    net = network(16, latency_s=0, bandwidth=1e15, hosts=4, between=Wire(0.0, 1e9))
    count = 1 << 16
    flat = seconds(Kind.ALL_REDUCE, "halving-doubling", net, count)
    levels = seconds(Kind.ALL_REDUCE, "hierarchical", net, count)
    least = 2 * 3 / 4 * 4 * count * BETA
    assert least <= levels < 1.5 * least < flat


def test_more_bytes_take_no_less():
    for name in ("ring", "direct", "double-tree", "halving-doubling"):
        net = network(5, overhead_s=1e-6, added=3e9)
        times = [seconds(Kind.ALL_REDUCE, name, net, 10**power) for power in range(7)]
        assert times == sorted(times), name


def declared(name: str, **links: float) -> DeviceInfo:
    """A device of that name with links of that bandwidth."""
    info = describe(0, 1, 1 << 20, 2.0)
    made = tuple(Link(peer, "test", bandwidth, 5e-6) for peer, bandwidth in links.items())
    return replace(info, name=name, links=made, declared={"device_to_device": 6e9})


def test_a_network_is_what_the_devices_declare():
    infos = [
        declared("a", b=7e9),
        declared("b", a=0),
        declared("a"),
    ]
    net = network_of(infos, ((0,), (0,), (1,)))
    assert net.wires[0][1] == Wire(5e-6, 7e9)
    assert net.wires[1][0] == Wire(5e-6, INSIDE.bandwidth)
    assert net.wires[0][2] == ACROSS
    assert net.copied == (6e9,) * 3
    assert net.added == (4e9,) * 3
    assert net.levels == 1
    alone = network_of(infos)
    assert alone.levels == 0
    assert alone.wires[0][2] == INSIDE
    assert alone.wires[2][1] == ACROSS
    assert net.signature() != alone.signature()
    assert net.signature() == network_of(infos, ((0,), (0,), (1,))).signature()


def test_a_network_has_a_wire_for_each_pair():
    with pytest.raises(PlanError, match="a network of 2 ranks has 2 wires and a place for each"):
        Network(((INSIDE,), (INSIDE,)), ((), ()), 0.0, (COPIED,) * 2, (COPIED,) * 2)
    assert uniform(3).levels == 0
