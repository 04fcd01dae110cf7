"""Experts on ranks of several hosts: what their rows and places travel by, and that they arrive."""

from dataclasses import replace

import numpy as np
import pytest

from hal.tile.node import toposort
from stack.comm.choose.override import PLANS_VARIABLE
from stack.ops import exchange_of
from stack.parallel.strategy import expert
from tests.comm.device.seats import seated
from tests.draw import stream
from tests.parallel import spread_gpt
from tests.parallel.test_partition import Case, run_ranks

HOSTS = (0, 0, 1, 1)
BY_LEVELS = "all_to_all=hierarchical all_to_all_v=hierarchical"


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("special", stream("levels").sample(("", "dropless"), 1))
def test_tokens_go_to_experts_of_other_hosts_by_levels(special, monkeypatch):
    """Every all-to-all of a step, among two ranks on each of two hosts, gives what it means: those
    of experts with a capacity, and those whose counts are data."""
    ranks = len(HOSTS)
    case = Case("sgd", experts=spread_gpt.EXPERTS, special=special)
    axes, layouts, cut, _ = case.divide(expert(ranks, "*.mixture"))
    ops = ("all_to_all", "all_to_all_v")
    exchanges = [n for n in toposort(cut.outputs) if n.op in ops]
    values = [x for n in exchanges for x in (*n.srcs, n)]
    _, got = run_ranks(case, axes, layouts, replace(cut, outputs=tuple(values)))
    found = [dict(zip(values, own, strict=True)) for own in got]
    monkeypatch.setenv(PLANS_VARIABLE, BY_LEVELS)
    with seated(["cpu:0"] * ranks, hosts=HOSTS) as seats:
        parts = [seat.parts[tuple(range(ranks))] for seat in seats]
        for n in exchanges:
            call = exchange_of(n).call(n)
            begun = []
            for seat, part, own in zip(seats, parts, found, strict=True):
                (src, *counts), waits = zip(*(seat.put(own[s], part) for s in n.srcs), strict=True)
                dst, at = seat.put(np.zeros_like(own[n]), part)
                given = (c.region() for c in counts)
                point = part.start(call, dst.region(), src.region(), (*waits, at), *given)
                begun.append((dst, point))
            for seat, part, own, (dst, point) in zip(seats, parts, found, begun, strict=True):
                came = seat.get(dst, own[n].dtype, point)
                assert came.tobytes() == own[n].tobytes(), n["name"]
                assert part.way == "hierarchical", n["name"]
    assert {n.op for n in exchanges} == (set(ops) if special else {"all_to_all"})
