"""What is chosen is right for the call, follows the network, measurements and the user's word."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.core.values import CollectiveKind as Kind
from stack.comm.choose.chooser import AlgorithmChooser, Demand
from stack.comm.choose.explain import explain
from stack.comm.choose.measured import Measurement
from stack.comm.choose.network import Wire
from stack.comm.choose.override import parse_override
from stack.comm.plan.check import check
from stack.comm.plan.error import PlanError
from stack.comm.plan.program import PointKind
from stack.comm.plan.text import print_program
from tests.comm.choose.networks import FLOAT, HALF, network

SMALL, LARGE = 64, 1 << 20


def call(kind=Kind.ALL_REDUCE, nbytes=LARGE, **wishes):
    return Demand(kind, nbytes, wishes.pop("element", FLOAT), **wishes)


def test_few_turns_for_few_bytes_and_few_bytes_for_many():
    chooser = AlgorithmChooser(network(4, overhead_s=1e-6, added=4e9))
    assert chooser.algorithm(call(nbytes=SMALL)) == "recursive-doubling"
    assert chooser.algorithm(call()).startswith("ring/")
    assert chooser.algorithm(call(Kind.ALL_TO_ALL, nbytes=SMALL)) == "direct"
    assert chooser.algorithm(call(Kind.BROADCAST)).startswith("chain/")


def test_who_runs_a_call_is_no_algorithm():
    free = AlgorithmChooser(network(4)).algorithm(call())
    for who in ("device", "engine"):
        assert (
            AlgorithmChooser(network(4), (), parse_override(f"all_reduce={who}")).algorithm(call())
            == free
        )


def test_levels_are_chosen_where_hosts_are_far_apart():
    chooser = AlgorithmChooser(network(8, bandwidth=1e11, hosts=4, between=Wire(1e-5, 1e9)))
    wish = call(nbytes=1 << 16)
    assert chooser.algorithm(wish) == "hierarchical"
    assert "hierarchical" not in {o.algorithm for o in AlgorithmChooser(network(4)).estimates(wish)}


def test_every_kind_gets_a_right_program():
    for net in (network(1), network(2), network(6, hosts=2)):
        chooser = AlgorithmChooser(net)
        for kind in (*Kind, PointKind.SEND_RECV):
            for in_place in (False, True):
                last = net.size - 1
                wish = call(kind, 4096, root=last, target=0, in_place=in_place)
                program = chooser.choose(wish)
                check(program)
                assert (program.kind, program.size, program.in_place) == (kind, net.size, in_place)
                assert program.root == last


def test_a_program_is_made_once():
    chooser = AlgorithmChooser(network(4))
    assert chooser.choose(call(nbytes=5000)) is chooser.choose(call(nbytes=6000))


class Enough(Exception):
    pass


class Patience:
    """Goes on so often."""

    def __init__(self, times):
        self.left = times

    def __call__(self):
        self.left -= 1
        if self.left < 0:
            raise Enough


def test_a_choice_asks_at_every_step_of_making_predicting_and_proving():
    patience = Patience(10**9)
    program = AlgorithmChooser(network(4), go_on=patience).choose(call())
    assert 10**9 - patience.left > 4 * sum(map(len, program.steps))


@settings(max_examples=25)
@given(st.integers(0, 99))
def test_a_choice_that_was_given_up_anywhere_is_made_later(percent):
    free = Patience(10**9)
    wanted = AlgorithmChooser(network(3), go_on=free).choose(call(nbytes=SMALL))
    patience = Patience((10**9 - free.left) * percent // 100)
    chooser = AlgorithmChooser(network(3), go_on=patience)
    with pytest.raises(Enough):
        chooser.choose(call(nbytes=SMALL))
    patience.left = 10**9
    assert chooser.choose(call(nbytes=SMALL)) == wanted


def test_narrow_types_get_programs_that_keep_sums_wide():
    chooser = AlgorithmChooser(network(3))
    for nbytes in (SMALL, LARGE):
        assert check(chooser.choose(call(nbytes=nbytes, element=HALF))).wide


def test_a_measurement_decides_near_its_size():
    """What was measured slow is not chosen; what was not measured is as far off as the rest."""
    net = network(4, added=4e9)
    plain = AlgorithmChooser(net)
    before = plain.algorithm(call())
    estimates = {o.algorithm: o for o in plain.estimates(call())}
    assert not any(o.measured for o in estimates.values())
    slow = Measurement(Kind.ALL_REDUCE, before, LARGE, 100 * estimates[before].predicted_s)
    fine = Measurement(Kind.ALL_REDUCE, "double-tree", LARGE, estimates["double-tree"].predicted_s)
    chooser = AlgorithmChooser(net, [slow, fine])
    found = {o.algorithm: o for o in chooser.estimates(call())}
    assert found[before].seconds == pytest.approx(slow.seconds)
    assert found["double-tree"].seconds == pytest.approx(fine.seconds)
    assert {name for name, o in found.items() if o.measured} == {before, "double-tree"}
    middle = found["direct"].seconds / found["direct"].predicted_s
    assert middle == pytest.approx(50.5)
    assert chooser.algorithm(call()) == "double-tree"


def test_between_two_measurements_the_ratio_changes_evenly():
    net = network(2)
    plain = {n: AlgorithmChooser(net).estimates(call(nbytes=n)) for n in (1 << 10, 1 << 20)}
    ring = {n: next(o for o in plain[n] if o.algorithm == "ring").predicted_s for n in plain}
    rows = [
        Measurement(Kind.ALL_REDUCE, "ring", 1 << 10, 2 * ring[1 << 10]),
        Measurement(Kind.ALL_REDUCE, "ring", 1 << 20, 4 * ring[1 << 20]),
    ]
    ratios = {}
    for nbytes in (8, 1 << 10, 1 << 15, 1 << 20, 1 << 24):
        estimate = next(
            o
            for o in AlgorithmChooser(net, rows).estimates(call(nbytes=nbytes))
            if o.algorithm == "ring"
        )
        ratios[nbytes] = estimate.seconds / estimate.predicted_s
    assert list(ratios.values()) == pytest.approx([2, 2, 3, 4, 4], rel=1e-3)


def test_a_rule_decides_for_its_sizes():
    rules = parse_override("all_reduce=direct:0-1K;double_tree/2:1K-2K")
    chooser = AlgorithmChooser(network(4), rules=rules)
    assert chooser.algorithm(call(nbytes=1023)) == "direct"
    assert chooser.choose(call(nbytes=1023)).name == "direct"
    assert chooser.choose(call(nbytes=1024)).pieces == 4
    free = AlgorithmChooser(network(4)).algorithm(call(nbytes=2048))
    assert chooser.algorithm(call(nbytes=2048)) == free
    assert chooser.choose(call(nbytes=1024, in_place=True)).in_place


def test_a_user_brings_a_program(tmp_path):
    path = tmp_path / "mine.plan"
    mine = replace(AlgorithmChooser(network(3)).choose(call(nbytes=SMALL)), name="mine")
    path.write_text(print_program(mine))
    chooser = AlgorithmChooser(network(3), rules=parse_override(f"all_reduce={path}:0-1K"))
    assert chooser.choose(call(nbytes=SMALL)) == mine
    assert chooser.choose(call()).name != "mine"
    with pytest.raises(
        PlanError, match=r"mine\.plan is for all-reduce of 3 ranks, root 0, in plac"
    ):
        chooser.choose(call(nbytes=SMALL, in_place=True))


def test_a_wrong_program_of_a_user_is_refused_when_it_is_first_wanted(tmp_path):
    path = tmp_path / "mine.plan"
    text = print_program(AlgorithmChooser(network(2)).choose(call(Kind.BROADCAST, nbytes=SMALL)))
    path.write_text(text.replace("copy out[0] in[0]", "copy out[0] out[0]"))
    chooser = AlgorithmChooser(network(2), rules=parse_override(f"broadcast={path}"))
    with pytest.raises(PlanError, match="rank 0, step 0, out\\[0\\]: it reads and writes the same"):
        chooser.choose(call(Kind.BROADCAST))


def test_a_program_that_rounds_partial_sums_is_refused_for_narrow_types(tmp_path):
    path = tmp_path / "mine.plan"
    rules = parse_override("all_reduce=ring")
    path.write_text(print_program(AlgorithmChooser(network(4), rules=rules).choose(call())))
    chooser = AlgorithmChooser(network(4), rules=parse_override(f"all_reduce={path}"))
    assert chooser.choose(call()).name == "ring"
    with pytest.raises(PlanError, match="rounds sums to the element type before they are finished"):
        chooser.choose(call(element=HALF))


def test_the_table_of_predictions(golden):
    net = network(4, overhead_s=1e-6, added=4e9)
    rows = [Measurement(Kind.ALL_REDUCE, "direct", 1 << 12, 1e-4)]
    chooser = AlgorithmChooser(net, rows, parse_override("all_reduce=double_tree:1M-"))
    text = explain(chooser, Kind.ALL_REDUCE, FLOAT, [8, 1 << 12, 1 << 20])
    golden("comm/explain.txt", text)
