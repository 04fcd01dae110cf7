"""Every generator's programs are right for any number of ranks, and move no more than they must."""

import pytest

from hal.core.dtypes import DType
from hal.core.values import Collective
from hal.core.values import CollectiveKind as Kind
from stack.comm.messages import sent_bytes
from stack.comm.plan.check import check
from stack.comm.plan.error import PlanError
from stack.comm.plan.generate.request import Request
from stack.comm.plan.generate.table import ALGORITHMS, build
from stack.comm.plan.generate.trees import double_tree
from stack.comm.plan.program import REDUCING, PlanKind, even_lengths
from stack.comm.plan.text import parse_program, print_program
from stack.comm.plan.traffic import traffic
from tests.comm.plan.prove import prove
from tests.comm.plan.requests import CASES, case_id, layouts, requests

SIZES = (1, 2, 3, 4, 5, 6, 8)
GENERATORS = [(kind, name) for kind, name in CASES if kind is not Kind.ALL_TO_ALL_V]
MANY = (2, 3, 4, 5, 7, 8, 15, 16, 17, 33)


@pytest.mark.parametrize(("kind", "name"), CASES, ids=case_id)
def test_programs_are_right(kind, name):
    prove(kind, name, SIZES)
    prove(kind, name, (4,), cuts=(3,))


@pytest.mark.slow
@pytest.mark.parametrize("size", [13, 21])
def test_programs_of_many_ranks_are_right(size):
    """`python -m tests.comm.plan.prove` proves all forms for 1 to 33 ranks, in minutes."""
    for kind, name in GENERATORS:
        request = Request(kind, size, size // 2, 1, False, True, 1, layouts(size)[0])
        check(build(name, request))


@pytest.mark.parametrize(("kind", "name"), CASES, ids=case_id)
def test_programs_print_to_text_that_parses_back(kind, name):
    for request in requests(kind, name, (1, 5)):
        program = build(name, request)
        assert parse_program(print_program(program)) == program


@pytest.mark.parametrize(("kind", "name"), GENERATORS, ids=case_id)
def test_golden_texts(golden, kind, name):
    size = 4 if name == "hierarchical" else 3
    places = tuple((r // 2,) for r in range(size))
    program = build(name, Request(kind, size, 1, 2, places=places))
    golden(f"comm/{kind.value}-{name}.plan", print_program(program))


def moved(kind: PlanKind, name: str, size: int, count: int, **wishes) -> list[tuple[int, int]]:
    """(messages, elements) that each rank sends."""
    program = build(name, Request(kind, size, **wishes))
    ways = traffic(program, even_lengths(kind, size, count), 1)
    return [
        (
            sum(w.messages for w in ways if w.source == r),
            sum(w.nbytes for w in ways if w.source == r),
        )
        for r in range(size)
    ]


def elements(kind: PlanKind, name: str, size: int, count: int, **wishes) -> list[int]:
    return [sent for _, sent in moved(kind, name, size, count, **wishes)]


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("kind", [k for k in Kind if k is not Kind.ALL_TO_ALL_V], ids=str)
def test_what_a_call_counts_as_sent_is_what_its_best_algorithm_moves(kind, size):
    count = 4 * size
    names = [name for of, name in CASES if of is kind and name != "hierarchical"]
    call = Collective(kind, DType.F32, 0 if kind is Kind.BARRIER else count)
    least = min(sum(elements(kind, name, size, count)) for name in names)
    assert sum(sent_bytes(call, rank, size) for rank in range(size)) == 4 * least


@pytest.mark.parametrize("size", [2, 3, 7, 8, 12])
def test_the_least_that_an_all_reduce_can_move(size):
    """2 (n - 1) / n of the vector, by ring, by halving and doubling, and directly."""
    count = 840
    least = [2 * (size - 1) * count // size] * size
    assert elements(Kind.ALL_REDUCE, "ring", size, count) == least
    assert elements(Kind.ALL_REDUCE, "direct", size, count) == least
    assert elements(Kind.ALL_REDUCE, "rank-order", size, count) == least
    if size in (2, 8):
        assert elements(Kind.ALL_REDUCE, "halving-doubling", size, count) == least


@pytest.mark.parametrize("size", [2, 3, 7, 8, 12])
def test_shares_and_gathered_parts_go_once(size):
    """(n - 1) / n of the n * count elements that a rank takes, or gives in the end."""
    least = [(size - 1) * 5] * size
    for name in ("ring", "direct", "rank-order"):
        assert elements(Kind.REDUCE_SCATTER, name, size, 5) == least
    for name in ("ring", "direct", "bruck"):
        assert elements(Kind.ALL_GATHER, name, size, 5) == least
    for name in ("direct", "pairwise"):
        assert moved(Kind.ALL_TO_ALL, name, size, 5) == [(size - 1, (size - 1) * 5)] * size
    if size in (2, 8):
        assert elements(Kind.REDUCE_SCATTER, "halving", size, 5) == least
        assert elements(Kind.ALL_GATHER, "recursive-doubling", size, 5) == least


@pytest.mark.parametrize("size", MANY)
def test_the_turns_of_recursive_doubling(size):
    """log2(p) messages of the whole vector, p the power of two below n; one more in a pair."""
    core = 1 << (size.bit_length() - 1)
    turns = core.bit_length() - 1
    sent = moved(Kind.ALL_REDUCE, "recursive-doubling", size, 10)
    assert max(messages for messages, _ in sent) == turns + (size > core)
    assert all(nbytes == 10 * messages for messages, nbytes in sent)


@pytest.mark.parametrize("size", MANY)
def test_the_turns_of_bruck(size):
    """Each turn is one message; a block is sent once for each bit of its way."""
    turns = (size - 1).bit_length()
    hops = sum(way.bit_count() for way in range(size))
    assert moved(Kind.ALL_TO_ALL, "bruck", size, 3) == [(turns, 3 * hops)] * size


@pytest.mark.parametrize("size", MANY)
def test_the_turns_of_dissemination(size):
    assert moved(Kind.BARRIER, "dissemination", size, 0) == [((size - 1).bit_length(), 0)] * size


@pytest.mark.parametrize("size", MANY)
def test_binomial_trees_send_along_each_edge_once(size):
    for kind in (Kind.BROADCAST, Kind.REDUCE):
        sent = moved(kind, "binomial", size, 7, root=size // 2)
        assert sum(nbytes for _, nbytes in sent) == 7 * (size - 1)
        assert elements(kind, "chain", size, 7, root=1).count(7) == size - 1
    root = moved(Kind.BROADCAST, "binomial", size, 7, root=1)[1]
    assert root == ((size - 1).bit_length(), 7 * (size - 1).bit_length())


@pytest.mark.parametrize("size", MANY)
def test_two_trees_share_the_work(size):
    """No rank is inside both trees, but for one where n is odd; so none sends more than twice the
    vector: a half up in each tree and a half down to each of two children."""
    first, second = double_tree(size)
    inside = [r for r in range(size) if first.children[r] and second.children[r]]
    assert len(inside) <= size % 2
    assert max(len(c) for tree in (first, second) for c in tree.children.values()) <= 2
    sent = elements(Kind.ALL_REDUCE, "double-tree", size, 4)
    assert sum(sent) == 2 * 4 * (size - 1)
    assert max(sent) <= 2 * 4
    depth = max(_depth(tree.children, tree.root) for tree in (first, second))
    assert depth <= size.bit_length()


def _depth(children, rank):
    return max((1 + _depth(children, child) for child in children[rank]), default=0)


@pytest.mark.parametrize(("hosts", "ranks"), [(2, 2), (4, 2), (3, 4), (5, 1), (1, 4)])
def test_a_hierarchical_all_reduce_sends_the_least_between_hosts(hosts, ranks):
    """2 (h - 1) / h of the vector leaves each host, and as much comes in."""
    size, count = hosts * ranks, 120
    places = tuple((r // ranks,) for r in range(size))
    program = build("hierarchical", Request(Kind.ALL_REDUCE, size, places=places))
    ways = traffic(program, (count,), 4)
    for host in range(hosts):
        crossing = [w for w in ways if places[w.source] != places[w.dest]]
        out = sum(w.nbytes for w in crossing if places[w.source] == (host,))
        into = sum(w.nbytes for w in crossing if places[w.dest] == (host,))
        assert out == into == 2 * (hosts - 1) * count * 4 // hosts


@pytest.mark.parametrize(
    "kind", [Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.BROADCAST, Kind.REDUCE]
)
def test_rings_and_chains_enter_each_host_once(kind):
    """12 ranks that were put on 3 hosts in turn: a ring by their numbers would always cross."""
    places = tuple((rank % 3,) for rank in range(12))
    name, root = ("chain", 5) if kind in (Kind.BROADCAST, Kind.REDUCE) else ("ring", 0)
    program = build(name, Request(kind, 12, root, places=places))
    ways = traffic(program, even_lengths(kind, 12, 10), 1)
    crossing = [(w.source, w.dest) for w in ways if places[w.source] != places[w.dest]]
    assert len(crossing) == (2 if name == "chain" else 3)
    assert len(ways) == (11 if name == "chain" else 12)


def test_three_levels_send_the_least_between_supernodes():
    """2 supernodes of 2 hosts of 3: the vector leaves each supernode once, and each host the same
    as in its supernode alone, and its half of that."""
    places = tuple((r // 6, r // 3 % 2) for r in range(12))
    ways = traffic(build("hierarchical", Request(Kind.ALL_REDUCE, 12, places=places)), (24,), 1)
    for node in range(2):
        out = [w for w in ways if places[w.source][0] == node != places[w.dest][0]]
        assert sum(w.nbytes for w in out) == 24
    for host in {place for place in places if place[0] == 0}:
        out = [w for w in ways if places[w.source] == host != places[w.dest]]
        assert sum(w.nbytes for w in out) == 24 + 12


def test_a_hierarchical_all_to_all_sends_few_messages_between_hosts():
    """Each block crosses once; between two hosts go as many messages as the target has ranks,
    not as many as there are pairs."""
    places = tuple((r // 4,) for r in range(12))
    ways = traffic(
        build("hierarchical", Request(Kind.ALL_TO_ALL, 12, places=places)), (5,) * 144, 1
    )
    crossing = [w for w in ways if places[w.source] != places[w.dest]]
    assert sum(w.nbytes for w in crossing) == 5 * 12 * 8
    assert sum(w.messages for w in crossing) == 3 * 2 * 4


def test_wide_sums_cost_wide_messages_only_where_sums_travel():
    """Rank-order moves what the ranks contribute, never sums; a ring moves sums."""
    wish = Request(Kind.ALL_REDUCE, 4, wide=True)
    narrow = traffic(build("rank-order", wish), (400,), 2, 4)
    ring = traffic(build("ring", wish), (400,), 2, 4)
    assert sum(w.nbytes for w in narrow) == 4 * 2 * 3 * 100 * 2
    assert sum(w.nbytes for w in ring) == 4 * (100 * 2 + 2 * 100 * 4 + 3 * 100 * 2)


def test_every_reducing_algorithm_can_keep_sums_wide():
    for kind in REDUCING:
        for name in ALGORITHMS[kind]:
            request = Request(kind, 5, wide=True, places=layouts(5)[0])
            assert check(build(name, request)).wide


def test_wishes_that_cannot_be():
    with pytest.raises(
        PlanError, match="broadcast has the algorithms binomial, chain, direct; got 'ring'"
    ):
        build("ring", Request(Kind.BROADCAST, 4))
    with pytest.raises(PlanError, match="size and cut are 1 or more, are 0 and 1"):
        build("ring", Request(Kind.ALL_REDUCE, 0))
    with pytest.raises(PlanError, match="there is no rank 4 among 4 ranks"):
        build("binomial", Request(Kind.BROADCAST, 4, root=4))
    with pytest.raises(PlanError, match="needs to know where the ranks are"):
        build("hierarchical", Request(Kind.ALL_REDUCE, 4))
    with pytest.raises(PlanError, match="same number of levels"):
        build("hierarchical", Request(Kind.ALL_REDUCE, 2, places=((0,), (0, 1))))
