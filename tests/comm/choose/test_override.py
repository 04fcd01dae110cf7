"""The user's word is read, or refused with what it may be."""

import pytest

from hal.core.values import CollectiveKind as Kind
from stack.comm.choose.override import Override, parse_override
from stack.comm.plan.error import PlanError
from stack.comm.plan.program import PointKind


def test_rules():
    text = "all_reduce=recursive_doubling:0-8K;ring/4:8K-  all-to-all=bruck:512-1M send_recv=direct"
    assert parse_override(text) == (
        Override(Kind.ALL_REDUCE, "recursive-doubling", 0, 8192),
        Override(Kind.ALL_REDUCE, "ring/4", 8192, None),
        Override(Kind.ALL_TO_ALL, "bruck", 512, 1 << 20),
        Override(PointKind.SEND_RECV, "direct"),
    )
    assert parse_override("") == ()
    assert parse_override("broadcast=my_own.plan:1G-") == (
        Override(Kind.BROADCAST, "my_own.plan", 1 << 30),
    )
    assert parse_override("broadcast=device:0-1K;engine:1K-") == (
        Override(Kind.BROADCAST, "device", 0, 1024),
        Override(Kind.BROADCAST, "engine", 1024),
    )
    assert parse_override("all_gather=ring/1") == (Override(Kind.ALL_GATHER, "ring"),)


def test_a_rule_holds_from_its_start_to_before_its_end():
    rule = Override(Kind.BROADCAST, "direct", 8, 16)
    held = [n for n in (7, 8, 15, 16) if rule.holds(Kind.BROADCAST, n)]
    assert held == [8, 15]
    assert not rule.holds(Kind.REDUCE, 8)
    assert Override(Kind.REDUCE, "direct").holds(Kind.REDUCE, 1 << 40)


WRONG = [
    ("all_reduce", "expected KIND=ALGORITHM:FROM-TO;..., KIND one of all_reduce, reduce"),
    ("all_redcue=ring", "KIND one of all_reduce"),
    ("all_reduce=rings", "all-reduce has ring, recursive_doubling, halving_doubling"),
    ("broadcast=ring:0-8K", "broadcast has binomial, chain, direct, or a file that ends in .plan"),
    ("all_reduce=ring:8K", "a range is FROM-TO such as 0-8K, or 8K- without an end"),
    ("all_reduce=ring:8KB-9KB", "a range is FROM-TO such as 0-8K"),
    ("all_reduce=ring:8K-4K", "ends before it begins"),
    ("all_reduce=ring/x", "cuts into a whole number of parts, such as ring/4"),
    ("all_reduce=ring/0", "cuts into a whole number of parts, such as ring/4"),
    ("all_reduce=ring:0-8K;direct:4K-", "two algorithms for all-reduce of 4096 bytes"),
    ("all_reduce=ring:8K-;direct", "two algorithms for all-reduce of 8192 bytes: ring and direct"),
    ("all_reduce=ring;", "got ''"),
    (f"all_reduce=ring:{'9' * 5000}-", "a range is FROM-TO such as 0-8K"),
    (f"all_reduce=ring/{'9' * 5000}", "cuts into a whole number of parts, such as ring/4"),
]


@pytest.mark.parametrize(("text", "reason"), WRONG)
def test_a_wrong_word_is_refused(text, reason):
    with pytest.raises(PlanError) as caught:
        parse_override(text)
    assert reason in str(caught.value)
