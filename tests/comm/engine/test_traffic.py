"""What ranks of several hosts send, as the hosts' interfaces count it."""

from pathlib import Path

import pytest

from stack.comm.store import StoreServer
from tests.comm.engine.hosts import hosts, why_not
from tests.comm.engine.ranks import TOKEN
from tests.comm.engine.trials import Rank

HOSTS, SIZE, TIMES, COUNT = 4, 8, 5, 1 << 21
HIERARCHICAL = (
    "[os.environ.update(HAL_COMM_PLANS='all_reduce=hierarchical:0-'), g.close(), "
    f"globals().update(g=Group.join(store, address, 'again', RANK, {SIZE}, 20.0))][1]"
)


def sent_nbytes(net):
    """What each host has sent: what came into the bridge's end of its cable."""
    ports = [Path("/sys/class/net", net.port(host)) for host in range(HOSTS)]
    return [int((port / "statistics/rx_bytes").read_text()) for port in ports]


@pytest.fixture
def ranks_of_hosts():
    """Two ranks on each of four hosts, and the net between these."""
    made = []
    with hosts(HOSTS) as net, StoreServer(TOKEN, net.address) as server:
        for rank in range(SIZE):
            where = net.namespace(rank % HOSTS), f"{net.address}:{server.port}", "traffic"
            made.append(Rank(*where, rank, SIZE, 20.0))
        try:
            for rank in made:
                rank.hear()
            yield net, made
        finally:
            for rank in made:
                rank.end()


def all_ask(ranks, code):
    for number, rank in enumerate(ranks):
        rank.tell(code.replace("RANK", str(number)))
    return [rank.hear() for rank in ranks]


@pytest.mark.slow
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_hierarchical_all_reduce_sends_each_byte_between_hosts_as_often_as_it_must(
    ranks_of_hosts,
):
    """Of n bytes a host has to send n / 4 to each other host, and its part of the sum to each."""
    net, ranks = ranks_of_hosts
    all_ask(ranks, HIERARCHICAL)
    code = f"[g.all_reduce(np.full({COUNT}, g.rank, np.float32))[0] for _ in range(%d)][-1]"
    all_ask(ranks, code % 1)
    before = sent_nbytes(net)
    assert all_ask(ranks, code % TIMES) == [sum(range(SIZE))] * SIZE
    least = TIMES * 2 * (HOSTS - 1) / HOSTS * COUNT * 4
    for start, end in zip(before, sent_nbytes(net), strict=True):
        assert least <= end - start <= 1.05 * least
